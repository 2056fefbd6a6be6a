"""Policies of licences: rows of others are left out before the first cut, and shares are of the rows that remain."""

import json

import numpy as np
import polars as pl
import pytest

from curation_assets.audit.ledger import recorded_ledger
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.own_declared import policies_folder
from curation_assets.sources.declaration import add_pool
from tests.support.command import curate
from tests.support.ledgers import replay
from tests.support.lineage_pools import OPTIONS

LICENCES = ["CC BY 4.0", "cc0-1.0", None, "ask the photographer first", "CC-BY-NC-4.0", "cc-by-4.0", "cc0-1.0", None]
FREE = "name: free\nrank_by: random\nfraction: 0.5\nlicences: [CC0-1.0, cc-by-4.0]\n"
ALL = "name: every\nrank_by: random\nfraction: 0.5\n"


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    home = tmp_path_factory.mktemp("home")
    captions = [f"a caption of the row {number}" for number in range(len(LICENCES))]
    table = pl.DataFrame({"caption": captions, "licence": LICENCES})
    table.write_parquet(home / "rows.parquet")
    settings = load_settings(home, "embedded")
    given = {"caption": "caption", "licence": "licence"}
    add_pool(settings, "texts", home / "rows.parquet", columns=given, options=OPTIONS | {"policies": ["free", "every"]})
    ctx = PoolContext.open(settings, "texts", run_id="run-9")
    policies_folder(ctx).mkdir(parents=True)
    (policies_folder(ctx) / "free.yaml").write_text(FREE)
    (policies_folder(ctx) / "every.yaml").write_text(ALL)
    tables = tables_of(ctx)
    for name, one in tables.items():
        if name.startswith(("raw/", "filtered/")):
            for shard in ctx.shards() if one.grain == "shard" else [None]:
                materialise_table(ctx, one, shard, tables=tables)
    return ctx


def test_only_rows_of_the_listed_licences_are_judged(ctx: PoolContext) -> None:
    verdicts = ctx.store.scan("filtered/free").sort("source_row").collect()
    early = verdicts.filter(pl.col("decided_by").is_null())
    assert early.select("source_row", "verdict", "reason").rows() == [
        (2, "dropped", "licence:unknown"),
        (3, "dropped", "licence:other"),
        (4, "dropped", "licence:cc-by-nc-4.0"),
        (7, "dropped", "licence:unknown"),
    ]
    cuts = {name: ctx.store.read(f"filtered/{name}_cut").row(0, named=True) for name in ("free", "every")}
    assert [(cut["pool_size"], cut["kept"]) for cut in cuts.values()] == [(4, 2), (8, 4)]
    for name in cuts:
        npy = np.load(ctx.store.folder_path("filtered/subsets") / f"{name}.npy")
        assert np.array_equal(replay(recorded_ledger(ctx.store, name)), npy)


def test_a_policy_without_licences_does_not_rest_on_provenance(ctx: PoolContext) -> None:
    tables = tables_of(ctx)
    for part in ("_cut", ""):
        assert "raw/provenance" in tables[f"filtered/free{part}"].inputs
        assert "raw/provenance" not in tables[f"filtered/every{part}"].inputs


def test_diff_and_why_agree_with_the_verdicts(ctx: PoolContext) -> None:
    home = ["--home", str(ctx.settings.home)]
    run = curate("diff", "free", "every", "--json", *home)
    assert run.exit_code == 0, run.output
    output = json.loads(run.stdout)
    assert (output["rows"], output["judged"], output["kept"]["left"], output["kept"]["right"]) == (8, 8, 2, 4)
    changed = curate("diff", "free", "--fraction", "1", "--json", *home)  # judged now, licences stay
    assert json.loads(changed.stdout)["kept"]["right"] == 4
    sample_id = ctx.store.scan("filtered/free").filter(pl.col("source_row") == 4).collect()["sample_id"][0]
    why = curate("why", sample_id, *home)
    assert "before the first cut: licence cc-by-nc-4.0 is none that the policy lists" in " ".join(why.output.split())

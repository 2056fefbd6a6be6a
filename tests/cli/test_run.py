"""What `curate run` begins before its first table, and writes after its last."""

import subprocess
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from curation_assets.cli.run import _computes_models, _show_endings, _show_samples
from curation_assets.core.settings import Settings, load_profile
from curation_assets.defs.selection import select_tables
from curation_assets.evaluation.subset_training import trainers_of
from curation_assets.evaluation.training_sets import keys_of_pool
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.table import Phase
from curation_assets.sources.declaration import add_world_pool, load_pool, save_pool
from tests.support.command import curate
from tests.support.lineage_pools import finished_photos, webdataset_pool


@pytest.mark.parametrize(
    ("stored", "names", "phase", "expected"),
    [
        ((), None, None, True),
        ((), None, "shards", True),
        ((), None, "pool", False),
        ((), ["signals/clip_score"], None, True),
        ((), ["raw/samples", "fused/sieve_clip"], None, False),
        (("signals/clip_score",), ["signals/clip_score"], None, False),  # maybe stale, maybe not: no libraries yet
        (("signals/clip_score",), None, None, True),
        (None, None, None, False),
    ],
)
def test_libraries_of_models_are_loaded_early_where_a_run_is_sure_to_need_them(
    tmp_path: Path,
    stored: Collection[str] | None,
    names: list[str] | None,
    phase: Phase | None,
    expected: bool,
) -> None:
    """A second run, which computes nothing, must not pay for them."""
    settings = Settings(home=tmp_path, profile=load_profile("embedded"), threads=1)
    add_world_pool(settings, "scenes", size=8, seed=1, shard_size=4)
    ctx = PoolContext.open(settings, "scenes")
    declared = tables_of(ctx)
    for name in declared if stored is None else stored:
        folder = ctx.store.asset_path(name) / "shard=scenes-000000"
        folder.mkdir(parents=True)
        (folder / "data.parquet").touch()
    assert _computes_models(ctx, declared, names, phase) is expected


def test_tables_are_chosen_by_dagsters_selections(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path, shards=1)
    tables = tables_of(PoolContext.open(settings, "photos"))

    def selected(*wanted: str) -> set[str]:
        found = select_tables(settings, "photos", tables, wanted)
        assert found == [name for name in tables if name in found], "inputs first"
        return set(found)

    raw = {"raw/registered_shards", "raw/downloads", "raw/samples"}
    assert selected("raw/samples") == {"raw/samples"}
    assert selected("+raw/samples") == raw
    assert selected("1+raw/samples") == set(tables["raw/samples"].inputs) | {"raw/samples"}
    assert selected("filtered/icc+", "raw/samples") >= {"raw/samples", "filtered/subsets"}
    assert selected("tag:policy=icc") == {"filtered/icc", "filtered/icc_cut"}
    assert selected("tag:stage=raw and tag:grain=shard") == raw | {"raw/provenance"}
    for wrong, sentence in {
        "raw/smples": "no table 'raw/smples'; did you mean raw/samples",
        "+icc": "no table 'icc'; did you mean signals/icc, filtered/icc",
        "tag:policy=no": "selects no table of pool 'photos'",
        "all of it": "neither a table of pool 'photos' nor a selection such as",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            selected(wrong)


def test_what_is_not_made_yet_is_named_with_what_makes_it(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path, shards=1)
    call = ["run", "photos", "--home", str(settings.home), "--table"]
    refused = curate(*call, "raw/samples")
    assert refused.exit_code == 1
    assert "raw/samples reads raw/registered_shards, raw/downloads, not made yet" in " ".join(refused.stderr.split())
    assert "`curate run photos --table +raw/samples --home" in " ".join(refused.stderr.split())
    made = curate(*call, "+raw/samples")
    assert made.exit_code == 0
    (query,) = [line.removeprefix("Tables ") for line in made.stdout.splitlines() if line.startswith("Tables ")]
    shown = subprocess.run(query, shell=True, capture_output=True, text=True, check=True)  # as a person pastes it
    assert "sample_id" in shown.stdout
    assert PoolContext.open(settings, "photos").store.partitions("raw/samples") == ["photos-000000"]


def test_samples_that_cannot_be_chosen_are_counted_by_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ctx = finished_photos(tmp_path)
    rows = ctx.store.read("raw/samples", shard := ctx.store.partitions("raw/samples")[0])
    first = pl.int_range(pl.len()) < 2
    status = pl.when(first).then(pl.lit("failed")).otherwise("status").alias("status")
    reason = pl.when(first).then(pl.lit("image_empty")).otherwise("reason").alias("reason")
    ctx.store.rewrite("raw/samples", rows.with_columns(status.cast(rows["status"].dtype), reason), shard)
    _show_samples(ctx)
    total = ctx.store.scan("raw/samples").select(pl.len()).collect().item()
    usable = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").select(pl.len()).collect().item()
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"Samples {total}: {usable} to choose from, "), shown
    assert "failed (image_empty 2" in shown


@pytest.mark.parametrize(
    ("options", "text", "is_warning"),
    [
        ({"downstream": False}, None, False),
        ({"downstream": True}, "it has no evaluation set", True),
        ({"downstream": True, "evaluation_set": "split:0.3"}, "training sets each; `curate evaluate compare", True),
    ],
)
def test_a_table_states_at_the_end_of_a_run_what_was_trained(
    options: dict[str, Any], text: str | None, is_warning: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What `Shown.ending` of a table gives is written where it belongs: facts on stdout, warnings on stderr."""
    settings = webdataset_pool(tmp_path)
    pool = load_pool(settings, "photos")
    save_pool(settings, replace(pool, options=replace(pool.options, **options)))
    ctx = PoolContext.open(settings, "photos")
    ending = tables_of(ctx)["downstream/report"].shown.ending
    assert ending is not None
    found = ending(ctx)
    assert (None if found is None else found.is_warning) == (None if text is None else is_warning)
    capsys.readouterr()
    _show_endings(ctx)
    written, warned = capsys.readouterr()
    assert text is None or text in (warned if is_warning else written).replace("\n", " ")
    assert text is not None or (written, warned) == ("", "")
    assert (warned == "") != is_warning


def test_models_are_counted_that_were_trained(tmp_path: Path) -> None:
    """Of a training set that is too small, a run has no row; of one that is not computed, there is none."""
    settings = webdataset_pool(tmp_path)
    pool = load_pool(settings, "photos")
    options = replace(pool.options, downstream=True, evaluation_set="split:0.3")
    save_pool(settings, replace(pool, options=options))
    ctx = PoolContext.open(settings, "photos")
    first, *others = trainers_of(ctx)
    keys = keys_of_pool(ctx)
    for key, rows in zip(keys, (1, 0, 2), strict=False):
        run = pl.DataFrame({"metric": ["acc1"] * rows, "value": [0.5] * rows})
        ctx.store.write(f"downstream/{first}_runs", run, key, code_version="1")
    ending = tables_of(ctx)["downstream/report"].shown.ending
    assert ending is not None
    found = ending(ctx)
    assert found is not None
    counts = ", ".join([f"{first} 2", *(f"{name} 0" for name in others)])
    assert found.text.startswith(f"Models   {counts}, of {len(keys)} training sets each; ")
    assert not found.is_warning

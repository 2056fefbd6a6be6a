"""The section "Where it comes from" of the report."""

from pathlib import Path

import polars as pl

from curation_assets.audit.ledger import ledger_policies
from curation_assets.core.table_names import PROVENANCE
from curation_assets.outputs.report import pictures
from curation_assets.outputs.report.origins import origins_of
from tests.support.lineage_pools import finished_photos


def test_the_section_has_what_a_count_of_the_tables_gives(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path / "home")
    shown = origins_of(ctx)
    assert shown is not None
    groups = {group["title"]: group for group in shown["groups"]}
    rows = ctx.store.scan(PROVENANCE).collect()
    policies = ledger_policies(ctx.store)
    kept = {}
    for name in policies:
        ledger = ctx.store.scan(f"filtered/{name}").collect()
        place = ledger.filter(pl.col("verdict") == "kept").select("shard", "source_row")
        kept[name] = rows.join(place, on=["shard", "source_row"], how="semi")
    languages = groups["Languages of the captions"]
    assert languages["columns"][0] == "rows of the pool"
    assert sorted(languages["columns"][1:]) == policies
    expected = dict(rows["language"].value_counts().iter_rows())
    for language, (of_pool, *of_policies) in languages["rows"]:
        code = None if language == "unknown" else language
        assert of_pool == expected.pop(code)
        for name, count in zip(languages["columns"][1:], of_policies, strict=True):
            assert count == kept[name].filter(pl.col("language").eq_missing(code)).height
    assert expected == {}
    domains = groups["Domains of kept rows"]
    for domain, counts in domains["rows"]:
        assert counts == [kept[name].filter(pl.col("domain") == domain).height for name in domains["columns"]]
    assert groups["Signals of owners on training and licences"]["rows"] == []
    pictures = [group["picture"] for group in groups.values() if group["picture"] is not None]
    assert pictures
    assert all(one.startswith("data:image/png") for one in pictures)


def test_a_pool_without_a_ledger_has_no_section(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path / "home")
    for name in ledger_policies(ctx.store):
        ctx.store.remove(f"filtered/{name}")
    assert origins_of(ctx) is None


def test_a_chart_has_every_series_however_many_there_are() -> None:
    names = [f"policy {number}" for number in range(9)]
    counts = pictures.counts_figure(["a", "b"], {"rows": [9, 9], **{name: [1, 2] for name in names}})
    values = pictures.histogram_figure({name: pl.Series([0.1, 0.2]) for name in names}, "value")
    rows = {"benchmark": names, "scorer": "icc", "similarity": None, "standardised": False, "spearman": 0.5}
    ratings = pl.DataFrame({**rows, "spearman_low": 0.4, "spearman_high": 0.6}, schema_overrides={"similarity": str})
    for figure in (counts, values, pictures.agreement_figure(ratings)):
        _, labels = figure.axes[0].get_legend_handles_labels()
        assert [label.partition(" (")[0] for label in labels if label != "rows"] == names
    drawn = {(line.get_color(), line.get_marker()) for line in counts.axes[0].lines}
    assert len(drawn) == len(names)

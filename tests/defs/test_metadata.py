"""What Dagster's UI shows beside tables: descriptions, columns, plots."""

from pathlib import Path

import duckdb
import polars as pl
import pytest

from curation_assets.core.settings import Settings
from curation_assets.definitions import build_definitions
from curation_assets.defs.assets import pool_assets
from curation_assets.defs.metadata import COLUMNS, PAPERS, check_result, column_schema, described
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import ENOUGH_SUCCEEDED, CheckResult, ShardResult, TableResult, checks_of
from curation_assets.methods import all_methods
from curation_assets.outputs.report.previews import INLINE_CHARACTERS, plot_of
from curation_assets.sources.all_options import PoolOptions
from curation_assets.stores.catalog import rebuild_catalog
from tests.support.lineage_pools import bring_up_to_date, webdataset_pool


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return webdataset_pool(tmp_path_factory.mktemp("home"), shards=1)


def test_descriptions_link_the_papers_that_they_cite() -> None:
    text = "One row. Source: DataComp (Gadre et al. 2023) §3.2 (ICC §5)."
    assert described(text) == (
        "One row. Source: DataComp ([Gadre et al. 2023](https://arxiv.org/abs/2304.14108)) §3.2 "
        "([ICC §5](https://arxiv.org/abs/2403.01306))."
    )
    script = "One row.\n\n```sql\nselect 1 -- Gadre et al. 2023\n```"
    assert described(script) == script


def test_everything_that_the_ui_lists_says_what_it_is(settings: Settings) -> None:
    """In a sentence: of assets, their checks, jobs, sensors and schedules."""
    defs = build_definitions(settings)
    graph, repository = defs.resolve_asset_graph(), defs.get_repository_def()
    found = {key.to_user_string(): graph.get(key).description for key in graph.get_all_asset_keys()}
    found |= {str(key): graph.get_check_spec(key).description for key in graph.asset_check_keys}
    listed = (*repository.get_all_jobs(), *repository.sensor_defs, *repository.schedule_defs)
    found |= {one.name: one.description for one in listed if one.name != "__ASSET_JOB"}
    assert len(found) > len(tables_of(PoolContext.open(settings, "photos")))
    assert [name for name, words in found.items() if not words or words[0].islower()] == []


def test_a_check_that_passes_names_shards_with_too_few_rows(settings: Settings) -> None:
    table = tables_of(ctx := PoolContext.open(settings, "photos"))["raw/samples"]
    shards = [ShardResult(table.name, "a"), ShardResult(table.name, "b", warnings=("only 0.0% of the rows",))]
    (check,) = (one for one in checks_of(table) if one.name == ENOUGH_SUCCEEDED)
    shown = check_result(ctx, CheckResult(check, {}), TableResult(table, shards))
    assert shown.passed
    assert shown.description == "the pool as a whole passes, 1 of 2 shards do not: b"


def test_every_method_of_a_paper_links_it() -> None:
    """Cited is a name with a year, or one of PAPERS; others say what they are."""
    without = [one.name for one in all_methods().values() if "](http" not in described(one.source)]
    # this project's rules, or a model that the operator names
    own = {"descriptive", "image_kind", "nsfw", "personal_data", "watermark", "word_count"}
    cleanlab = {"image_aspect", "image_dark", "image_entropy", "image_light"}  # software without a paper
    assert set(without) == own | cleanlab
    assert all(link.startswith("https://") for link in PAPERS.values())


def test_units_name_only_the_bounds_that_there_are(settings: Settings) -> None:
    methods = all_methods()
    assert methods["clip_score"].unit_and_bounds == "cosine, in [-1, 1]"
    assert "inf" not in methods["aesthetic"].unit_and_bounds
    for table in tables_of(PoolContext.open(settings, "photos")).values():
        assert "inf]" not in table.description, table.name


def test_columns_have_types_and_meanings() -> None:
    frame = pl.DataFrame(
        {"sample_id": ["a"], "verdict": pl.Series(["kept"], dtype=pl.Enum(["kept", "dropped"])), "other": [1.5]}
    )
    columns = [(column.name, column.type, column.description) for column in column_schema(frame).columns]
    assert columns == [
        ("sample_id", "String", COLUMNS["sample_id"]),
        ("verdict", "Enum", COLUMNS["verdict"]),
        ("other", "Float64", None),
    ]


def test_signals_and_verdicts_say_which_columns_they_come_from(settings: Settings) -> None:
    tables = tables_of(PoolContext.open(settings, "photos"))
    sieve, verdicts = (tables[name].shown.column_lineage for name in ("signals/sieve", "filtered/sieve_clip"))
    assert sieve is not None
    assert verdicts is not None
    assert sieve["value"] == [("raw/samples", "caption"), ("signals/generated_captions", "generated_captions")]
    assert verdicts["value"] == [("fused/sieve_clip", "quality")]
    for table in tables.values():
        sources = {source for origins in (table.shown.column_lineage or {}).values() for source, _ in origins}
        assert sources <= set(table.inputs), table.name


def test_a_histogram_is_shown_in_place_and_holds_every_value() -> None:
    """A bin that holds the most values is a full bar, an empty one a blank; each state has its line."""
    rng_values = [index / 1000 for index in range(1000)]
    name, shown = plot_of("signals/icc", pl.DataFrame({"value": [*rng_values, None, float("nan")]})) or ("", "")
    assert name == "values of icc"
    assert len(shown) < INLINE_CHARACTERS
    bars, figures = shown.split("\n\n")
    assert bars.removeprefix("`").startswith("█" * 39)  # uniform values
    assert (bars.endswith("` 1,000 values"), figures) == (True, "smallest 0, median 0.4995, largest 0.999")
    verdicts = pl.DataFrame({"verdict": ["kept", "kept", "dropped", "failed"], "value": [0.9, 0.8, 0.1, None]})
    name, shown = plot_of("filtered/icc", verdicts) or ("", "")
    assert name == "values by verdict of icc"
    kept, dropped, figures = shown.split("\n\n")
    assert (kept.count("█"), kept.endswith(" 2 kept"), dropped.count("█")) == (2, True, 1)
    assert figures.startswith("smallest 0.1")


@pytest.mark.parametrize("values", [[1.0, 1.0000000000000002], [-1e308, 1e308], [0.3], [0.0, 5e-324]])
def test_a_histogram_of_any_range_is_drawn(values: list[float]) -> None:
    """np.histogram finds no 40 bins in the first and the last, and no range in the second."""
    _, shown = plot_of("signals/icc", pl.DataFrame({"value": values})) or ("", "")
    assert f"{len(values)} values\n\nsmallest {values[0]:.4g}" in shown


def test_rows_by_state_are_a_table_in_place() -> None:
    reasons = [f"reason_{number:02d}" for number in range(12)]
    frame = pl.DataFrame({"status": ["kept"] * 20 + ["failed"] * 12, "reason": [None] * 20 + reasons})
    name, shown = plot_of("raw/samples", frame) or ("", "")
    assert name == "rows by state and reason"
    assert shown.splitlines()[2].startswith("| kept |  | 20 | ███")
    assert shown.splitlines()[-1] == "| others | | 5 | |"
    assert len(shown) < INLINE_CHARACTERS
    assert plot_of("raw/samples", frame.clear()) is None
    assert plot_of("signals/icc", pl.DataFrame({"value": [None, None]}, schema={"value": pl.Float64})) == (
        "values of icc",
        "no values",
    )


def test_owners_are_addresses_or_teams() -> None:
    assert PoolOptions(owners=("team:vision", "a.b@photos.example")).owners
    with pytest.raises(ValueError, match="owners must be e-mail addresses or read team:NAME, got 'vision'"):
        PoolOptions(owners=("vision",))


def test_queries_of_the_ui_run_as_they_stand(tmp_path: Path) -> None:
    """Of every table that has a view, under a name that SQL reads otherwise; of folders there is none."""
    settings = webdataset_pool(tmp_path, name="order", shards=1, per_shard=6)
    ctx = bring_up_to_date(settings, "order")
    queries = {}
    for asset in pool_assets(settings, "order"):
        metadata = asset.metadata_by_key[asset.key]
        if "query" in metadata:
            queries["/".join(asset.key.path[1:])] = str(metadata["query"].value).strip("`")
    with duckdb.connect(str(rebuild_catalog(tmp_path)), read_only=True) as connection:
        stored = {name for name in queries if ctx.store.manifest(name) or ctx.store.partitions(name)}
        assert {"raw/samples", "signals/icc", "filtered/icc"} <= stored
        for name in stored:
            connection.sql(queries[name]).fetchall()
    assert "filtered/subsets" not in queries
    assert "downstream/report" not in queries

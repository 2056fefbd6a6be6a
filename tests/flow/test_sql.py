"""SQL models: rules of the files, order, version, lineage, tests of the header, and numbers against a numpy twin."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.core.settings import load_settings
from curation_assets.core.stages import BackwardsReadError
from curation_assets.flow import scaled
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import config_of
from curation_assets.flow.graph import tables_of
from curation_assets.flow.sql import (
    SqlModel,
    SqlModelError,
    broken_tests,
    load_models,
    parse_model,
    run_model,
    run_on_disk,
    with_defaults,
)
from curation_assets.sources.declaration import add_world_pool
from curation_assets.stores.content_hash import frame_sha256
from tests.support.sql_tables import connection_of, samples, signal

MODELS = load_models()
SAMPLES = {"shard": "VARCHAR", "source_row": "BIGINT", "sample_id": "VARCHAR", "status": "VARCHAR", "reason": "VARCHAR"}
SIGNAL = {"shard": "VARCHAR", "source_row": "BIGINT", "sample_id": "VARCHAR", "value": "DOUBLE", "reason": "VARCHAR"}
NAMES = ("clip_score", "icc", "sieve")
SCHEMAS = {
    "raw.samples": SAMPLES,
    **{f"signals.{name}": SIGNAL for name in NAMES},
    **{f"fused.{name}_range": {"low": "DOUBLE", "high": "DOUBLE"} for name in NAMES},
}

CC = "conceptual_captions"
SCHEMAS |= {f"signals.{name}": SIGNAL for name in (CC, f"{CC}_image", f"{CC}_overlap")}
SCHEMAS[f"signals.{CC}_transform"] = {**SIGNAL, "text": "VARCHAR", "concepts": "VARCHAR[]"}

TEXT = """-- Grain: one row per sample.
-- test: unique sample_id
-- test: not_null quality
-- test: range quality 0 1
-- test: accepted_values verdict kept dropped
with scores as (select sample_id, value from signals.icc),
final as (select sample_id, value as quality, 'kept' as verdict from scores)
select * from final
"""


def min_max(values: np.ndarray) -> np.ndarray:
    """SIEVE §3.3: linear map of a pool's values to [0, 1], .5 for a constant signal; NaN stays NaN."""
    low, high = np.nanmin(values), np.nanmax(values)
    return np.where(np.isnan(values), np.nan, 0.5) if low == high else (values - low) / (high - low)


def model_of(text: str = TEXT, stage: str = "fused", name: str = "m") -> SqlModel:
    return parse_model(text, stage=stage, name=name)


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.key)
def test_every_model_fits_real_duckdb(model: SqlModel) -> None:
    empty = {key: pl.DataFrame(schema=dict.fromkeys(columns, pl.String)) for key, columns in SCHEMAS.items()}
    with connection_of(empty) as connection:
        for key, columns in SCHEMAS.items():
            casts = ", ".join(f"{column}::{kind} as {column}" for column, kind in columns.items())
            connection.execute(f"create or replace table {key} as select {casts} from {key}")
        frame = run_model(model, connection)
    assert frame.height == 0
    assert tuple(frame.columns) == model.columns
    assert (frame.schema["quality"], frame.schema["reason"]) == (pl.Float64, pl.String)
    assert broken_tests(model, frame) == []


def test_sieve_clip_worked_example() -> None:
    """formulas.md §13.7."""
    tables = {
        "raw.samples": samples(["kept"] * 4, [None] * 4),
        "signals.sieve": signal([-0.1, 0.2, 0.7, 0.4]),
        "signals.clip_score": signal([0.10, 0.35, 0.20, 0.30]),
    }
    with connection_of(tables) as connection:
        frame = run_model(MODELS["fused.sieve_clip"], connection)
    assert frame["quality"].to_list() == pytest.approx([0, 0.6875, 0.7, 0.7125])
    assert frame["reason"].null_count() == 4


def test_alpha_weighs_clip_in_the_fusion(tmp_path: Path) -> None:
    """SIEVE §3.3: (1 − α) · SIEVE + α · CLIP on the signals of formulas.md §13.7."""
    model = MODELS["fused.sieve_clip"]
    tables = {
        "raw.samples": samples(["kept"] * 4, [None] * 4),
        "signals.sieve": signal([-0.1, 0.2, 0.7, 0.4]),
        "signals.clip_score": signal([0.10, 0.35, 0.20, 0.30]),
    }
    expected = {0.0: [0, 0.375, 1, 0.625], 1.0: [0, 1, 0.4, 0.8], 0.25: [0, 0.53125, 0.85, 0.66875]}
    for alpha, quality in expected.items():
        with connection_of(tables) as connection:
            frame = run_model(model, connection, {"alpha": alpha})
        assert frame["quality"].to_list() == pytest.approx(quality)
    for wrong, message in (({"beta": 1}, r"has no parameters \['beta'\]"), ({"alpha": "x"}, "must be a number")):
        with pytest.raises(SqlModelError, match=message):
            with_defaults(model, wrong)  # type: ignore[arg-type]
    settings = load_settings(tmp_path, "embedded")
    add_world_pool(settings, "tiny", size=10, seed=0, options={"recipes": {"sieve_clip": {"alpha": 0.25}}})
    ctx = PoolContext.open(settings, "tiny")
    assert config_of(ctx, tables_of(ctx)["fused/sieve_clip"], None)["table"] == {"alpha": 0.25}
    add_world_pool(settings, "wrong", size=10, seed=0, options={"recipes": {"sieve": {"alpha": 0.25}}})
    with pytest.raises(ValueError, match="option recipes has no recipe 'sieve'; did you mean 'sieve_clip'"):
        tables_of(PoolContext.open(settings, "wrong"))


def test_parameters_stand_in_header_and_statement() -> None:
    text = "-- Grain: x\n{}with final as (select a.b + $p as c from raw.a as a)\nselect * from final"
    assert parse_model(text.format("-- parameter: p -.5\n"), stage="fused", name="m").parameters == {"p": -0.5}
    for header, message in (("", "in the header"), ("-- parameter: p much\n", "NAME NUMBER")):
        with pytest.raises(SqlModelError, match=message):
            parse_model(text.format(header), stage="fused", name="m")


@pytest.mark.parametrize(
    ("name", "signals", "weights"),
    [
        ("sieve_clip", ("sieve", "clip_score"), (0.5, 0.5)),
        ("icc_clip", ("icc", "clip_score"), (0.5, 0.5)),
        ("icc_sieve_clip", ("icc", "sieve", "clip_score"), (1 / 3, 1 / 3, 1 / 3)),
    ],
)
def test_recipes_equal_their_numpy_twin(name: str, signals: tuple[str, ...], weights: tuple[float, ...]) -> None:
    rng = np.random.default_rng(0)
    columns = {key: rng.normal(size=50) for key in signals}
    columns[signals[0]][3] = np.nan
    columns[signals[1]][:] = np.where(np.arange(50) == 7, np.nan, 0.25)  # a constant signal with a gap
    tables = {"raw.samples": samples(["kept"] * 50, [None] * 50)}
    for key, values in columns.items():
        listed = [None if np.isnan(v) else float(v) for v in values]
        tables[f"signals.{key}"] = signal(listed, ["not_a_number" if v is None else None for v in listed])
    model = MODELS[f"fused.{name}"]
    with connection_of({key: frame.sample(fraction=1, shuffle=True, seed=1) for key, frame in tables.items()}) as con:
        frame = run_model(model, con)
    expected = sum(weight * min_max(column) for weight, column in zip(weights, columns.values(), strict=True))
    np.testing.assert_allclose(frame["quality"].fill_null(np.nan).to_numpy(), expected, atol=1e-12)
    assert frame["reason"][3] == f"{signals[0]}:not_a_number"
    assert frame["reason"][7] == f"{signals[1]}:not_a_number"
    assert frame["reason"].null_count() == 48
    assert frame["source_row"].to_list() == list(range(50))
    assert broken_tests(model, frame) == []


def test_rows_are_conserved_with_their_reasons() -> None:
    """A row that raw dropped, a duplicate id, and a signal without the row: all stay, none multiplies."""
    raw = samples(["kept", "dropped", "failed", "kept"], [None, "duplicate_sample_id", "download_http_404", None])
    raw = raw.with_columns(pl.Series("sample_id", ["a" * 32, "a" * 32, "b" * 32, "c" * 32]))
    upstream = [None, "upstream_dropped:duplicate_sample_id", "upstream_failed:download_http_404", None]
    values = [0.1, None, None, 0.9]
    tables = {
        "raw.samples": raw,
        "signals.sieve": signal(values, upstream).with_columns(raw["sample_id"]),
        "signals.clip_score": signal(values, upstream).with_columns(raw["sample_id"])[:3],
    }
    with connection_of(tables) as connection:
        frame = run_model(MODELS["fused.sieve_clip"], connection)
    assert frame["sample_id"].to_list() == raw["sample_id"].to_list()
    assert frame["quality"].is_null().to_list() == [False, True, True, True]
    assert frame["reason"].to_list() == [*[None, *upstream[1:3]], "clip_score:no_row"]


def test_lineage_reaches_the_sources() -> None:
    lineage = MODELS["fused.sieve_clip"].column_lineage
    ranges = [("fused/sieve_range", "high"), ("fused/sieve_range", "low")]
    assert lineage["sieve_score"] == [*ranges, ("signals/sieve", "value")]
    assert {table for table, _ in lineage["quality"]} >= {"signals/clip_score", "signals/sieve"}
    assert lineage["sample_id"] == [("raw/samples", "sample_id")]
    assert ("raw/samples", "reason") in lineage["reason"]
    assert lineage["clip_score"] == [
        ("fused/clip_score_range", "high"), ("fused/clip_score_range", "low"), ("signals/clip_score", "value")
    ]  # fmt: skip


SCALED = """-- Grain: one row per row of raw.samples.
-- test: unique shard source_row
with final as (
    select
        * exclude (reason),
        .5 * sieve_score + .5 * clip_score as quality,
        reason
    from fused.scaled
)
select * from final
"""


def test_a_signal_is_added_to_a_recipe_in_one_line() -> None:
    added = SCALED.replace(".5 * sieve_score + .5 * clip_score", ".2 * icc_score + .4 * sieve_score + .4 * clip_score")
    assert sum(old != new for old, new in zip(SCALED.splitlines(), added.splitlines(), strict=True)) == 1
    model = model_of(added)
    assert model.columns[3:] == ("icc_score", "sieve_score", "clip_score", "quality", "reason")
    assert {"signals.icc", "fused.icc_range", "signals.sieve", "raw.samples"} <= set(model.references)
    assert not any("scaled" in reference for reference in model.references)
    tables = {
        "raw.samples": samples(["kept"] * 3, [None] * 3),
        "signals.icc": signal([0.0, None, 1.0], [None, "empty_caption", None]),
        "signals.sieve": signal([0.0, 1.0, 0.5]),
        "signals.clip_score": signal([None, None, 0.3], ["no_image", "no_image", None]),
    }
    with connection_of(tables) as connection:
        frame = run_model(model, connection)
        assert connection.sql("select sieve_score from fused.sieve_scaled").fetchall() == [(0.0,), (1.0,), (0.5,)]
        other = run_model(model_of(SCALED), connection)  # the same connection, another recipe: its own columns
    assert frame["reason"].to_list() == ["clip_score:no_image", "icc:empty_caption", None]
    assert frame["quality"].to_list() == pytest.approx([None, None, 0.2 * 1 + 0.4 * 0.5 + 0.4 * 0.5])
    assert other.columns[3:] == ["sieve_score", "clip_score", "quality", "reason"]
    assert other["reason"].to_list() == ["clip_score:no_image", "clip_score:no_image", None]


@pytest.mark.parametrize("change", ["none", "reversed", "a row less", "a row more", "other source rows"])
def test_rows_are_found_by_their_place_in_the_source_in_whatever_order_they_lie(change: str) -> None:
    values = [0.0, None, 1.0, 0.25, 0.75]
    sieve = signal(values, [None if value is not None else "no_caption" for value in values])
    changed = {
        "none": sieve,
        "reversed": sieve.reverse(),
        "a row less": sieve[:-1],
        "a row more": pl.concat([sieve, sieve[:1].with_columns(source_row=pl.lit(9, pl.Int64))]),
        "other source rows": sieve.with_columns(source_row=pl.col("source_row") + 1),
    }[change]
    tables = {
        "raw.samples": samples(["kept"] * 4 + ["failed"], [None] * 4 + ["download_http_404"]),
        "signals.sieve": changed,
        "signals.clip_score": signal([0.5, 0.5, 0.0, 1.0, None], [None] * 4 + ["no_image"]),
    }
    with connection_of(tables) as connection:
        frame = run_model(model_of(SCALED), connection)
    given = dict(changed.select("source_row", "value").iter_rows())
    assert frame["source_row"].to_list() == [0, 1, 2, 3, 4]
    assert frame["sieve_score"].to_list() == [given.get(row) for row in range(5)]
    reasons = ["sieve:no_row" if row not in given else None if given[row] is not None else "sieve:no_caption"
               for row in range(4)]  # fmt: skip
    assert frame["reason"].to_list() == [*reasons, "upstream_failed:download_http_404"]


def test_the_script_of_a_recipe_runs_by_itself() -> None:
    model = MODELS["fused.icc_sieve_clip"]
    tables = {"raw.samples": samples(["kept"] * 4, [None] * 4)}
    tables |= {f"signals.{name}": signal([0.1 * at, 0.2, 0.9, 0.4]) for at, name in enumerate(NAMES)}
    with connection_of(tables) as connection:
        expected = run_model(model, connection)
        *views, statement = model.script.split(";\n\n")
        for view in views:
            connection.execute(view)
        assert connection.sql(statement).pl().sort("source_row").equals(expected)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sieve_score", "seive_score", "no column 'seive_score'; did you mean 'sieve_score'"),
        (".5 * sieve_score + .5 * clip_score", "1.0", "names no score"),
        ("from fused.scaled", "from fused.scaled cross join fused.icc_range", "without a join"),
        ("-- test", "-- made for: nothing\n-- test", r"made for \['nothing'\]; planted kinds are mismatched"),
    ],
)
def test_wrong_use_of_scaled_signals_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(SqlModelError, match=message):
        model_of(SCALED.replace(old, new))


def test_a_view_counts_in_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = model_of(SCALED).code_version
    assert model_of(SCALED.replace("-- test", "-- made for: mismatched\n-- test")).code_version == before
    monkeypatch.setattr("curation_assets.flow.scaled._SIGNAL", scaled._SIGNAL.replace("then 0.5", "then 0.25"))
    assert model_of(SCALED).code_version != before


def test_references_columns_grain_and_tests_are_read() -> None:
    model = model_of()
    assert model.references == ("signals.icc",)
    assert model.columns == ("sample_id", "quality", "verdict")
    assert model.grain == "one row per sample."
    assert [str(test) for test in model.tests] == [
        "unique sample_id",
        "not_null quality",
        "range quality 0 1",
        "accepted_values verdict kept dropped",
    ]
    assert model.column_lineage["verdict"] == []


def test_a_recipe_applied_per_shard_says_so() -> None:
    assert not model_of().is_per_shard
    assert model_of(TEXT.replace("-- test: unique", "-- applied: per shard\n-- test: unique", 1)).is_per_shard
    with pytest.raises(SqlModelError, match="applied: per shard"):
        model_of(TEXT.replace("-- test: unique", "-- applied: daily\n-- test: unique", 1))


def test_version_ignores_comments_and_white_space_only() -> None:
    version = model_of().code_version
    spaced = TEXT.replace("with scores", "-- why\nWITH\n  scores").replace("value as", "value  /* unit */ as")
    assert model_of(spaced).code_version == version
    assert model_of(TEXT.replace("'kept' as", "'keep' as")).code_version != version
    assert model_of(TEXT.replace("value as quality", "value + 0 as quality")).code_version != version


PAIRS = """-- Grain: one row per row of the table.
-- test: unique shard source_row
with final as (select shard, source_row from signals.icc)
select * from final
"""


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(0, 4) | st.none()), max_size=6), st.booleans())
def test_rows_are_sorted_and_repeats_found_in_any_order(
    rows: list[tuple[str | None, int | None]], is_sorted: bool
) -> None:
    model = model_of(PAIRS)
    there = pl.DataFrame(rows, schema={"shard": pl.String, "source_row": pl.Int64}, orient="row")
    there = there.sort(there.columns) if is_sorted else there
    repeats = sum(rows.count(row) > 1 for row in rows)
    (test,) = model.tests
    assert test.broken(there).height == repeats
    assert len(broken_tests(model, there)) == (repeats > 0)
    found = run_model(model, connection_of({"signals.icc": there.with_columns(value=pl.lit(0.5))}))
    assert found.equals(there.sort(there.columns))


WHOLE = """-- Grain: one row per row of the table.
-- test: unique shard source_row
-- test: not_null total
-- test: range value 0 1
-- parameter: least .5
with counted as (
    select shard, source_row, value, list_value(sample_id, reason) as words,
    struct_pack(place := source_row, has_reason := reason is not null) as whereabouts,
    sum(source_row) over () as total, count(*) over (partition by reason) as alike, value > $least as is_high
    from signals.icc
), final as (select * from counted)
select * from final;
"""


@pytest.mark.parametrize("rows", [0, 1, 250])
def test_rows_of_a_whole_pool_come_part_by_part_and_are_the_same_table(rows: int, tmp_path: Path) -> None:
    """Types and content hash are those of one frame; a row that breaks a test is found in whichever part it is."""
    model = model_of(WHOLE)
    there = signal([*(at / 250 for at in range(rows)), None], [*[None] * rows, "no_image"])[: rows and rows + 1]
    shards = pl.Series("shard", [f"scenes-{at % 3:06d}" for at in range(there.height)], dtype=pl.String)
    connection = connection_of({"signals.icc": there.with_columns(shards)})
    frame = run_model(model, connection, {"least": 0.25})
    lazy = run_on_disk(model, connection, tmp_path, {"least": 0.25}, part_rows=100)
    assert lazy.collect().equals(frame)
    assert frame_sha256(lazy) == frame_sha256(frame)
    assert [path.name for path in sorted(tmp_path.iterdir())][1:] == [
        f"part-{at:06d}.parquet" for at in range(1, 1 + -(-there.height // 100))
    ]
    assert broken_tests(model, lazy) == broken_tests(model, frame) == []
    bad = [
        frame.with_columns(source_row=frame["source_row"] % 100),
        frame.with_columns(pl.when(pl.col("source_row") == 7).then(2.0).otherwise("value").alias("value")),
    ]
    found = [broken_tests(model, one) for one in bad]
    assert [broken_tests(model, one.lazy()) for one in bad] == found
    assert any(found) == (rows > 7)


def test_header_tests_find_the_rows_that_break_them() -> None:
    good = pl.DataFrame({"sample_id": ["a", "b"], "quality": [0.0, 1.0], "verdict": ["kept", None]})
    assert broken_tests(model_of(), good) == []
    bad = pl.DataFrame(
        {"sample_id": ["a", "a", "b"], "quality": [float("nan"), None, 1.5], "verdict": ["kept", "odd", ""]}
    )
    assert [test.broken(bad).height for test in model_of().tests] == [2, 1, 2, 2]
    assert "range quality 0 1 is broken by 2 rows, such as" in broken_tests(model_of(), bad)[2]
    with pytest.raises(SqlModelError, match=r"names \['verdict'\]"):
        broken_tests(model_of(), good.drop("verdict"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("-- Grain: one row per sample.\n", "", "first comment must state the grain"),
        ("-- test: unique sample_id", "-- test: uniqe sample_id", "no test 'uniqe'"),
        ("-- test: unique sample_id", "-- test: unique nothing", "which is no output column"),
        ("range quality 0 1", "range quality 0", "takes 3 to 3 words"),
        ("range quality 0 1", "range quality 0 one", "two numbers"),
        ("select * from final", "select sample_id from final", "must end with 'select \\* from final'"),
        ("signals.icc", "icc", "named stage.name"),
        ("signals.icc", "read_parquet('x')", "named stage.name"),
        ("select * from final", "select * from final; drop table t", "expected one select"),
        ("with scores", "wth scores", "not a DuckDB statement|expected one select"),
        ("sample_id, value from signals.icc", "* from signals.icc", "hides its columns|cannot be traced"),
        ("signals.icc", "fused.m", "reads itself"),
    ],
)
def test_broken_files_are_refused(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(SqlModelError, match=message):
        model_of(TEXT.replace(old, new, 1) if old != "select * from final" else TEXT.replace(old, new))


def test_reading_against_the_flow_is_refused() -> None:
    with pytest.raises(BackwardsReadError, match="signals/m reads filtered/icc"):
        model_of(TEXT.replace("signals.icc", "filtered.icc"), stage="signals")
    with pytest.raises(SqlModelError, match="must be a stage"):
        model_of(stage="marts")


def write_models(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = root / "fused" / f"{name}.sql"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


def test_models_come_after_what_they_read(tmp_path: Path) -> None:
    reading = {"a": "fused.b", "b": "fused.c", "c": "signals.icc"}
    write_models(tmp_path, {name: TEXT.replace("signals.icc", source) for name, source in reading.items()})
    assert list(load_models(tmp_path)) == ["fused.c", "fused.b", "fused.a"]
    write_models(tmp_path, {"c": TEXT.replace("signals.icc", "fused.a")})
    with pytest.raises(SqlModelError, match="circle"):
        load_models(tmp_path)

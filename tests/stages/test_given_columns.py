"""Columns that a pool brings along: no model of their role is loaded, and a gap has a reason."""

import json
from pathlib import Path

import polars as pl
import pytest

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.identity import sample_id_of
from curation_assets.sources.declaration import add_pool
from curation_assets.stages.signals.given_columns import read_given

CAPTIONS = ["a red kite over the beach", "the meaning of success", "a dog in the snow", "a dog on a sofa"]
GIVEN = {0: ["a kite in the sky", "a dog"], 1: ["a kite in the sky", "a dog"], 2: ["a dog"]}


def pool_of(home: Path, **given: str) -> PoolContext:
    """Captions alone, with no captioner and no detector anywhere."""
    settings = load_settings(home, "embedded")
    pl.DataFrame({"caption": CAPTIONS}).write_csv(home / "captions.csv")
    roles = {"captioner": "path:/nowhere", "object_detector": "path:/nowhere"}
    options = {"given": given, "distil": False, "methods": ["object_word_quality"]}
    add_pool(settings, "texts", home / "captions.csv", columns={"url": None}, roles=roles, options=options)
    return PoolContext.open(settings, "texts")


def test_sieve_reads_captions_that_the_pool_brings(tmp_path: Path) -> None:
    rows = [(CAPTIONS[i], json.dumps(texts)) for i, texts in GIVEN.items()]
    pl.DataFrame(rows, schema=["caption", "generated_captions"], orient="row").write_csv(tmp_path / "given.csv")
    ctx = pool_of(tmp_path, generated_captions=str(tmp_path / "given.csv"))
    run_with_upstream(ctx, "signals/sieve")
    assert tables_of(ctx)["signals/generated_captions"].needs.roles == ()
    kept = ctx.store.scan("signals/generated_captions").collect()
    assert kept["generated_captions"].to_list() == [*GIVEN.values(), None]
    assert kept["reason"].to_list() == [None, None, None, "not_given"]
    scored = ctx.store.scan("signals/sieve").collect()
    assert scored["value"][:2].to_list() == pytest.approx([0.7098, 0.1267], abs=2e-3)
    assert scored["reason"].to_list() == [None, None, None, "not_given"]
    # another file is another column: the table is computed anew
    tables = tables_of(ctx)
    table = tables["signals/generated_captions"]
    assert materialise_table(ctx, table, ctx.shards()[0], tables=tables).is_reused
    pl.DataFrame(rows[:1], schema=["caption", "generated_captions"], orient="row").write_csv(tmp_path / "given.csv")
    assert not materialise_table(ctx, table, ctx.shards()[0], tables=tables).is_reused


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "given.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"given\.parquet cannot be read .* put a whole copy of it in its place"):
        read_given(path, "generated_captions", pl.DataFrame({"sample_id": ["0" * 32], "url": [None]}))


def test_detections_of_the_user_take_the_detectors_place(tmp_path: Path) -> None:
    ids = [sample_id_of(None, text) for text in CAPTIONS]
    detections = pl.DataFrame({"uid": ids[::-1], "detected_objects": [["dog"], ["dog"], [], ["kite", "sea"]]})
    detections.write_parquet(tmp_path / "d.parquet")
    ctx = pool_of(tmp_path, detected_objects=str(tmp_path / "d.parquet"))
    run_with_upstream(ctx, "signals/object_word_quality")
    found = ctx.store.scan("signals/object_word_quality").collect()
    assert found["object_count"].to_list() == [2, 0, 1, 1]
    assert found["value"][1] == 0
    assert (found["value"].to_numpy()[[0, 2, 3]] > 0.5).all()


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="option given has no column 'quality'; known: "):
        tables_of(pool_of(tmp_path, quality="x.csv"))
    samples = pl.DataFrame({"sample_id": ["a" * 32], "source_row": [0], "url": ["http://x/1.jpg"], "status": ["kept"],
                            "reason": pl.Series([None], dtype=pl.String)})  # fmt: skip
    path = tmp_path / "f.jsonl"
    for rows, message in (
        ([{"caption": "a dog", "generated_captions": ["x"]}], "or caption and url"),
        ([{"sample_id": "a" * 32}], "expected generated_captions"),
        ([{"sample_id": "a" * 32, "generated_captions": [text]} for text in "xy"], "different generated_captions"),
        ([{"sample_id": "a" * 32, "generated_captions": {"a": 1}}], "must be List"),
    ):
        path.write_text("\n".join(json.dumps(row) for row in rows))
        with pytest.raises(ValueError, match=message):
            read_given(path, "generated_captions", samples)
    rows = [{"sample_id": "a" * 32, "generated_captions": ["x"]}] * 2
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert read_given(path, "generated_captions", samples)["generated_captions"].to_list() == [["x"]]

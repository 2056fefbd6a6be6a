"""The command as a person types it."""

from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from curation_assets.cli import app
from curation_assets.methods import all_methods
from tests.support.paths import SHARED_DATA

PHOTOS = SHARED_DATA / "photos"
CAPTIONS = SHARED_DATA / "captions"


def curate(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def test_methods_lists_every_method_with_its_unit() -> None:
    shown = curate("methods")
    assert shown.exit_code == 0
    for method in all_methods().values():
        assert method.name in shown.output


def test_score_icc_over_a_text_file_keeps_order_and_rows(tmp_path: Path) -> None:
    captions = ["a red kite over the sea", "", "the meaning of true happiness", "a red kite over the sea"]
    (tmp_path / "captions.txt").write_text("\n".join(captions) + "\n")
    result = curate("score", "icc", tmp_path / "captions.txt", "--out", tmp_path / "scores.tsv")
    assert result.exit_code == 0, result.output
    scored = pl.read_csv(tmp_path / "scores.tsv", separator="\t")
    assert scored["caption"].fill_null("").to_list() == captions
    icc = scored["icc"].cast(pl.Float64, strict=False).to_list()
    assert icc[0] == pytest.approx(icc[3])
    assert icc[0] > icc[2], "a thing that can be seen is more concrete than one that cannot"


def test_score_sieve_with_given_captions_uses_the_sentence_encoder_only(tmp_path: Path) -> None:
    pl.DataFrame(
        {
            "caption": ["a dog on the beach", "quarterly tax report"],
            "generated_captions": [["a dog runs on a beach", "a cat"], ["a dog runs on a beach", "a cat"]],
        }
    ).write_parquet(tmp_path / "pairs.parquet")
    result = curate("score", "sieve", tmp_path / "pairs.parquet", "--out", tmp_path / "out.parquet")
    assert result.exit_code == 0, result.output
    value = pl.read_parquet(tmp_path / "out.parquet")["sieve"].to_list()
    assert value[0] > 0.7 > 0.3 > value[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("score", "clipscore", "x.txt", "--out", "y.csv"), "did you mean 'clip_score'"),
        (("run", "nosuchpool"), "no pool 'nosuchpool'"),
        (("pool", "add", "mine", "/no/such/place"), "/no/such/place"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    home = () if arguments[0] == "score" else ("--home", tmp_path)
    result = curate(*arguments, *home)
    assert result.exit_code == 1
    assert said in result.output.replace("\n", "")
    assert "Traceback" not in result.output


def test_real_photographs_run_as_a_pool_without_losing_a_row(tmp_path: Path) -> None:
    if not PHOTOS.is_dir():
        pytest.skip(f"{PHOTOS} is absent: the real photographs are not part of the project")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "000000.tar").symlink_to(PHOTOS / "000000.tar")
    home = tmp_path / "home"
    assert curate("pool", "add", "photos", tmp_path / "photos", "--home", home).exit_code == 0
    tables = ["raw/registered_shards", "raw/downloads", "raw/samples", "signals/clip_score", "signals/icc"]
    options = [part for table in tables for part in ("--table", table)]
    result = curate("run", "photos", *options, "--home", home)
    assert result.exit_code == 0, result.output
    work = home / "work" / "photos"
    samples = pl.read_parquet(work / "raw" / "samples" / "shard=photos-000000" / "data.parquet")
    assert samples.height == 500
    assert (samples["status"] == "kept").all()
    scores = pl.read_parquet(work / "signals" / "clip_score" / "shard=photos-000000" / "data.parquet")
    assert scores["value"].is_between(-1, 1).all()


def test_captions_only_pool_scores_text_and_says_why_images_cannot_be(tmp_path: Path) -> None:
    source = CAPTIONS / "alt_texts.parquet"
    if not source.is_file():
        pytest.skip(f"{source} is absent: the real captions are not part of the project")
    pl.read_parquet(source).head(60).select(pl.col("text").alias("caption")).write_csv(tmp_path / "captions.csv")
    home = tmp_path / "home"
    added = curate("pool", "add", "alt_texts", tmp_path / "captions.csv", "--home", home)
    assert added.exit_code == 0, added.output
    result = curate("run", "alt_texts", "--home", home)
    assert result.exit_code == 0, result.output
    work = home / "work" / "alt_texts" / "signals"
    icc = pl.read_parquet(work / "icc" / "shard=alt_texts-000000" / "data.parquet")
    assert icc["value"].drop_nulls().len() > 50
    clip = pl.read_parquet(work / "clip_score" / "shard=alt_texts-000000" / "data.parquet")
    assert clip["value"].drop_nulls().is_empty()
    assert set(clip["reason"]) <= {"no_image", *(reason for reason in icc["reason"] if reason)}

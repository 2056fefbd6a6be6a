"""The command as a person types it."""

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import typer

from curation_assets.cli.commands import entries, load
from curation_assets.methods import all_methods
from tests.support.command import curate
from tests.support.lineage_pools import finished_photos, jpeg, webdataset_pool, write_tar
from tests.support.paths import SHARED_DATA, shared

PHOTOS = SHARED_DATA / "photos"


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("score", "clipscore", "x.txt", "--out", "y.csv"), "did you mean 'clip_score'"),
        (("run", "nosuchpool"), "no pool 'nosuchpool'"),
        (("run", "nosuchpool"), "another home: --home or CURATION_HOME"),
        (("pool", "add", "mine", "/no/such/place"), "/no/such/place"),
    ],
)
def test_mistakes_are_answered_in_one_sentence(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    home = () if arguments[0] == "score" else ("--home", tmp_path)
    result = curate(*arguments, *home)
    assert result.exit_code == 1
    assert said in result.output.replace("\n", "")
    assert "Traceback" not in result.output


def test_a_method_that_looks_at_images_refuses_captions_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "captions.txt").write_text("a dog\na cat\n")
    code = (
        "import sys; from typer.testing import CliRunner; from curation_assets.cli import app; "
        "done = CliRunner().invoke(app, sys.argv[1:]); print(done.output); "
        "assert (done.exit_code, 'torch' in sys.modules) == (1, False), done.output"
    )
    words = ["score", "clip_score", str(tmp_path / "captions.txt"), "--out", str(tmp_path / "scores.csv")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "looks at images" in done.stdout
    assert "it has ['caption']" in done.stdout


@pytest.mark.parametrize(
    ("word", "meant"),
    [("explain", "icc explain"), ("lineage", "show lineage"), ("expln", "icc explain"), ("releas", "release")],
)
def test_an_unknown_command_names_the_nearest_of_any_group(word: str, meant: str) -> None:
    result = curate(word, "a dog")
    assert result.exit_code == 2
    assert f"No such command '{word}'. Did you mean '{meant}'?" in result.output


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("rel", {"release"}), ("release sh", {"show"}), ("release verify --js", {"--json"}), ("icc ex", {"explain"})],
)
def test_a_shell_completes_commands_and_options(typed: str, offered: set[str]) -> None:
    words = ["curate", *typed.split()]
    asked = {"_CURATE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    code = "import sys; sys.argv[0] = 'curate'; from curation_assets.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, **asked}
    )
    assert set(done.stdout.split()) == offered, done.stderr


#: Command → arguments that end before its option for a new file or folder, and the name of what lies there.
WRITES = {
    "score": (("icc", "captions.txt", "--out"), "a.tsv"),
    "show lineage": (("icc", "--graph"), "a.svg"),
    "drift freeze": (("photos", "--out"), "a.parquet"),
    "export": (("npy", "icc", "--out"), "folder"),
    "evaluate compare": (("photos", "--out"), "a.csv"),
    "annotate sample": (("photos", "--out"), "a.tsv"),
    "annotate benchmark": (("captions.txt", "--out"), "a.parquet"),
    "annotate merge": (("ratings.tsv", "--out"), "a.csv"),
    "annotate candidates": (("pairs.csv", "--out"), "a.tsv"),
    "pool word-weights": (("captions.txt", "--related-to", "captions.txt", "--out"), "a.parquet"),
    "icc train-bridge": (("captions.txt", "--profile", "p.yaml", "--out"), "folder"),
    "reward train": (("ranked.tsv", "--out"), "folder"),
    "takedown feed": (("--out",), "a.jsonl"),
    "mcp": (("--out",), "SKILL.md"),
    "evaluate clip": (("tars", "--scale", "tiny", "--devices", "0", "--out"), "folder"),
}
APPENDS = {"annotate rate", "annotate rank", "annotate judge"}  # to files of their own kind; others are refused


def test_every_command_with_an_output_path_is_tried() -> None:
    writing = set()
    for entry in entries():
        single = typer.Typer()
        single.command()(load(entry))
        options = {option for parameter in typer.main.get_command(single).params for option in parameter.opts}
        if options & {"--out", "--graph"}:
            writing.add(entry.name)
    assert writing == WRITES.keys() | APPENDS


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a small pool, up to its verdicts."""
    home = tmp_path_factory.mktemp("home")
    finished_photos(home)
    return home


@pytest.mark.parametrize("command", WRITES)
def test_what_lies_where_a_command_writes_stays(
    command: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "captions.txt").write_text("a red kite over the beach\na brown dog\n")
    (tmp_path / "pairs.csv").write_text("image,caption\na.jpg,a red kite\n")
    ratings = ("caption\trater\trating\ttime", "a dog\tann\t3\t2026-01-01T00:00:00+00:00")
    (tmp_path / "ratings.tsv").write_text("\n".join(ratings) + "\n")
    (tmp_path / "ranked.tsv").write_text("image\tcaption\trank\na.jpg\ta dog\t1\na.jpg\ta cat\t2\n")
    semantic = "generation: {semantic_decoder: {text_encoder: embedded:clip}}"
    (tmp_path / "p.yaml").write_text(f"roles: {{semantic_decoder: embedded:clip}}\n{semantic}\ndevice: cpu\n")
    write_tar(tmp_path / "tars" / "0.tar", [("0", "http://a.example/0.jpg", "a dog", jpeg(0))])
    arguments, name = WRITES[command]
    named = tmp_path / name
    mine = named / "card.json" if name == "folder" else named
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("what I wrote last year")
    home = () if command in OF_FILES else ("--home", photos)
    result = curate(*command.split(), *arguments, named, *home)
    assert result.exit_code == 1, result.output
    assert any(
        said in result.output for said in ("is never overwritten", "choose another folder", "choose a new folder")
    )
    assert [path for path in named.parent.glob(f"*{name}*") if path != named] == []
    assert mine.read_text() == "what I wrote last year"


OF_FILES = {"score", "annotate benchmark", "annotate merge", "annotate candidates", "pool word-weights", "reward train",
            "icc train-bridge", "evaluate clip"}  # fmt: skip


@pytest.mark.slow
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


@pytest.mark.slow
def test_captions_only_pool_scores_text_and_leaves_out_what_reads_images(tmp_path: Path) -> None:
    source = shared("captions/alt_texts.parquet")
    pl.read_parquet(source).head(60).select(pl.col("text").alias("caption")).write_csv(tmp_path / "captions.csv")
    home = tmp_path / "home"
    added = curate("pool", "add", "alt_texts", tmp_path / "captions.csv", "--home", home)
    assert added.exit_code == 0, added.output
    assert "Pool alt_texts: captions, 1 shards" in added.output
    result = curate("run", "alt_texts", "--home", home)
    assert result.exit_code == 0, result.output
    work = home / "work" / "alt_texts" / "signals"
    icc = pl.read_parquet(work / "icc" / "shard=alt_texts-000000" / "data.parquet")
    assert icc["value"].drop_nulls().len() > 50
    assert not (work / "clip_score").exists()
    assert "what reads images is left out" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            ("run", "photos", "--dry-run", "--add-shards", "2", "--json"),
            ("plan", "photos", "--add-shards", "2", "--json"),
        ),
        (("run", "photos", "--refit-cuts", "--policy", "icc"), ("refit", "photos", "--policy", "icc")),
    ],
    ids=("plan", "refit"),
)
def test_a_spelling_of_before_is_its_command_of_now_and_says_so(
    old: tuple[str, ...], new: tuple[str, ...], tmp_path: Path
) -> None:
    webdataset_pool(tmp_path, shards=2)
    before, now = curate(*old, "--home", tmp_path), curate(*new, "--home", tmp_path)
    assert (before.exit_code, before.stdout) == (now.exit_code, now.stdout)
    said = before.stderr.splitlines()
    assert "now; the old spelling leaves" in said[0]
    assert said[1:] == now.stderr.splitlines()
    assert len([line for line in said if "now;" in line]) == 1
    assert "No such option" in curate("plan", "photos", "--phase", "pool").output

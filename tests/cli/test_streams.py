"""Names, streams and errors of the command: what is printed where, and what a person reads when something is wrong."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import typer
from typer.testing import Result

from curation_assets.cli import commands, common
from curation_assets.core import progress
from curation_assets.core.settings import load_settings
from curation_assets.core.version import __version__
from curation_assets.sources.declaration import load_pool
from curation_assets.stores.shard_store import ShardStore
from tests.conftest import FinishedPool
from tests.support.command import curate

# -- the table of commands


@pytest.mark.parametrize("entry", commands.entries(), ids=lambda entry: entry.name)
def test_help_of_a_command_is_the_first_line_of_its_docstring(entry: commands.Entry) -> None:
    assert commands.load(entry).__doc__.splitlines()[0] == entry.help
    shown = curate(*entry.name.split(), "--help")
    assert shown.exit_code == 0, shown.output
    assert entry.help.split(".")[0] in " ".join(shown.output.split())


def test_every_declared_command_is_found_and_in_a_panel() -> None:
    files = Path(commands.__file__).parents[1].rglob("*.py")
    declared = sum(path.read_text(encoding="utf-8").count("\n@command(") for path in files)
    assert len({entry.name for entry in commands.entries()}) == len(commands.entries()) == declared
    assert {entry.panel for entry in commands.entries()} == set(commands.PANELS)
    groups = {entry.name.rpartition(" ")[0] for entry in commands.entries()}
    assert groups - {entry.name for entry in commands.entries()} == {"", *commands.GROUPS}  # `methods` is both


def _without_boxes(text: str) -> str:
    return re.sub(r"[\s│╭╮╰╯─]", "", text)


@pytest.mark.parametrize("entry", commands.entries(), ids=lambda entry: entry.name)
def test_help_shows_every_text_as_it_is_written(entry: commands.Entry) -> None:
    """Brackets, too: Rich takes `[extra]` for a style and `:key:` for an emoji."""
    shown = curate(*entry.name.split(), "--help", width=2000)
    rendered = _without_boxes(shown.output)
    single = typer.Typer(add_completion=False)
    single.command()(commands.load(entry))
    command = typer.main.get_command(single)
    texts = [command.help, *(getattr(param, "help", None) for param in command.params)]
    for text in filter(None, texts):
        assert _without_boxes(text) in rendered
    for param in command.params:
        assert not param.metavar or param.metavar in rendered


def test_help_of_every_group_shows_every_line_as_it_is_written() -> None:
    for group in ("", *commands.GROUPS):
        rendered = _without_boxes(curate(*group.split(), "--help", width=2000).output)
        for text in [entry.help for entry in commands.entries() if entry.name.rpartition(" ")[0] == group]:
            assert _without_boxes(text) in rendered


def test_the_help_lists_every_command_in_its_panel() -> None:
    shown = curate("--help").stdout
    tree = commands.command_tree()
    assert len(tree) <= 27
    for panel in commands.PANELS:
        assert panel in shown
    listed = re.findall(r"│ ([a-z-]+) ", shown)
    assert [name for name in listed if not name.startswith("-")] == list(tree)


def test_help_loads_no_command_and_nothing_that_computes() -> None:
    script = (
        "import sys; sys.argv = ['curate', '--help']\n"
        "from curation_assets.cli import app\n"
        "try: app()\n"
        "except SystemExit: pass\n"
        "heavy = {'dagster', 'duckdb', 'numpy', 'polars', 'scipy', 'torch', 'yaml', 'psutil'}\n"
        "own = [name for name in sys.modules if '.cli.' in name or '.evaluation' in name]\n"
        "print(sorted(heavy & set(sys.modules)), sorted(own), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stderr.strip() == "[] ['curation_assets.cli.commands', 'curation_assets.cli.common']"


# -- standard output


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Progress at every step, a library that prints, and what of it was printed."""
    monkeypatch.setattr(progress, "EVERY_SECONDS", 0.0)
    lines: list[str] = []
    original = progress.LogLines.task

    def task(self: progress.LogLines, label: str, total: int) -> object:
        lines.append(label)
        print("a library prints on standard output")
        return original(self, label, total)

    monkeypatch.setattr(progress.LogLines, "task", task)
    return lines


def answer(result: Result) -> object:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.slow
def test_every_command_with_json_prints_json_alone(finished_pool: FinishedPool, talkative: list[str]) -> None:
    home = ("--json", "--home", finished_pool.settings.home)
    store = ShardStore(finished_pool.settings.work("tiny"))
    sample = store.scan("raw/samples").select("sample_id").head(1).collect()["sample_id"][0]
    assert answer(curate("why", sample, *home))
    assert answer(curate("diff", "icc", "random", *home))
    assert answer(curate("diff", "icc", "random", "--recorded", *home))
    assert answer(curate("diff", "icc", "random", "--at", ".1,.2", *home))
    assert answer(curate("show", "lineage", "icc", *home))
    assert answer(curate("show", "cost", *home))
    assert answer(curate("plan", "tiny", *home))
    run = answer(curate("run", "tiny", *home))
    assert isinstance(run, dict)
    assert sum(run["samples"].values()) == store.scan("raw/samples").collect().height
    assert answer(curate("takedown", "apply", *home)) == []


def test_json_of_agreement_and_explanation_is_alone(tmp_path: Path, talkative: list[str]) -> None:
    ratings = tmp_path / "r.tsv"
    (tmp_path / "captions.txt").write_text("a kite\nhope\na dog\n")
    for rater, typed in (("ann", "3\n0\n3\n"), ("bob", "2\n1\n3\n")):
        arguments = ("annotate", "rate", tmp_path / "captions.txt", "--out", ratings, "--rater", rater, "--in-order")
        assert curate(*arguments, typed=typed).exit_code == 0
    assert answer(curate("agreement", "raters", ratings, "--json"))
    shown = curate("agreement", "raters", ratings).stdout
    assert "95 % low" in shown, "a statistic of three captions has an interval"
    pl.DataFrame({"caption": ["a", "b", "c", "d"], "score": [0.1, 0.4, 0.3, 0.9]}).write_csv(tmp_path / "s.csv")
    pl.DataFrame({"caption": ["a", "b", "c", "d"], "rating": [1, 2, 3, 4]}).write_csv(tmp_path / "l.csv")
    files = (tmp_path / "s.csv", tmp_path / "l.csv")
    assert answer(curate("agreement", "scores", *files, "--json"))
    few = curate("agreement", "scores", *files, "--resamples", 0).stdout
    assert re.search(r"spearman +0\.8000 +-?[01]\.\d{4} +1\.0000 +4", few), few
    assert answer(curate("icc", "explain", "a red kite over the sea", "--json"))


def test_progress_and_notices_go_to_standard_error(tmp_path: Path, talkative: list[str]) -> None:
    (tmp_path / "captions.txt").write_text("a red kite\nhope\n")
    scored = curate("score", "personal_data", tmp_path / "captions.txt", "--out", tmp_path / "scores.csv")
    assert scored.exit_code == 0, scored.output
    assert talkative == ["personal_data"]
    assert "personal_data: 2/2" in scored.stderr
    assert "2/2" not in scored.stdout


# -- errors


def test_texts_of_users_keep_their_brackets(tmp_path: Path) -> None:
    home = ("--home", tmp_path / "[a-z]")
    source = tmp_path / "[a-z].csv"
    source.write_text("caption\na [red] kite\n[/bold] of [a-z]\n")
    assert "must match [a-z0-9_]+, got 'x[a-z]'" in curate("pool", "add", "x[a-z]", source, *home).stderr
    added = curate("pool", "add", "mine", source, *home)
    assert added.exit_code == 0, added.output
    assert str(tmp_path / "[a-z]") in added.stdout
    assert str(source) in curate("pool", "list", *home).stdout
    assert "no pool 'a[a-z]'" in curate("run", "a[a-z]", *home).stderr
    scored = curate("score", "personal_data", source, "--out", tmp_path / "[a-z].parquet")
    assert f"written to {tmp_path / '[a-z].parquet'}" in scored.stdout
    assert "'m[a-z]'" in curate("score", "m[a-z]", source, "--out", tmp_path / "o.csv").stderr
    rated = curate("annotate", "rate", source, "--rater", "[a-z]", "--in-order", typed="3\n3\n")
    assert "a [red] kite" in rated.stdout
    assert "done by [a-z]" in rated.stdout


def test_a_bug_is_one_sentence_and_a_traceback_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from curation_assets.cli import pool

    def broken(settings: object) -> list[str]:
        huge = ["[a-z]"] * 10
        raise RuntimeError(f"no [a-z] of {len(huge)}\nsecond line")

    monkeypatch.setattr(pool, "list_pools", broken)
    failed = curate("pool", "list", "--home", tmp_path)
    assert failed.exit_code == common.UNEXPECTED
    assert "unexpected RuntimeError: no [a-z] of 10" in failed.stderr
    assert len(failed.stderr.splitlines()) == 1
    (path,) = (tmp_path / "logs").iterdir()
    assert str(path) in failed.stderr
    text = path.read_text()
    assert "second line" in text
    assert "in broken" in text
    monkeypatch.setattr(common, "_home", tmp_path / "absent")
    assert common.write_traceback(RuntimeError("x")).is_file()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_is_one_sentence_and_a_status(number: int, status: int, tmp_path: Path) -> None:
    """In a process of its own: the command ends all children of its process."""
    code = f"""
import signal, subprocess, sys, time
from curation_assets.cli import main, pool

def stopped(settings):
    subprocess.Popen(["sleep", "60"])
    signal.raise_signal({int(number)})
    time.sleep(60)

pool.list_pools = stopped
main()
"""
    command = [sys.executable, "-c", code, "pool", "list", "--home", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=50)  # its child holds its output
    assert result.returncode == status
    assert "the same command goes on from here" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_reader_that_leaves_is_no_error() -> None:
    run = subprocess.run(
        f"{shlex.quote(sys.executable)} -c 'from curation_assets.cli import main; main()' methods | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stderr == ""
    assert run.stdout.count("\n") == 1


@pytest.mark.parametrize("columns", ["60", "300", "0", "many", None])
def test_piped_output_obeys_columns(columns: str | None) -> None:
    code = "from curation_assets.cli import common; print(common.console.width)"
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    environment |= {} if columns is None else {"COLUMNS": columns}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert run.stdout.strip() == (columns if columns in ("60", "300") else str(common.PIPED_WIDTH))


def test_the_version_is_shown() -> None:
    result = curate("--version")
    assert (result.exit_code, result.stdout) == (0, f"curation_assets {__version__}\n")


def test_tables_fold_within_the_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(common, "console", common.Terminal(width=80))
    rows = [("a/very/long/path/" * 8, "[a-z]", "12,345")]
    common.show_table(("path", "pattern", "rows"), rows, left=2)
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "[a-z]" in shown
    assert "12,345" in shown


def test_exits_of_typer_pass_through() -> None:
    with pytest.raises(typer.Exit), common.errors_as_sentences():
        raise typer.Exit(3)


@pytest.mark.slow
def test_the_entry_point_keeps_the_status_and_ends_without_reports_of_leaks(tmp_path: Path) -> None:
    """A run that loads DuckDB and img2dataset, whose teardown prints a page on standard error otherwise."""
    (tmp_path / "urls.csv").write_text("url,caption\nhttp://127.0.0.1:9/a.jpg,a red kite\n")
    home = ("--home", str(tmp_path / "home"))
    script = [sys.executable, "-c", "from curation_assets.cli import main; main()"]
    assert curate("pool", "add", "web", tmp_path / "urls.csv", *home).exit_code == 0
    for arguments, status in (
        (("run", "web", "--table", "raw/registered_shards", "--table", "raw/downloads"), 1),
        (("run", "web", "--nothing"), 2),
    ):
        done = subprocess.run([*script, *arguments, *home], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert "nanobind" not in done.stderr
        if status == 1:
            assert "only 0.0% of the rows succeeded" in done.stderr
            assert "url_refused:port_not_allowed 1" in done.stderr
            assert len(done.stderr.splitlines()) < 8, done.stderr


# -- what `pool add` and `why` take


def test_pool_add_names_columns_header_and_encoding(tmp_path: Path) -> None:
    home = ("--home", tmp_path / "home")
    latin = tmp_path / "latin.csv"
    latin.write_bytes("note,words\n1,café au lait\n2,a red kite\n".encode("latin-1"))
    words = ("--caption-column", "words")
    assert "name another with --encoding" in curate("pool", "add", "la", latin, *words, *home).stderr
    assert not list((tmp_path / "home" / "pools").glob("*.yaml")), "what cannot be read is not declared"
    assert "--caption-column NAME" in curate("pool", "add", "la", latin, "--encoding", "latin-1", *home).stderr
    assert "no encoding 'latn'" in curate("pool", "add", "la", latin, "--encoding", "latn", *home).stderr
    named = (
        "--encoding",
        "latin-1",
        "--caption-column",
        "words",
        "--id-column",
        "note",
        "--allow-host",
        "127.0.0.1:80",
    )
    assert curate("pool", "add", "la", latin, *named, *home).exit_code == 0
    pool = load_pool(load_settings(tmp_path / "home"), "la")
    assert (pool.encoding, pool.columns["caption"], pool.columns["uid"]) == ("latin-1", "words", "note")
    assert pool.allow_hosts == ("127.0.0.1:80",)
    rows = pool.source_kind.split(pool, load_settings(tmp_path / "home")).part("la-000000")
    assert rows["caption"].to_list() == ["café au lait", "a red kite"]
    bare = tmp_path / "bare.tsv"
    bare.write_text("a red kite\nhope\n")
    assert curate("pool", "add", "bare", bare, "--no-header", *home).exit_code == 0
    pool = load_pool(load_settings(tmp_path / "home"), "bare")
    assert pool.source_kind.split(pool, load_settings(tmp_path / "home")).part("bare-000000")["caption"].to_list() == [
        "a red kite",
        "hope",
    ]


def test_why_takes_the_key_of_a_tar(finished_pool: FinishedPool) -> None:
    store = ShardStore(finished_pool.settings.work("tiny"))
    row = store.scan("raw/samples").filter(pl.col("member").is_not_null()).head(1).collect().row(0, named=True)
    key = row["member"].rsplit(".", 1)[0]
    home = ("--json", "--home", finished_pool.settings.home)
    for identifier in (key, f"tiny:{key}"):
        entries = json.loads(curate("why", identifier, *home).stdout)
        assert row["sample_id"] in {one["sample_id"] for one in entries}
    assert "no sample with key 'nothing'" in curate("why", "nothing", *home).stderr


@pytest.mark.slow
@pytest.mark.parametrize(("given", "spins"), [(None, "0"), ("ACTIVE", "30000000000")])
def test_threads_that_wait_for_work_leave_the_processor_to_others(given: str | None, spins: str) -> None:
    """GNU's OpenMP, as torch loads it after the command began, does not spin, unless the user's environment says so."""
    code = (
        "import sys\nfrom curation_assets.cli import main\nsys.argv = ['curate', '--version']\n"
        "try:\n    main()\nfinally:\n    import torch"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    environment |= {"OMP_DISPLAY_ENV": "verbose"} | ({} if given is None else {"OMP_WAIT_POLICY": given})
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    if "GOMP_SPINCOUNT" not in run.stderr:
        pytest.skip("torch has another OpenMP than GNU's here")
    assert f"GOMP_SPINCOUNT = '{spins}'" in run.stderr

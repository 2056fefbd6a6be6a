"""curate pool set and remove, and `--pool NAME` beside the argument: as people type them."""

from pathlib import Path

import pytest
import typer

from curation_assets.cli.commands import LazyCommand, entries
from curation_assets.core.settings import Settings, load_settings
from curation_assets.defs.launch import prepare_instance
from curation_assets.sources.declaration import add_pool, list_pools, load_pool
from curation_assets.sources.edits import with_value
from tests.support.command import curate as in_process

DECLARED = """# kites of the north
name: kites   # as the folder
kind: url_table
source: captions.csv
columns: {caption: caption, url: null}
options:
  # half of them
  fraction: .5  # not .4
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "captions.csv").write_text("caption\na red kite\n")
    (tmp_path / "pools").mkdir()
    (tmp_path / "pools" / "kites.yaml").write_text(DECLARED)
    return load_settings(tmp_path, "embedded")


def curate(settings: Settings, *words: str, said: str | None = None) -> tuple[int, str]:
    done = in_process(*words, home=settings.home, typed=said)
    return done.exit_code, done.stdout + done.stderr


def test_values_are_set_and_every_comment_stays(settings: Settings) -> None:
    code, said = curate(
        settings, "pool", "set", "kites", "fraction=0.3", "options.standardise_by=global", "allow_hosts=127.0.0.1:8000"
    )
    assert code == 0, said
    pool = load_pool(settings, "kites")
    assert (pool.options.fraction, pool.options.standardise_by, pool.allow_hosts) == (
        0.3,
        "global",
        ("127.0.0.1:8000",),
    )
    text = (settings.pools_root / "kites.yaml").read_text()
    for comment in ("# kites of the north", "name: kites   # as the folder", "  # half of them", "0.3  # not .4"):
        assert comment in text


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("fracton=.3", "did you mean 'fraction'"),
        ("fraction=lots", "fraction"),
        ("fraction=7", "fraction"),
        ("name=other", "cannot be changed"),
        ("kind=world", "cannot be changed"),
        ("options=x", "cannot be changed"),
        ("source=gone.csv", "no such file"),
        ("profile=nowhere", "no profile"),
        ("methods=no_such_method", "no_such_method"),
        ("fraction", "KEY=VALUE"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(settings: Settings, change: str, named: str) -> None:
    code, said = curate(settings, "pool", "set", "kites", "header=false", change)
    assert code == 1
    assert named in said
    assert (settings.pools_root / "kites.yaml").read_text() == DECLARED


@pytest.mark.parametrize(
    ("text", "keys", "value", "expected"),
    [
        ("a: 1\nb:\n  - 1 # one\n  - 2\nc: 3 # three\n", ["b"], [9], "a: 1\nb: [9]\nc: 3 # three\n"),
        ("b:\n- 1\n# last\n", ["b"], [9], "b: [9]\n# last\n"),
        ("o:\n  x: 1 # one\n# last\n", ["o", "y"], 2, "o:\n  x: 1 # one\n  y: 2\n# last\n"),
        ("o:\n", ["o", "y"], 2, "o: {y: 2}\n"),
        ("o: {x: 1}  # short\n", ["o", "y"], 2, "o: {y: 2, x: 1}  # short\n"),
        ("{o: 1}", ["p"], "é #1", "{p: 'é #1', o: 1}"),
        ("a: 1", ["o", "x"], None, "a: 1\no: {x: null}"),
        ("a: |\n  long\n  text\nb: 2\n", ["a"], "short", "a: short\nb: 2\n"),
    ],
)
def test_a_value_is_replaced_where_it_stands(text: str, keys: list[str], value: object, expected: str) -> None:
    assert with_value(text, keys, value) == expected


def test_an_edit_that_would_change_more_is_refused() -> None:
    with pytest.raises(ValueError, match="edit it by hand"):
        with_value("a: &x [1]\nb: *x\n", ["a"], 2)


def test_a_pool_is_removed_with_or_without_its_tables(settings: Settings) -> None:
    work = settings.work("kites") / "raw" / "samples"
    work.mkdir(parents=True)
    (work / "data.parquet").write_bytes(b"")
    with prepare_instance(settings) as instance:
        instance.add_dynamic_partitions("kites", ["kites-000000"])
    assert curate(settings, "pool", "remove", "kites", said="n\n")[0] == 1
    assert list_pools(settings) == ["kites"]
    code, said = curate(settings, "pool", "remove", "kites", said="y\n")
    assert (code, list_pools(settings), work.is_dir()) == (0, [], True), said
    with prepare_instance(settings) as instance:
        assert list(instance.get_dynamic_partitions("kites")) == []
    code, said = curate(settings, "pool", "remove", "kites", "--tables", "--yes")
    assert (code, work.exists()) == (0, False), said
    assert (settings.home / "captions.csv").is_file()
    code, said = curate(settings, "pool", "remove", "kites", "--yes")
    assert (code, "no pool 'kites'" in said) == (1, True), said


def test_a_pool_that_cannot_be_loaded_can_be_removed(settings: Settings) -> None:
    (settings.pools_root / "torn.yaml").write_text("source: [oops")
    code, said = curate(settings, "pool", "remove", "torn", "--yes")
    assert (code, list_pools(settings)) == (0, ["kites"]), said


def test_a_pool_that_another_one_uses_stays(settings: Settings) -> None:
    add_pool(settings, "more", settings.home / "captions.csv", options={"reference_images": "kites"})
    code, said = curate(settings, "pool", "remove", "kites", "--yes")
    assert (code, list_pools(settings)) == (1, ["kites", "more"])
    assert "more compare with its images" in said


def test_advice_on_a_declared_pool_runs_as_it_is_given(settings: Settings) -> None:
    code, said = curate(
        settings, "pool", "add", "kites", str(settings.home / "captions.csv"), "--allow-host", "127.0.0.1:8000"
    )
    assert code == 1
    assert "curate pool set kites KEY=VALUE" in said
    assert curate(settings, "pool", "set", "kites", "allow_hosts=127.0.0.1:8000")[0] == 0
    assert load_pool(settings, "kites").allow_hosts == ("127.0.0.1:8000",)


#: Of commands that take a pool, words that they need besides it.
NEEDED = {
    "diff": ["icc", "sieve"],
    "show lineage": ["icc"],
    "release create": ["icc", "v1"],
    "release show": ["v1"],
    "release verify": ["v1"],
    "release diff": ["v1", "v2"],
    "summary": ["v1"],
    "evaluate contamination": ["v1", "--against", "x"],
    "export": ["webdataset", "icc", "--out", "x"],
    "why": ["ab" * 16],
    "annotate sample": ["--out", "x"],
    "drift freeze": ["--out", "x"],
    "pool set": ["header=true"],
    "pool remove-shard": ["kites-000000"],
}


def _takes_pool(entry: object) -> bool:
    from curation_assets.cli.commands import load

    single = typer.Typer(add_completion=False)
    single.command("x")(load(entry))  # type: ignore[arg-type]
    command = typer.main.get_command(single)
    return entry.name != "pool word-weights" and any(p.name in ("pool", "pools") for p in command.params)  # type: ignore[attr-defined]


@pytest.mark.parametrize("entry", [entry for entry in entries() if _takes_pool(entry)], ids=lambda entry: entry.name)
def test_a_pool_is_an_option_or_an_argument_of_every_command(entry: object) -> None:
    name = entry.name  # type: ignore[attr-defined]
    needed = NEEDED.get(name, [])

    def parsed(*words: str) -> object:
        ctx = LazyCommand(entry, None).make_context(name, list(words))  # type: ignore[arg-type]
        assert not ctx.args
        found = ctx.params.get("pool", ctx.params.get("pools"))
        return list(found) if isinstance(found, list | tuple) else [found]

    assert parsed(*needed, "--pool", "kites") == ["kites"]
    assert parsed(*needed, "--pool=kites") == ["kites"]
    first = name in ("pool set", "pool remove-shard")
    assert parsed(*(["kites", *needed] if first else [*needed, "kites"])) == ["kites"]

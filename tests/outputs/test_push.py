"""`curate export hf --push` against a hub on the loopback, through the hub's own client in a process of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from curation_assets.outputs.exports.taken_down import take_out
from curation_assets.outputs.holders import flag_exports
from curation_assets.outputs.registry import recorded_exports
from curation_assets.stores.denylist import add_to_denylist
from tests.support.hub import TOKEN, Hub, running_hub
from tests.support.lineage_pools import finished_photos
from tests.support.paths import REPOSITORY

TARGET, NAME = "hf://datasets/lab/photos", "lab/photos"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose pool has run."""
    return finished_photos(tmp_path_factory.mktemp("made") / "home").settings.home


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "home", symlinks=True))


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as running:
        yield running


def pushed(
    hub: Hub, home: Path, *words: str, token: str | None = TOKEN, **environment: str
) -> "subprocess.CompletedProcess[str]":
    own = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HF_")},
        "HF_ENDPOINT": hub.url, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(REPOSITORY), "COLUMNS": "400", **environment,
        **({} if token is None else {"HF_TOKEN": token}),
    }  # fmt: skip
    curate = [sys.executable, "-c", "from curation_assets.cli import main; main()", "export", "hf", *words]
    return subprocess.run(
        [*curate, "--home", str(home), "--push", TARGET], env=own, capture_output=True, text=True, check=False
    )


def said(done: "subprocess.CompletedProcess[str]") -> str:
    """Everything that was printed, which names no token."""
    text = done.stdout + done.stderr
    assert TOKEN not in text
    return text


@pytest.mark.slow
def test_a_push_is_read_back_and_a_second_one_changes_nothing(hub: Hub, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = pushed(
        hub, home, "clip", "--out", str(out), "--max-bytes", "3000", "--pool", "photos", "--private", "--message", "v1"
    )
    assert first.returncode == 0, said(first)
    tree = hub.tree(NAME)
    assert hub.private == {NAME: True}
    assert hub.messages == ["v1"]
    assert {"README.md", "croissant.json", "manifest.json"} < set(tree)
    assert "rai:" in tree["README.md"].decode()
    data = sorted(path for path in tree if path.startswith("data/"))
    assert len(data) > 1
    rows = pl.concat([pl.read_parquet(tree[path]) for path in data])
    assert rows.height == recorded_exports(home)[0].samples
    for path, content in tree.items():
        assert TOKEN.encode() not in content, path
        if path != ".gitattributes":
            assert content == (out / path).read_bytes()
    commit = hub.heads[NAME, "main"]
    assert f"{TARGET}@{commit}" in said(first)
    assert f"{rows.height} rows read back" in said(first)
    (record,) = recorded_exports(home)
    assert record.pushed == (f"{TARGET}@{commit}",)
    again = pushed(hub, home, "--out", str(out))
    assert again.returncode == 0, said(again)
    assert "nothing to push" in said(again)
    assert hub.heads[NAME, "main"] == commit
    # another export takes the place of this one: no file of the earlier one stays
    fewer = pushed(hub, home, "clip", "--out", str(tmp_path / "fewer"), "--pool", "photos")
    assert fewer.returncode == 0, said(fewer)
    assert [path for path in hub.tree(NAME) if path.startswith("data/")] == ["data/train-00000-of-00001.parquet"]
    on_branch = pushed(hub, home, "--out", str(out), "--branch", "v1")
    assert on_branch.returncode == 0, said(on_branch)
    assert len([path for path in hub.tree(NAME, "v1") if path.startswith("data/")]) == len(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("loses rows", "data/train-00000-of-00001.parquet is"),
        ("changes rows", "data/train-00000-of-00001.parquet is"),
        ("serves fewer rows", "data/train-00000-of-00001.parquet has 5 rows, pushed were 6"),
        ("serves other rows", "row group 0, are not those pushed"),
        ("loses a file", "has the data files []"),
        ("fails at the commit", "status 400"),
        ("fails at an upload", "400"),
    ],
)
def test_what_the_hub_loses_or_refuses_is_an_error_and_a_second_push_goes_on(
    hub: Hub, home: Path, tmp_path: Path, fault: str, sentence: str
) -> None:
    hub.fault = fault
    out = tmp_path / "out"
    failed = pushed(hub, home, "clip", "--out", str(out), "--pool", "photos")
    assert failed.returncode == 1
    assert sentence in said(failed)
    assert "Traceback" not in said(failed)
    (record,) = recorded_exports(home)
    assert [copy.partition("@")[0] for copy in record.pushed] == [TARGET]  # it may hold some of it
    hub.fault = None
    again = pushed(hub, home, "--out", str(out))
    assert again.returncode == 0, said(again)
    assert (out / "README.md").read_bytes() == hub.tree(NAME)["README.md"]


@pytest.mark.slow
def test_copies_on_the_hub_are_named_by_a_takedown_and_no_denied_sample_is_pushed(
    hub: Hub, home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert pushed(hub, home, "clip", "--out", str(out), "--pool", "photos").returncode == 0
    (record,) = recorded_exports(home)
    taken = pl.read_parquet(out / "data" / "*.parquet").head(1)
    takedown: Any = SimpleNamespace(samples=taken, pool="photos")
    assert flag_exports(home, takedown) == [{"folder": str(out), "samples": 1, "pushed": list(record.pushed)}]
    add_to_denylist(home, [("uid", taken["sample_id"][0])])
    hub.calls.clear()
    (out / "TAKEDOWN.json").unlink()
    refused = pushed(hub, home, "--out", str(out))
    assert refused.returncode == 1
    assert "1 of its samples are on the denylist, and nothing was pushed" in said(refused)
    assert hub.calls == []
    take_out(home, out)
    again = pushed(hub, home, "--out", str(out))
    assert again.returncode == 0, said(again)
    there = pl.concat([pl.read_parquet(data) for path, data in hub.tree(NAME).items() if path.endswith(".parquet")])
    assert taken["sample_id"][0] not in there["sample_id"]
    shutil.rmtree(out)
    (flagged,) = flag_exports(home, takedown)
    assert flagged["pushed"] == [f"{TARGET}@{hub.heads[NAME, 'main']}"]


@pytest.mark.slow
def test_a_push_is_refused_before_anything_is_exported(hub: Hub, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("clip", "--out", str(out), "--pool", "photos")
    assert "`hf auth login`" in said(pushed(hub, home, *words, token=None))
    assert "HF_HUB_OFFLINE is set" in said(pushed(hub, home, *words, HF_HUB_OFFLINE="1"))
    assert "--push takes one part" in said(pushed(hub, home, *words, "--validation", "1"))
    assert not out.exists()
    assert hub.calls == []
    wrong = pushed(hub, home, *words, token="hf_anotherToken")
    assert wrong.returncode == 1
    assert "refuses the token (status 401)" in said(wrong)
    assert "hf_anotherToken" not in wrong.stdout + wrong.stderr
    assert hub.trees == {}

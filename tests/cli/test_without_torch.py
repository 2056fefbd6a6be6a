"""Commands that compute no model import no torch: it takes seconds, and 1.2 GB of memory maps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lineage_pools import finished_photos, webdataset_pool
from tests.support.paths import REPOSITORY

CALL = (
    "import sys; from typer.testing import CliRunner; from curation_assets.cli import app; "
    "done = CliRunner().invoke(app, sys.argv[1:]); "
    "heavy = ('torch', 'transformers', 'open_clip'); "
    "print(done.exit_code, [name for name in heavy if name in sys.modules]); print(done.output)"
)


def loaded(*arguments: object) -> tuple[str, str]:
    """'STATUS [names of heavy packages]' of a command in a process of its own, and what it printed."""
    words = [sys.executable, "-c", CALL, *map(str, arguments)]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, env=os.environ, check=True)
    first, _, rest = done.stdout.partition("\n")
    return first, rest


@pytest.mark.slow
def test_no_command_that_computes_no_model_imports_torch(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path / "home")
    home = ("--home", ctx.settings.home)
    sample = ctx.store.read("raw/samples", ctx.shards()[0])["sample_id"][0]
    webdataset_pool(tmp_path / "tars", shards=1)
    commands = {
        "help": ("--help",),
        "pool add": ("pool", "add", "mine", tmp_path / "tars" / "tars", *home),
        "plan": ("plan", "photos", "--refresh", *home),
        "why": ("why", sample, "--pool", "photos", *home),
        "diff": ("diff", "icc", "clip", "--pool", "photos", *home),
        "export": ("export", "npy", "icc", "--pool", "photos", "--out", tmp_path / "ids", *home),
        "export tars": ("export", "webdataset", "icc", "--pool", "photos", "--out", tmp_path / "out", *home),
        "verify": ("verify", *home),
        "takedown": ("takedown", "add", "--uid", sample, *home),
    }
    found = {name: loaded(*words) for name, words in commands.items()}
    assert {name: first for name, (first, _) in found.items()} == dict.fromkeys(commands, "0 []"), found


@pytest.mark.slow
def test_a_look_imports_no_library_of_models_that_it_does_not_run(tmp_path: Path) -> None:
    """The student needs torch (docs/decisions/0044); photographs need no open_clip."""
    (tmp_path / "captions.csv").write_text("caption\na red dog on a wooden bench\nthe best day ever\n")
    webdataset_pool(tmp_path, shards=1)
    for source in (tmp_path / "captions.csv", tmp_path / "tars"):
        first, printed = loaded("look", source, "--no-open", "--into", tmp_path / f"{source.stem}.html")
        assert first.startswith("0 ['torch'"), printed
        assert "open_clip" not in first

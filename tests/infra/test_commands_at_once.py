"""Pairs of commands on one home at once: both end as they do alone, and nothing is taken for a bug or for residue."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.stores.denylist import add_to_denylist
from tests.support.lineage_pools import webdataset_pool

pytestmark = [pytest.mark.infra, pytest.mark.slow, pytest.mark.timeout(3600)]
PAIRS = 20
RAW = [f"--table=raw/{name}" for name in ("registered_shards", "downloads", "samples", "provenance")]
RUN = ["run", "second", *RAW]
#: What goes on beside a takedown of pool `first`, in turn.
BESIDE = (RUN, RUN, ["takedown", "apply", "--pool", "second"], ["verify", "second"])
CURATE = [sys.executable, "-c", "from curation_assets.cli import main; main()"]


def curate(home: Path, *words: str) -> "subprocess.Popen[str]":
    command = [*CURATE, *words, "--home", str(home)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_a_takedown_beside_another_command(tmp_path: Path) -> None:
    """The log of Dagster's database vanished under a run ('disk I/O error', 'this is a bug'), or the certificate named
    a database as something that cannot be read."""
    webdataset_pool(tmp_path, name="first", shards=1, per_shard=PAIRS + 4)
    (tmp_path / "tars").rename(tmp_path / "first_tars")
    first = tmp_path / "pools" / "first.yaml"
    first.write_text(first.read_text().replace("source: tars", "source: first_tars"))
    webdataset_pool(tmp_path, name="second", shards=2, per_shard=PAIRS, first=5)
    for pool in ("first", "second"):
        made = curate(tmp_path, "run", pool, *RAW)
        assert "error" not in made.communicate()[0]
        assert made.returncode == 0
    settings = load_settings(tmp_path, "embedded")
    contexts = {pool: PoolContext.open(settings, pool) for pool in ("first", "second")}
    samples = {pool: ctx.store.scan("raw/samples").collect()["sample_id"] for pool, ctx in contexts.items()}
    for number in range(PAIRS):
        words = BESIDE[number % len(BESIDE)]
        add_to_denylist(tmp_path, [("uid", samples["first"][number + 3])])
        if words[0] == "takedown":
            add_to_denylist(tmp_path, [("uid", samples["second"][number])])
        elif words[0] == "run":
            contexts["second"].store.remove("raw/provenance", "second-000005")
        pair = [curate(tmp_path, "takedown", "apply", "--pool", "first"), curate(tmp_path, *words)]
        said = [one.communicate()[0] for one in pair]
        assert [one.returncode for one in pair] == [0, 0], "\n\n".join(said)
        assert "bug" not in "".join(said)
    certificates = [json.loads(path.read_text()) for path in (tmp_path / "takedown" / "certificates").iterdir()]
    assert len(certificates) == PAIRS + PAIRS // len(BESIDE)
    assert [one["left"] for one in certificates] == [[]] * len(certificates)

"""The scripts for Slurm: on a real controller and node on this machine where Slurm is installed; read by shellcheck.

Not tried here: several nodes, a network disk, GPUs (`--gres`).
"""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from curation_assets.core.settings import load_settings
from curation_assets.defs.launch import run_pool
from tests.defs.test_partitions import set_size
from tests.defs.test_ranges import contents
from tests.support.lineage_pools import webdataset_pool
from tests.support.paths import REPOSITORY

FOLDER = REPOSITORY / "infra/slurm"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")

CONFIG = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldAddr=127.0.0.1
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={port}
SlurmdPort={node_port}
StateSaveLocation={folder}
SlurmdSpoolDir={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
CommunicationParameters=NoInAddrAny
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A controller and a node of two CPUs on 127.0.0.1, for `sbatch` of this process. Its folder."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(
            f"a one-node Slurm needs root and Debian's slurmctld, slurmd, slurm-client, munge; missing: {missing}"
        )
    host = socket.gethostname().split(".")[0]
    with tempfile.TemporaryDirectory(prefix="slurm-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        folder.chmod(0o755)
        text = CONFIG.format(host=host, user="root", folder=folder, port=free_port(), node_port=free_port())
        (folder / "slurm.conf").write_text(text.strip() + "\n")
        monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        munge = [
            *("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"),
            *(f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed"),
        ]
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            with (folder / f"{command[0]}.out").open("wb") as log:
                process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            stack.callback(_end, process)
            time.sleep(1)
        for _ in range(60):
            state = subprocess.run(
                ["sinfo", "--noheader", "--format=%t"], capture_output=True, text=True
            ).stdout.strip()
            if state == "idle":
                break
            time.sleep(1)
        logs = "\n".join(log.read_text(errors="replace")[-1500:] for log in folder.glob("*.out"))
        assert state == "idle", logs
        yield folder


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    process.kill()


def submit(home: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ, "CURATION_HOME": str(home), "CURATION_PROFILE": "embedded", "PYTHONPATH": str(REPOSITORY),
        "CURATION_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, str(FOLDER / "submit.py"), "photos", *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def wait_for_jobs(home: Path, seconds: float) -> str:
    """Until no job is queued or runs; all logs."""
    end = time.monotonic() + seconds
    while queued := subprocess.run(["squeue", "--noheader"], capture_output=True, text=True).stdout.strip():
        assert time.monotonic() < end, queued + logs_of(home)
        time.sleep(2)
    return logs_of(home)


def logs_of(home: Path) -> str:
    logs = sorted((home / "work/photos/slurm").glob("*.log"), key=lambda log: log.stat().st_mtime)
    return "\n".join(f"== {log.name}\n{log.read_text()[-1500:]}" for log in logs)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_pool_goes_through_slurm_in_turns_with_the_same_bytes(slurm: Path, tmp_path: Path) -> None:
    """One of the tasks is ended half-way: its chain stops with a word, and the same command goes on.

    Partitions are blocks of two shards, the second of which is in both tasks; those of the pool beside, shards.
    """
    home = tmp_path / "slurm"
    set_size(webdataset_pool(home, shards=4, per_shard=4), 2)
    first = submit(home, "--per-task", "3")
    assert first.returncode == 0, first.stderr
    assert "4 shards in 2 tasks" in first.stdout
    array = first.stdout.split("jobs ")[1].split()[0]
    time.sleep(3)
    subprocess.run(["scancel", f"{array}_1"], check=True)
    wait_for_jobs(home, 1200)  # the job of the whole pool has left the queue too: it does not wait for ever
    assert not (home / "work/photos/filtered/subsets").exists()
    again = submit(home, "--per-task", "3")
    assert again.returncode == 0, again.stderr
    log = wait_for_jobs(home, 2400)
    assert "pool photos: up to date" in log, log
    webdataset_pool(tmp_path / "local", shards=4, per_shard=4)
    run_pool(load_settings(tmp_path / "local", "embedded"), "photos")
    assert contents(home) == contents(tmp_path / "local")


def test_a_pool_without_shards_and_a_wrong_size_are_refused(tmp_path: Path) -> None:
    absent = submit(tmp_path)
    assert absent.returncode == 1
    assert "photos" in absent.stderr
    assert "Traceback" not in absent.stderr
    webdataset_pool(tmp_path, shards=1, per_shard=3)
    wrong = submit(tmp_path, "--per-task", "0")
    assert wrong.returncode == 2
    assert "--per-task must be at least 1, got 0" in wrong.stderr


def test_without_slurm_the_command_says_what_it_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    webdataset_pool(tmp_path, shards=1, per_shard=3)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = submit(tmp_path)
    assert done.returncode == 1
    assert "sbatch" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("script", ["slurm/shards.sbatch", "slurm/pool.sbatch", "compose/lock_of.sh"])
def test_shellcheck_has_nothing_to_say(script: str) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed here")
    done = subprocess.run(["shellcheck", str(REPOSITORY / "infra" / script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

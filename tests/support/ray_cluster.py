"""A real Ray cluster of two nodes on 127.0.0.1, one of which can be killed. Run as a script, it holds the cluster."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.paths import REPOSITORY

#: Nodes of several hosts are Ray's default; without them it stays on 127.0.0.1. The name is Ray's own.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
STORE_BYTES = 80_000_000  # the least that Ray takes; tasks return manifests, no rows


@dataclass
class RayCluster:
    """Processes of a cluster; `address` is what CURATION_RAY takes."""

    address: str
    second: psutil.Process  # the raylet of the second node

    @property
    def environment(self) -> dict[str, str]:
        """What a driver on this machine needs; a task takes one thread, as a node has one CPU."""
        threads = {"CURATION_THREADS": "2", "CURATION_WORKERS": "2"}
        return {**os.environ, **LOOPBACK, **threads, "CURATION_RAY": self.address, "PYTHONPATH": str(REPOSITORY)}

    def tasks_of_second(self) -> list[psutil.Process]:
        """Processes of the second node that compute a task now."""
        return [process for process in self._children() if "ray::_call" in " ".join(_command_of(process))]

    def kill_second(self) -> None:
        """All processes of the second node at once, as when its machine goes."""
        for process in [self.second, *self._children()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def _children(self) -> list[psutil.Process]:
        try:
            return self.second.children(recursive=True)
        except psutil.NoSuchProcess:
            return []


def _command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@contextlib.contextmanager
def ray_cluster(*, jobs_port: int | None = None, gpus_of_first: int = 0) -> Iterator[RayCluster]:
    """Two nodes with one CPU each. `jobs_port`: of Ray's job server on 127.0.0.1; None for none. `gpus_of_first`: how
    many GPUs Ray is to think that the first node has.
    """
    command = [sys.executable, "-m", "tests.support.ray_cluster", str(jobs_port or 0), str(gpus_of_first)]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # jobs of Dagster's runs call `dagster`
    environment = {**os.environ, **LOOPBACK, "PYTHONPATH": str(REPOSITORY), "PATH": path}
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        started = psutil.Process(process.pid)
        try:
            assert process.stdout is not None
            line = process.stdout.readline().split()
            log.seek(0)
            assert len(line) == 2, log.read()[-3000:]
            yield RayCluster(line[0], psutil.Process(int(line[1])))
        finally:
            left = started.children(recursive=True)
            assert process.stdin is not None
            process.stdin.close()  # the script ends the nodes then
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            for other in [started, *left]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    other.kill()


def hold(jobs_port: int | None, gpus_of_first: int) -> None:
    """Print address and the pid of the second raylet; end the cluster when standard input closes."""
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:  # short: sockets
        os.environ["RAY_TMPDIR"] = folder  # where Ray notes the address; the machine's own note stays as it is
        (Path(folder) / "ray").mkdir()
        shared: dict[str, Any] = {
            "num_cpus": 1, "num_gpus": 0, "object_store_memory": STORE_BYTES,
            "node_ip_address": "127.0.0.1", "temp_dir": folder,
        }  # fmt: skip
        served = {"dashboard_host": "127.0.0.1", "dashboard_port": jobs_port} if jobs_port else {}
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                **shared, **served, "num_gpus": gpus_of_first, "include_dashboard": jobs_port is not None,
            },
        )  # fmt: skip
        try:
            # as on a machine of its own: a home in a bucket has another working copy there
            node = cluster.add_node(**shared, env_vars={"CURATION_HOMES": f"{folder}/homes"})
            (raylet,) = node.all_processes["raylet"]
            print(cluster.address, raylet.process.pid, flush=True)
            sys.stdin.read()
        finally:
            cluster.shutdown()


if __name__ == "__main__":
    hold(int(sys.argv[1]) or None, int(sys.argv[2]))

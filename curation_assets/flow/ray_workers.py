"""Shards on the nodes of a Ray cluster: what worker processes do on one machine, done by tasks.

One task computes one shard of one table and writes it to the home, which all nodes see under the same path or in a
bucket. A table is one file that appears whole, so a task that is run again after its node died finds its table, or
writes the same one.
No rows travel through Ray: a task returns the table's manifest, or its exception.
"""

import functools
import logging
import os
import socket
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curation_assets.core.allocator import keep_freed_memory
from curation_assets.core.errors import ExpectedError, install_extra
from curation_assets.core.settings import Settings, home_name, home_of, is_in_bucket
from curation_assets.core.version import __version__
from curation_assets.stores.objects import open_home

if TYPE_CHECKING:
    from ray import ObjectRef

MAX_RETRIES = 3  # of a task whose node or process died
CONNECT_SECONDS = 10.0


class RayUnavailableError(ExpectedError):
    """The cluster cannot be used as it is."""


class TaskLostError(ExpectedError):
    """The node or process of a task died, and so did those of its retries."""


class RayExecutor(Executor):
    """Calls importable functions on the cluster at `settings.ray`, in the order in which nodes become free.

    A task takes `settings.threads_of_worker` CPUs and, where it runs models, the profile may use a GPU and the cluster
    has one, a GPU. Raises RayUnavailableError where there is no such cluster.
    """

    def __init__(self, settings: Settings, *, runs_models: bool) -> None:
        ray, threads = _connected(settings), settings.threads_of_worker
        resources = ray.cluster_resources()
        needs_gpu = runs_models and settings.profile.device != "cpu" and resources.get("GPU", 0) >= 1
        largest = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
        if largest < threads:  # such a task would wait for ever
            raise RayUnavailableError(
                f"a task needs {threads} CPUs of one node, the largest node of the Ray cluster at {settings.ray} has "
                f"{largest:.0f}; start nodes with more (`ray start --num-cpus`), or set CURATION_WORKERS so that "
                f"CURATION_THREADS / CURATION_WORKERS ({settings.threads} / {settings.workers} now) is not above it"
            )
        self._home, self._root = home_name(settings.home), settings.home
        self._call = ray.remote(
            num_cpus=threads, num_gpus=1 if needs_gpu else 0, max_retries=MAX_RETRIES, scheduling_strategy="SPREAD"
        )(_call)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Start a call; its future holds what the function returned or raised, TaskLostError where its nodes died."""
        done: Future[Any] = Future()
        reference: ObjectRef[Any] = self._call.remote(__version__, self._home, self._root, function, args, kwargs)
        reference.future().add_done_callback(functools.partial(_pass_on, done=done))
        return done


def _connected(settings: Settings) -> Any:
    """The module `ray`, connected once for the life of this process."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when it is imported
    try:
        import ray
    except ImportError:
        raise RayUnavailableError(f"CURATION_RAY is set, and ray is not installed; {install_extra('ray')}") from None
    if ray.is_initialized():
        return ray
    address = str(settings.ray)
    if address != "auto":
        host, port = address.removeprefix("ray://").rsplit(":", 1)
        try:  # Ray itself tries for minutes
            socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise RayUnavailableError(
                f"no Ray cluster answers at CURATION_RAY={address} ({error.strerror or error}); start one with "
                "`ray start --head`, or unset CURATION_RAY to compute on this machine"
            ) from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError) as error:
        raise RayUnavailableError(f"the Ray cluster at CURATION_RAY={address} cannot be joined: {error}") from error
    return ray


def _call(version: str, home: str, root: Path, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """On a node. `root`: the home where the call was made; settings and paths of it become those of this node."""
    keep_freed_memory()  # as a worker of one machine does
    if version != __version__:
        raise RayUnavailableError(
            f"node {socket.gethostname()} has curation_assets {__version__}, the run {version}; install the same on all"
        )
    here = home_of(home)  # of a bucket the working copy of this node
    if not is_in_bucket(here) and not here.is_dir():
        raise RayUnavailableError(
            f"node {socket.gethostname()} has no folder {home}; every node needs the home under the same path"
        )
    open_home(here)  # what other nodes wrote meanwhile

    def of_here(arg: Any) -> Any:
        if isinstance(arg, Settings):
            return replace(arg, home=here, ray=None)  # a task of a task would wait for CPUs that this one holds
        return here / arg.relative_to(root) if isinstance(arg, Path) and arg.is_relative_to(root) else arg

    return function(*map(of_here, args), **kwargs)


def _pass_on(answered: "Future[Any]", done: "Future[Any]") -> None:
    from ray.exceptions import RayError, RayTaskError

    if not done.set_running_or_notify_cancel():  # nobody waits for it any more
        return
    error = answered.exception()
    if error is None:
        done.set_result(answered.result())
    elif isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        done.set_exception(error.cause)  # as the function raised it, without the traceback of the node in its text
    elif isinstance(error, RayError):
        what = f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
        done.set_exception(
            TaskLostError(
                f"a task was lost {MAX_RETRIES + 1} times with its node or process ({what});"
                " look at the nodes' memory and logs, then run the same command again"
            )
        )
    else:
        done.set_exception(error)

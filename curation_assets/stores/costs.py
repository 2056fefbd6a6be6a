"""What computing tables cost: a log of attempts, one file per process, in the pool's folder `costs`.

An attempt is logged when it starts and when it ends, so a killed one shows, too: it has a start alone.
"""

import json
import os
import sys
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.core.seal import sealed_line, unsealed
from curation_assets.stores.atomic import append_line, make_folder, naming_refusals, remove_path
from curation_assets.stores.documents import save_text
from curation_assets.stores.processes import ProcessName

COSTS = "costs"

#: Grain: one row per attempt to compute a table (of a shard).
ATTEMPTS_SCHEMA = pl.Schema(
    {
        "asset": pl.String,
        "partition": pl.String,
        "run_id": pl.String,
        "started_at": pl.String,
        "outcome": pl.String,  # written, failed:<type of error>, killed (no end was logged)
        "content_sha256": pl.String,  # of what was written
        "seconds": pl.Float64,  # wall; null where killed
        "cpu_seconds": pl.Float64,  # of all threads, finished children and workers that were lent
        "gpu_seconds": pl.Float64,  # wall seconds while this process held a GPU
    }
)

_lent_cpu_seconds = 0.0
_lent_wall_seconds = 0.0


def note_lent_cpu(seconds: float) -> None:
    """Count CPU time that a worker process spent for the computation that is running here."""
    global _lent_cpu_seconds
    _lent_cpu_seconds += seconds


def note_lent_wall(seconds: float) -> None:
    """Count wall time that was spent before for the computation that is running here; less than 0: for another."""
    global _lent_wall_seconds
    _lent_wall_seconds += seconds


def wall_seconds() -> float:
    """A clock of what this process spends on the computation that is running here."""
    return time.perf_counter() + _lent_wall_seconds


def cpu_seconds() -> float:
    """CPU time so far of this process, its finished children, and the workers that reported to it."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system + _lent_cpu_seconds


def holds_gpu() -> bool:
    """Whether this process has a CUDA context. Asks torch only where it is loaded already."""
    torch = sys.modules.get("torch")
    return bool(torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized())


@contextmanager
def attempt(root: Path, asset: str, partition: str | None, run_id: str) -> Iterator[dict[str, Any]]:
    """Log the computation inside. The caller puts the `content_sha256` of what it wrote into the dict it is given."""
    path = root / COSTS / f"attempts-{os.uname().nodename}-{os.getpid()}.jsonl"
    with naming_refusals(path):
        make_folder(path.parent)
    identity = uuid.uuid4().hex
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    begun = {"id": identity, "asset": asset, "partition": partition, "run_id": run_id, "started_at": now}
    _append(path, {**begun, "process": asdict(ProcessName.own())})
    wall, cpu = wall_seconds(), cpu_seconds()
    record: dict[str, Any] = {}
    outcome = "written"
    try:
        yield record
    except BaseException as error:
        outcome = f"failed:{type(error).__name__}"
        raise
    finally:
        seconds = wall_seconds() - wall
        ended = {"id": identity, "outcome": outcome, "seconds": seconds, "cpu_seconds": cpu_seconds() - cpu}
        ended |= {"gpu_seconds": seconds if holds_gpu() else 0.0, "content_sha256": record.get("content_sha256")}
        _append(path, ended)


def _append(path: Path, line: dict[str, Any]) -> None:
    append_line(path, sealed_line(line), is_own=True)


def read_attempts(root: Path) -> pl.DataFrame:
    """Attempts of a pool that have ended (ATTEMPTS_SCHEMA), by start. A line that a kill cut short is passed over."""
    started: dict[str, dict[str, Any]] = {}
    for path in sorted((root / COSTS).glob("attempts-*.jsonl")):
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            line = _record(text)
            if line is None:
                continue
            known = started.setdefault(line["id"], {"outcome": "killed"})
            known |= line
    ended = [record for record in started.values() if "asset" in record and not _is_running(record)]
    rows = [{name: record.get(name) for name in ATTEMPTS_SCHEMA} for record in ended]
    return pl.DataFrame(rows, schema=ATTEMPTS_SCHEMA, orient="row").sort("started_at", maintain_order=True)


def _is_running(record: dict[str, Any]) -> bool:
    """Whether the process of an attempt without an end lives, on this host."""
    process = record.get("process")
    if record["outcome"] != "killed" or not isinstance(process, dict) or set(process) != {"host", "pid", "start"}:
        return False
    return ProcessName(**process).has_ended() is False


def forget_attempts(root: Path, before: float, in_force: Collection[str]) -> int:
    """Remove attempts from logs that were last written before `before` (seconds since 1970); returns how many.

    `in_force`: content hashes of what is stored; the attempts that wrote it stay.
    """
    count = 0
    for path in sorted((root / COSTS).glob("attempts-*.jsonl")):
        if path.stat().st_mtime >= before:
            continue
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        records = [record for line in lines if (record := _record(line)) is not None]
        kept = {record["id"] for record in records if record.get("content_sha256") in in_force}
        count += len({record["id"] for record in records} - kept)
        if not kept:
            remove_path(path)
        elif len(kept) < len({record["id"] for record in records}):
            modified = path.stat().st_mtime_ns
            rest = [sealed_line(record) for record in records if record["id"] in kept]
            save_text(path, "\n".join(rest) + "\n")
            os.utime(path, ns=(modified, modified))
    return count


def damaged_lines(path: Path) -> int:
    """Lines of a log that are not what was written; what a kill cut short, at the end, is none."""
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return sum(_record(line) is None for line in lines)


def drop_damaged_lines(path: Path) -> None:
    """Leave the lines that are what was written: what the others recorded of an attempt is lost."""
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    save_text(path, "".join(f"{line}\n" for line in lines if _record(line) is not None))


def _record(line: str) -> dict[str, Any] | None:
    """A line of a log; None for one that a kill cut short, or that is damaged (`damaged_lines`)."""
    try:
        record = unsealed(json.loads(line), line.encode())
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and "id" in record else None

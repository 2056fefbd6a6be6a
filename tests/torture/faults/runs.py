"""Several processes at one pool, and clocks that jump: the same tables as of one run, and nobody waits unsaid."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.paths import REPOSITORY
from tests.torture.outcome import Fault, Outcome

TABLES = ("raw/registered_shards", "raw/downloads", "raw/samples", "raw/lookup")
SHARDS, ROWS = 3, 8
LIMIT_SECONDS = 240.0  # for a try; what outlives it waits for something that never comes
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
DAY = 24 * 3600


# -- in the process of a try: it imports the flow once, and forks those that run the pool -----------------------------


def run(home: Path, log: Path, *, inside: Callable[[], None] = lambda: None, command: str = "curate run") -> None:
    """Bring the tables up to date as a command does, under the pool's lease. `log` gets notices and what was computed.

    `inside` is called with the lease held, before the first table.
    """
    from curation_assets.stores.lease import pool_lease

    with pool_lease(home / "work" / "photos", command, on_notice=lambda sentence: _write(log, sentence)):
        _write(log, "inside")
        inside()
        materialise(home, log)


def materialise(home: Path, log: Path, shards: list[str] | None = None) -> None:
    """Bring the tables, or shards of those that have some, up to date as an asset does: without the lease."""
    from curation_assets.flow.context import PoolContext
    from curation_assets.flow.graph import tables_of
    from curation_assets.flow.run_table import run_table
    from curation_assets.stores.lease import writing_tables

    ctx = PoolContext.open(_settings(home), "photos")
    tables = tables_of(ctx)
    computed = 0
    for name in TABLES:
        table = tables[name]
        keys = (shards or ctx.shards()) if table.grain == "shard" else None
        with writing_tables(ctx.store.root, on_notice=lambda sentence: _write(log, sentence)):
            result = run_table(ctx, table, keys, tables=tables)
        assert not result.problems, result.problems
        computed += result.report.computed
    _write(log, f"computed {computed}")


def _settings(home: Path) -> "Settings":  # type: ignore[name-defined] # noqa: F821
    from curation_assets.core.settings import load_settings

    return load_settings(home, "embedded")


def _write(log: Path, line: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def _forked(work: Callable[[], None]) -> int:
    """pid of a child that does `work`; its exit status is 0 where that raised nothing."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def _until(log: Path, words: str) -> None:
    while not (log.is_file() and words in log.read_text(encoding="utf-8")):
        time.sleep(0.01)


def _ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def state_of(home: Path) -> dict[str, object]:
    """Content hash per table and shard, rows and how many have a state and, where it needs one, a reason."""
    import polars as pl

    from curation_assets.stores.shard_store import ShardStore

    store = ShardStore(home / "work" / "photos")
    hashes: dict[str, str] = {}
    for name in TABLES:
        for key in store.partitions(name) or [None]:
            manifest = store.manifest(name, key)
            assert manifest is not None, f"{name} {key} is not there"
            if key is not None:
                store.read(name, key)  # checks its content against the manifest
            hashes[f"{name} {key or ''}"] = manifest.content_sha256
    rows = pl.concat([store.read("raw/samples", key) for key in store.partitions("raw/samples")])
    is_kept = (pl.col("status") == "kept") & pl.col("reason").is_null()
    is_out = pl.col("status").is_in(["dropped", "failed"]) & pl.col("reason").is_not_null()
    return {"hashes": hashes, "rows": rows.height, "accounted": rows.filter(is_kept | is_out).height}


def two_at_once(home: Path, **given: object) -> dict[str, object]:
    """The second comes while the first is inside; that goes on when the second has said that it waits."""
    first, second = home / "first.log", home / "second.log"
    one = _forked(lambda: run(home, first, inside=lambda: _until(second, "waits for")))
    _until(first, "inside")
    two = _forked(lambda: run(home, second))
    return {"statuses": [_ended(one), _ended(two)], "logs": [first.read_text(), second.read_text()]}


def killed_holder(home: Path, *, after: float, **given: object) -> dict[str, object]:
    """The first is killed while it works and the second waits."""
    first, second = home / "first.log", home / "second.log"
    one = _forked(lambda: run(home, first, inside=lambda: _until(second, "waits for")))
    _until(first, "inside")
    two = _forked(lambda: run(home, second))
    _until(second, "waits for")
    time.sleep(after)
    os.kill(one, 9)
    return {"statuses": [_ended(one), _ended(two)], "logs": [first.read_text(), second.read_text()]}


def beside_the_ui(home: Path, *, shard: str, **given: object) -> dict[str, object]:
    """A run, and at the same time what the UI's backfill of one shard does, over and over."""
    first, second = home / "first.log", home / "second.log"

    def backfill() -> None:
        while True:
            materialise(home, second, [shard])
            if "computed" in first.read_text(encoding="utf-8"):
                return

    one = _forked(lambda: run(home, first, inside=lambda: _until(second, "begins")))

    def other() -> None:
        _write(second, "begins")
        backfill()

    _until(first, "inside")
    two = _forked(other)
    return {"statuses": [_ended(one), _ended(two)], "logs": [first.read_text(), second.read_text()]}


def jumping_clock(home: Path, *, seed: str, **given: object) -> dict[str, object]:
    """A run, then runs whose clock, and whose files' times, are a day early or late; then a shard comes."""
    from curation_assets.flow import run_table as module
    from tests.support.lineage_pools import caption_of, jpeg, write_tar

    rng, log, clock = random.Random(seed), home / "first.log", home / "clock"
    real, original = time.time, module.materialise_partitions
    jumps = 0  # to another day

    def jump() -> None:
        nonlocal jumps
        offset = rng.choice((-DAY, 0, DAY))
        jumps += offset != 0
        clock.write_text(f"{offset:+d}s\n")
        if not os.environ.get("FAKETIME_TIMESTAMP_FILE"):
            time.time = lambda: real() + offset

    def jumping(*arguments: object, **settings: object) -> object:
        jump()
        return original(*arguments, **settings)  # type: ignore[arg-type]

    def disturb_times() -> None:
        for path in [*(home / "work").rglob("*"), *(home / "tars").iterdir()]:
            moment = real() + rng.choice((-DAY, 0, DAY)) + rng.random()
            if not path.is_symlink():
                os.utime(path, (moment, moment))

    module.materialise_partitions = jumping  # type: ignore[assignment]
    for _ in range(3):
        jump()
        run(home, log)
        disturb_times()
    number = SHARDS * ROWS
    rows = [(f"{number:06d}", f"http://host.example/{number}.jpg", caption_of(number), jpeg(number))]
    write_tar(home / "tars" / f"{SHARDS:06d}.tar", rows)
    jump()
    run(home, log)
    return {"statuses": [0], "logs": [log.read_text()], "jumps": jumps}


def main() -> None:
    """A try: what it gives, and the state of its home, as JSON."""
    name, home, given = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    result = globals()[name](home, **given)
    print(json.dumps({**result, **state_of(home)}))


# -- in the process of the tests ---------------------------------------------------------------------------------------


def _tried(name: str, home: Path, outcome: Outcome, extra_rows: int = 0, **given: object) -> dict[str, object]:
    """Run a try in a process of its own; count rows and hold its tables against those of an undisturbed home."""
    from tests.support.lineage_pools import webdataset_pool

    webdataset_pool(home, shards=SHARDS, per_shard=ROWS)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
    if name == "jumping_clock" and FAKETIME.is_file():  # else Python's own clock alone jumps
        (home / "clock").write_text("+0s\n")
        environment |= {
            "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(home / "clock"), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "NO_FAKE_STAT": "1",
        }  # fmt: skip
    code = "from tests.torture.faults.runs import main; main()"
    command = [sys.executable, "-c", code, name, str(home), json.dumps(given)]
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as late:
        outcome.silent_waits += 1
        raise AssertionError(f"{name} {given} did not end within {LIMIT_SECONDS:g} s") from late
    assert done.returncode == 0, f"{name} {given}: {done.stderr[-2000:]}"
    result: dict[str, object] = json.loads(done.stdout)
    rows, accounted = result["rows"], result["accounted"]
    assert isinstance(rows, int)
    assert isinstance(accounted, int)
    outcome.count_rows(SHARDS * ROWS + extra_rows, accounted)
    return result


def _undisturbed(folder: Path) -> dict[str, str]:
    """Content hash per table and shard of one run that nothing disturbs."""
    from tests.support.lineage_pools import webdataset_pool

    webdataset_pool(folder, shards=SHARDS, per_shard=ROWS)
    materialise(folder, folder / "log")
    hashes = state_of(folder)["hashes"]
    assert isinstance(hashes, dict)
    return hashes


def _same(result: dict[str, object], expected: dict[str, str], outcome: Outcome) -> None:
    """Registered rows name their tar, so these hashes differ from home to home; all that follows is equal."""
    hashes = result["hashes"]
    assert isinstance(hashes, dict)
    harmed = [name for name in expected if hashes.get(name) != expected[name]]
    outcome.harmed_neighbours += len(harmed)
    assert not harmed, f"other tables than of an undisturbed run: {harmed}"


def _logs(result: dict[str, object]) -> list[str]:
    logs = result["logs"]
    assert isinstance(logs, list)
    return [str(log) for log in logs]


def two_runs(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """The second waits for the first by name, computes nothing, and both end well."""
    result = _tried("two_at_once", folder / "home", outcome)
    first, second = _logs(result)
    assert result["statuses"] == [0, 0], (first, second)
    outcome.faults_reached += "waits for" in second
    outcome.silent_waits += "waits for `curate run` (pid " not in second
    assert second.splitlines()[-1] == "computed 0", second
    assert first.splitlines()[-1] == f"computed {SHARDS * 3 + 1}", first
    _same(result, _undisturbed_like(folder), outcome)


def killed_while_another_waits(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """The second goes on where the first was killed."""
    result = _tried("killed_holder", folder / "home", outcome, after=rng.choice((0.0, rng.uniform(0, 0.3))))
    second = _logs(result)[1]
    statuses = result["statuses"]
    assert isinstance(statuses, list)
    outcome.faults_reached += statuses[0] == -signal.SIGKILL
    assert statuses[1] == 0, second
    outcome.silent_waits += "waits for" not in second or "goes on" not in second
    _same(result, _undisturbed_like(folder), outcome)


def run_beside_the_ui(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """Neither waits for the other, and the tables are those of one run."""
    shard = f"photos-{rng.randrange(SHARDS):06d}"
    result = _tried("beside_the_ui", folder / "home", outcome, shard=shard)
    first, second = _logs(result)
    outcome.faults_reached += "computed" in second
    assert result["statuses"] == [0, 0], (first, second)
    _same(result, _undisturbed_like(folder), outcome)


def clock_jumps(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """What was made stays made, and a shard that comes is made, whatever the clock and the times of files are."""
    result = _tried("jumping_clock", folder / "home", outcome, extra_rows=1, seed=str(rng.random()))
    jumps = result["jumps"]
    assert isinstance(jumps, int)
    outcome.faults_reached += jumps
    counts = [line for line in _logs(result)[0].splitlines() if line.startswith("computed")]
    assert counts == [f"computed {SHARDS * 3 + 1}", "computed 0", "computed 0", "computed 4"], counts
    expected = _undisturbed_like(folder)
    _same(result, {name: value for name, value in expected.items() if not name.startswith("raw/lookup")}, outcome)


def _undisturbed_like(folder: Path) -> dict[str, str]:
    """Hashes of an undisturbed home at the same path, since rows name their tars by it."""
    (folder / "home").rename(folder / "tried")
    return _undisturbed(folder / "home")


FAULTS = [
    Fault("two runs of one pool", "The second waits for the first, by name, and computes nothing.", two_runs, full=20),
    Fault(
        "a run killed while another waits",
        "The kernel frees the lease; the second goes on where the first was.",
        killed_while_another_waits,
        full=40,
    ),
    Fault(
        "a run beside a backfill of the UI",
        "Both write the same shard; tables are those of one run.",
        run_beside_the_ui,
        full=20,
    ),
    Fault(
        "clock jumps of a day",
        "Nothing is made again, and nothing new is missed, whatever the clock and times of files are.",
        clock_jumps,
        full=10,
    ),
]

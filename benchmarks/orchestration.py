"""What Dagster adds to the work: fuse → filter over shards of 10,000 rows, with it and without.

    python benchmarks/orchestration.py [--shards 64] [--rounds 2] [--ways plain,single,batched] [--work FOLDER]
    python benchmarks/orchestration.py --ways plain,batched,postgres --postgres-bin /usr/lib/postgresql/15/bin
    python benchmarks/orchestration.py --ways plain,before,batched --before FOLDER

Ways: `plain` calls `run_table`, table by table; the others are `curate run` of the same tables in a fresh instance:
`single` with Dagster's own SQLite storage, `batched` with that of infra/dagster.yaml, `postgres` with a server of its
own on 127.0.0.1, `before` as `single` with the package of another checkout. They alternate, each in a process of its
own; CPU seconds are user and system time of that process and its children (of Postgres, of the server too). Of the
first way through Dagster that is batched, a real webserver answers the UI's queries. Signals are synthetic
(audit_12m.py). Writes benchmarks/results/orchestration.csv.
"""

import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import yaml
from audit_12m import POOL, build, timed

RESULTS = Path(__file__).parent / "results"
ROWS_PER_SHARD = 10_000
CHAIN = (
    "filtered/duplicates", "fused/clip_score_range", "fused/sieve_range", "fused/sieve_clip", "filtered/clip_cut",
    "filtered/clip", "filtered/sieve_clip_cut", "filtered/sieve_clip", "filtered/subsets", "filtered/overlaps",
)  # fmt: skip
OWN_STORAGE = "telemetry:\n  enabled: false\n"
POSTGRES_STORAGE = """telemetry:
  enabled: false
storage:
  postgres:
    postgres_db:
      hostname: 127.0.0.1
      scheme: postgresql+psycopg2
      port: {port}
      username: curation
      password: ""
      db_name: dagster
"""


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Clock:
    """CPU and wall seconds since the last look."""

    def __init__(self) -> None:
        self.cpu, self.wall = cpu_seconds(), time.perf_counter()

    def lap(self) -> tuple[float, float]:
        before = self.cpu, self.wall
        self.cpu, self.wall = cpu_seconds(), time.perf_counter()
        return self.cpu - before[0], self.wall - before[1]


def prepare(home: Path, shards: int) -> None:
    """A pool of so many shards, whose source names them all, in shards of one row."""
    build(home, shards * ROWS_PER_SHARD, shards)
    rows = "".join(f"x,http://a.example/{number}.jpg\n" for number in range(shards))
    (home / "source.csv").write_text(f"caption,url\n{rows}")
    declaration = next(home.rglob(f"{POOL}.yaml"))
    declaration.write_text(yaml.safe_dump({**yaml.safe_load(declaration.read_text()), "shard_size": 1}))


def run_way(home: Path, way: str) -> dict[str, float]:
    """Make the chain once, in this process. Measures by name."""
    from curation_assets.core.settings import load_settings
    from curation_assets.defs.launch import prepare_instance, run_pool
    from curation_assets.flow.context import PoolContext
    from curation_assets.flow.graph import tables_of
    from curation_assets.flow.run_table import keys_of, run_table

    settings = load_settings(home, "embedded")
    ctx = PoolContext.open(settings, POOL)
    shards = ctx.store.partitions("raw/samples")
    tables = tables_of(ctx)
    for name in CHAIN:
        ctx.store.remove(name)
    measures: dict[str, float] = {}
    whole, clock = Clock(), Clock()

    def done(what: str) -> None:
        cpu, wall = clock.lap()
        measures[f"{what} cpu_seconds"], measures[f"{what} seconds"] = cpu, wall

    if way == "plain":
        for table in (table for name, table in tables.items() if name in CHAIN):
            result = run_table(ctx, table, keys_of(table, shards), tables=tables)
            assert not result.problems, result.problems[:3]
            done(table.name)
    else:
        os.environ["DAGSTER_EVENT_BATCH_SIZE"] = "0" if way in ("single", "before") else "1000"
        instance = prepare_instance(settings)
        done("open instance")
        instance.add_dynamic_partitions(POOL, shards)
        done("register shards")
        run_pool(settings, POOL, tables=CHAIN, on_table=lambda report: done(report.table))
        done("after the last table")
    measures["cpu_seconds"], measures["seconds"] = whole.lap()
    if way != "plain":
        run_pool(settings, POOL, tables=CHAIN)
        measures["second run cpu_seconds"], measures["second run seconds"] = whole.lap()
        folder = settings.dagster_home / "history"
        measures["events MB"] = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
    measures["peak MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return measures


@contextlib.contextmanager
def postgres(binaries: Path) -> Iterator[int]:
    """A server on a free port of 127.0.0.1, in a folder of its own; yields the port. As root, by user postgres."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="orchestration_pg_"))
    folder.chmod(0o777)
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    data, quiet = folder / "data", {"check": True, "stdout": subprocess.DEVNULL, "cwd": folder}

    def call(*words: object) -> None:
        subprocess.run([*as_user, *map(str, words)], **quiet)  # type: ignore[call-overload]

    call(binaries / "initdb", "-D", data, "-U", "curation", "--auth=trust", "-E", "UTF8")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    call(binaries / "pg_ctl", "-D", data, "-w", "-l", folder / "log", "-o", options, "start")
    try:
        call(binaries / "createdb", "-h", "127.0.0.1", "-p", port, "-U", "curation", "dagster")
        yield port
    finally:
        call(binaries / "pg_ctl", "-D", data, "-w", "-m", "fast", "stop")
        shutil.rmtree(folder, ignore_errors=True)


def server_cpu(port: int) -> float:
    """CPU seconds of the Postgres server at a port, of its past and present processes."""
    for one in psutil.process_iter(["name", "cmdline"]):
        if one.info["name"] == "postgres" and str(port) in (one.info["cmdline"] or []):
            living = [one, *one.children()]
            ended = one.cpu_times()
            own = sum(sum(process.cpu_times()[:2]) for process in living)
            return float(own + ended.children_user + ended.children_system)
    raise LookupError(f"no process named postgres has the argument {port}")


QUERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "UI graph": (
        """query { assetNodes { assetKey { path } groupName dependencyKeys { path } isPartitioned kinds
        assetMaterializations(limit: 1) { timestamp runId } } }""",
        {},
    ),
    "UI partition status": (
        """query ($keys: [AssetKeyInput!]) { assetNodes(assetKeys: $keys) { assetKey { path }
        partitionStats { numMaterialized numPartitions numFailed numMaterializing }
        assetPartitionStatuses { ... on DefaultPartitionStatuses { materializedPartitions failedPartitions } } } }""",
        {"keys": [{"path": [POOL, *name.split("/")]} for name in ("fused/sieve_clip", "filtered/sieve_clip")]},
    ),
    "UI runs": (
        "query { runsOrError(limit: 25) { ... on Runs { results { runId status stats { __typename } } } } }",
        {},
    ),
}


def ask_webserver(home: Path, repeats: int = 5) -> dict[str, float]:
    """Seconds of the UI's queries at `curate ui`, the first one and the median of those after it."""
    code = "from curation_assets.cli import app; app()"
    command = [sys.executable, "-c", code, "ui", "--port", "0", "--home", str(home)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    measures: dict[str, float] = {}
    try:
        start, url = time.perf_counter(), ""
        assert server.stdout is not None
        for line in server.stdout:
            if "http://127.0.0.1:" in line:
                url = "http" + line.split("http", 1)[1].strip()
                break
        assert url, f"curate ui ended with status {server.wait()}"
        measures["UI start seconds"] = time.perf_counter() - start
        for name, (query, variables) in QUERIES.items():
            body = json.dumps({"query": query, "variables": variables}).encode()
            seconds = []
            for _ in range(repeats):
                request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
                took, answer = timed(lambda request=request: json.loads(urllib.request.urlopen(request).read()))
                assert not answer.get("errors"), answer
                seconds.append(took)
            measures[f"{name} first seconds"] = seconds[0]
            measures[f"{name} seconds"] = statistics.median(seconds[1:])
            if name == "UI partition status":
                stats = answer["data"]["assetNodes"][0]["partitionStats"]
                assert stats["numMaterialized"] == stats["numPartitions"], stats
                measures["UI materialized partitions"] = stats["numMaterialized"]
    finally:
        server.terminate()
        server.wait(timeout=60)
    return measures


def plan_seconds(home: Path) -> dict[str, float]:
    """`curate plan` of the pool, the whole command."""
    code = "from curation_assets.cli import app; app()"
    before = cpu_seconds()
    command = [sys.executable, "-c", code, "plan", POOL, "--home", str(home)]
    took, _ = timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    return {"plan seconds": took, "plan cpu_seconds": cpu_seconds() - before}


def in_own_process(home: Path, way: str, checkout: Path) -> dict[str, float]:
    """`run_way` with the package of a checkout."""
    command = [sys.executable, __file__, "--run", way, "--work", str(home)]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Build, run each way in turn, ask the UI, write what was measured: a row per way, round and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ways", default="plain,single,batched", help="plain, single, batched, postgres.")
    parser.add_argument("--postgres-bin", type=Path, help="Folder with initdb and pg_ctl, for the way postgres.")
    parser.add_argument("--before", type=Path, help="Another checkout, for the way before.")
    parser.add_argument("--skip-ui", action="store_true", help="No webserver, no dry run.")
    parser.add_argument("--work", type=Path, help="Folder to build in and to keep; default: a temporary one.")
    parser.add_argument("--run", help="This way alone, in this process, in a folder that is built.")
    parser.add_argument("--out", type=Path, default=RESULTS / "orchestration.csv")
    given = parser.parse_args()
    if given.run:
        print(json.dumps(run_way(given.work, given.run)))
        return
    home = given.work or Path(tempfile.mkdtemp(prefix="orchestration_"))
    prepare(home, given.shards)
    found: list[tuple[int, str, int, str, float]] = []

    def note(way: str, round_: int, measures: dict[str, float]) -> None:
        found.extend((given.shards, way, round_, name, round(value, 3)) for name, value in measures.items())
        kept = pl.DataFrame(found, schema=["shards", "way", "round", "measure", "value"], orient="row")
        others = kept.clear()
        if given.out.is_file():
            others = pl.read_csv(given.out, schema=kept.schema).join(kept, on=["shards", "way"], how="anti")
        given.out.parent.mkdir(parents=True, exist_ok=True)
        pl.concat([others, kept]).sort("shards", "way", "round", maintain_order=True).write_csv(given.out)
        print(way, round_, {name: round(value, 2) for name, value in measures.items()}, flush=True)

    dagster_home = home / "dagster"
    for round_ in range(given.rounds):
        for way in given.ways.split(","):
            shutil.rmtree(dagster_home, ignore_errors=True)
            checkout = given.before if way == "before" else Path(__file__).parents[1]
            with contextlib.ExitStack() as stack:
                port = stack.enter_context(postgres(given.postgres_bin)) if way == "postgres" else 0
                if way in ("single", "before", "postgres"):  # `batched` is what `curate` sets up
                    dagster_home.mkdir(parents=True)
                    config = POSTGRES_STORAGE.format(port=port) if way == "postgres" else OWN_STORAGE
                    (dagster_home / "dagster.yaml").write_text(config)
                load = os.getloadavg()[0]
                measures = in_own_process(home, way, checkout) | {"load when started": load}
                if way == "postgres":
                    measures["server cpu_seconds"] = server_cpu(port)
                note(way, round_, measures)
                if round_ == 0 and way in ("batched", "postgres") and not given.skip_ui:
                    note(way, round_, ask_webserver(home) | plan_seconds(home))
    facts = {"cores": float(os.cpu_count() or 0)}
    note(f"machine (Python {platform.python_version()})", 0, facts)
    if given.work is None:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()

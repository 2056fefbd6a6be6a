"""One pool made on a disk, in a bucket and on a Ray cluster that loses a node: are its tables the same?

    python -m tests.same_bytes [--pools demo,photos] [--ways disk,bucket,ray] [--photographs FOLDER] [--work FOLDER]

Pools: `demo` is that of `curate demo`; `photos` are noisy photographs made from the tars of --photographs (FOLDER has
photos/*.tar), under the profile photos. Ways: `disk`, a folder; `bucket`, a server of S3 on 127.0.0.1; `ray`, a folder
and two nodes, the second of which is killed while it computes. Each way is a `curate` process of its own. Prints its
seconds and ends with status 1 where a table or a file of ids differs from the first way's.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.sources.declaration import add_pool
from curation_assets.sources.noisy_photos import TRUTH, write_noisy_photos
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.objects import open_home
from tests.support.bucket import BUCKET, running_bucket
from tests.support.paths import REPOSITORY
from tests.support.ray_cluster import RayCluster, ray_cluster

CURATE = [sys.executable, "-c", "from curation_assets.cli import main; main()"]
POOLS = {"demo": ("scenes", "embedded"), "photos": ("noisy", "photos")}  # → (name, profile)
TIMED = re.compile(r"^raw/(downloads|provenance)|_runs$|^downstream/.*seconds|^downstream/report$")  # times, costs
PHOTO_OPTIONS = {"duplicates": True, "fraction": 0.25, "distil": False, "downstream": False}
POLL_SECONDS = 0.2
KILLED_AFTER_SECONDS = 20.0  # of work of the second node


def declare(pool: str, home: str, tars: Path) -> list[str]:
    """Declare a pool in a home. The words of the command that makes it."""
    name, profile = POOLS[pool]
    if pool == "demo":
        return ["demo", "--home", home, "--profile", profile]
    settings = load_settings(home, profile)
    open_home(settings.home)
    add_pool(settings, name, tars, options={**PHOTO_OPTIONS, "truth": str(tars / TRUTH)})
    return ["run", name, "--home", home, "--profile", profile]


def contents(pool: str, home: str) -> dict[str, str]:
    """'table shard' → hash of its content, 'file of ids' → bytes; none with times in it."""
    name, profile = POOLS[pool]
    settings = load_settings(home, profile)
    open_home(settings.home)
    store = PoolContext.open(settings, name).store
    found = {}
    for asset in stored_tables(store):
        if not TIMED.search(asset):
            for key in store.partitions(asset) or [None]:
                manifest = store.manifest(asset, key)
                assert manifest is not None
                found[f"{asset} {key or ''}"] = manifest.content_sha256
    for file in sorted(store.folder_path("filtered/subsets").glob("**/*.npy")):
        found[f"filtered/subsets {file.name}"] = file.read_bytes().hex()
    return found


def run_way(pool: str, way: str, folder: Path) -> tuple[dict[str, str], float]:
    """(contents of a pool made in one way, seconds of its command)."""
    home, log = str(folder / way), folder / f"{way}.log"
    with contextlib.ExitStack() as stack:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        cluster: RayCluster | None = None
        if way == "bucket":
            environment |= stack.enter_context(running_bucket()).environment
            os.environ |= environment  # this process reads it, too
            home = f"s3://{BUCKET}/{pool}"
        elif way == "ray":
            cluster = stack.enter_context(ray_cluster())
            environment = cluster.environment
        command = [*CURATE, *declare(pool, home, folder / "photographs")]
        began, worked = time.monotonic(), 0.0
        with log.open("w") as output:
            run = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
            while run.poll() is None:
                time.sleep(POLL_SECONDS)
                worked += POLL_SECONDS * bool(cluster and cluster.tasks_of_second())
                if cluster is not None and worked >= KILLED_AFTER_SECONDS:
                    cluster.kill_second()
                    print(f"  second node killed {time.monotonic() - began:.0f} s after the start", flush=True)
                    cluster = None
        seconds = time.monotonic() - began
        if run.returncode != 0 or (way == "ray" and cluster is not None):
            raise SystemExit(f"{pool} {way}: status {run.returncode}, or no node killed\n{log.read_text()[-3000:]}")
        return contents(pool, home), seconds


def main() -> None:
    """Make each pool in each way, compare with the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", default="demo,photos")
    parser.add_argument("--ways", default="disk,bucket,ray")
    parser.add_argument("--photographs", type=Path, help="Folder with photos/*.tar: photographs and their captions.")
    parser.add_argument("--size", type=int, default=300, help="Rows of the pool of photographs, in four shards.")
    parser.add_argument("--work", type=Path, help="Folder to keep; default: a temporary one.")
    given = parser.parse_args()
    work = given.work or Path(tempfile.mkdtemp(prefix="same_bytes_"))
    os.environ["CURATION_HOMES"] = str(work / "homes")
    os.environ["CURATION_WORKERS"] = "2"  # a thread each: a node of the cluster has one CPU
    differing = 0
    for pool in given.pools.split(","):
        folder = work / pool
        folder.mkdir(parents=True, exist_ok=True)
        if pool == "photos" and not (folder / "photographs").is_dir():
            sources = sorted((given.photographs / "photos").glob("*.tar"))[-1:]
            shard_size = -(-given.size // 4)
            write_noisy_photos(sources, folder / "photographs", size=given.size, shard_size=shard_size)
        first: dict[str, str] = {}
        for way in given.ways.split(","):
            found, seconds = run_way(pool, way, folder)
            first = first or found
            other = sorted(name for name in found.keys() | first.keys() if found.get(name) != first.get(name))
            differing += len(other)
            print(f"{pool} {way}: {seconds:.0f} s, {len(found)} compared, {len(other)} differ {other[:9]}", flush=True)
    if given.work is None:
        shutil.rmtree(work)
    sys.exit(bool(differing))


if __name__ == "__main__":
    main()

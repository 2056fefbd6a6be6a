"""Submit a pool to Slurm: an array of jobs over its shards, then a job for what reads the whole pool, in turns.

    python infra/slurm/submit.py POOL --per-task 16 --shard-args "--gres=gpu:1" --pool-args "--mem=64G"

The job for the whole pool begins when all of the array ended well, and submits the next turn where tables are left:
fits lie between stages of shards. The same command again is safe at any time: what is finished is not made again, and
two chains of one pool wait for each other. Environment variables (CURATION_HOME, …, SBATCH_PARTITION) reach the jobs.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext

HERE = Path(__file__).absolute().parent
MAX_TASKS = 1000  # Slurm's MaxArraySize is 1001 unless a site raised it


def ranges(shards: Sequence[str], per_task: int) -> Iterator[str]:
    """'first..last' of each task's stretch of shards."""
    for start in range(0, len(shards), per_task):
        stretch = shards[start : start + per_task]
        yield f"{stretch[0]}..{stretch[-1]}"


def submit(arguments: argparse.Namespace) -> tuple[str, str]:
    """Numbers of the two jobs."""
    settings = load_settings()
    shards = PoolContext.open(settings, arguments.pool).shards()
    if not shards:
        raise ValueError(f"pool {arguments.pool!r} has no shards; look at its declaration in {settings.pools_root}")
    per_task = max(arguments.per_task, -(-len(shards) // arguments.max_tasks))
    tasks = list(ranges(shards, per_task))
    folder = settings.work(arguments.pool) / "slurm"
    folder.mkdir(parents=True, exist_ok=True)
    named = f"--job-name=curate-{arguments.pool}"
    logs = f"--output={folder}/%x-%A_%a.log"
    array = _sbatch(
        [named, logs, f"--array=0-{len(tasks) - 1}", *shlex.split(arguments.shard_args)],
        ["shards.sbatch", sys.executable, arguments.pool, *tasks],
    )
    again = [
        *("--per-task", str(arguments.per_task), "--max-tasks", str(arguments.max_tasks)),
        *(f"--shard-args={arguments.shard_args}", f"--pool-args={arguments.pool_args}"),
    ]
    whole = _sbatch(
        [
            *(named, f"--output={folder}/%x-%j.log"),
            *(f"--dependency=afterok:{array}", "--kill-on-invalid-dep=yes", *shlex.split(arguments.pool_args)),
        ],
        ["pool.sbatch", sys.executable, arguments.pool, str(HERE / "submit.py"), *again],
    )
    print(
        f"pool {arguments.pool}: {len(shards)} shards in {len(tasks)} tasks, jobs {array} and {whole}; logs in {folder}"
    )
    return array, whole


def _sbatch(options: Sequence[str], script: Sequence[str]) -> str:
    command = ["sbatch", "--parsable", *options, str(HERE / script[0]), *script[1:]]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{shlex.join(command[:4])} … ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip().split(";")[0]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool")
    parser.add_argument("--per-task", type=int, default=16, help="shards of one task")
    parser.add_argument(
        "--max-tasks", type=int, default=MAX_TASKS, help="tasks of one array; more shards: longer tasks"
    )
    parser.add_argument("--shard-args", default="", help="options of sbatch for the array")
    parser.add_argument("--pool-args", default="", help="options of sbatch for the job of the whole pool")
    arguments = parser.parse_args()
    for name in ("per_task", "max_tasks"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, got {getattr(arguments, name)}")
    try:
        submit(arguments)
    except (ValueError, OSError) as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()

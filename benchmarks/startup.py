"""Start-up: seconds of whole processes, from the shell's call to the exit, with compiled bytecode.

    python benchmarks/startup.py [--runs 5]

Writes benchmarks/results/startup.csv: median and range per command, wall-clock and CPU, and the machine. Run it on an
idle machine. Bytecode of the whole environment is compiled first, into a folder of its own; every command has a cache
folder of its own, so that "first" is what a new user waits for.
"""

import argparse
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import polars as pl

RESULTS = Path(__file__).parent / "results"
REPOSITORY = Path(__file__).parents[1]
CAPTIONS = "a red kite over the beach\na dog\nthe meaning of success\ntwo boats in the harbour at night\n"
SENTENCE = "a red kite over the beach"
CURATE = "from curation_assets.cli import app; app()"  # what the installed command runs


def commands(folder: Path) -> dict[str, list[str]]:
    """Name → arguments of Python. `icc explain` twice: with an empty cache folder, and with what the first left."""
    (folder / "in.txt").write_text(CAPTIONS, encoding="utf-8")
    curate = ["-c", CURATE]
    explain = [*curate, "icc", "explain", SENTENCE]
    return {
        "import curation_assets": ["-c", "import curation_assets"],
        "curate --help": [*curate, "--help"],
        "curate score icc, four lines": [
            *curate, "score", "icc", str(folder / "in.txt"), "--out", str(folder / "out.tsv")
        ],
        "curate icc explain, first call": explain,
        "curate icc explain, second call": explain,
    }  # fmt: skip


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and CPU seconds (user + system) of the processes that a call starts."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    call()
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def processor() -> str:
    """Name of the processor, as Linux gives it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="runs of each command")
    runs = parser.parse_args().runs
    times: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
            "CURATION_CACHE": str(folder / "cache"),
            "HF_HUB_OFFLINE": "1",
        }

        def python(arguments: list[str], check: bool = True) -> None:
            subprocess.run(
                [sys.executable, *arguments], cwd=folder, env=environment, check=check, stdout=subprocess.DEVNULL
            )

        compiled = [sysconfig.get_path(name) for name in ("stdlib", "purelib")] + [str(REPOSITORY / "curation_assets")]
        python(["-m", "compileall", "-q", "-j", "0", *compiled], check=False)  # packages ship files of other versions
        for name, arguments in commands(folder).items():
            for _ in range(runs):
                if name.endswith("first call"):
                    shutil.rmtree(folder / "cache", ignore_errors=True)
                (folder / "out.tsv").unlink(missing_ok=True)
                times.setdefault(name, []).append(timed(lambda arguments=arguments: python(arguments)))
    rows = [
        {
            "command": name,
            "runs": runs,
            "wall_seconds": statistics.median(wall for wall, _ in found),
            "wall_low": min(wall for wall, _ in found),
            "wall_high": max(wall for wall, _ in found),
            "cpu_seconds": statistics.median(cpu for _, cpu in found),
        }
        for name, found in times.items()
    ]
    table = pl.DataFrame(rows).with_columns(
        pl.col(pl.Float64).round(2),
        machine=pl.lit(f"{processor()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"),
    )
    RESULTS.mkdir(exist_ok=True)
    table.write_csv(RESULTS / "startup.csv")
    print(table)


if __name__ == "__main__":
    main()

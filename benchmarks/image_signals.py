"""Signals of photographs: this package against a pool of processes, Daft and Ray Data, each in a process of its own.

python -m benchmarks.image_signals FOLDER [--images 2500] [--peers PYTHON] [--rounds 3] [--into PAGE]

FOLDER holds tars of photographs (webdataset). Of every 100 photographs one is cut short. The signals are width, height,
perceptual hash, blur, darkness, glare and information (formulas.md §14.1). Libraries are loaded and processes
started on 16 photographs before the clock starts; what that takes is a column of its own. Wall time, CPU seconds and
peak memory are those of all processes of a way: memory as the kernel shares it out between them (PSS), looked at four
times a second. Results are compared first: a way that differs is named and its ratio left out.

`--peers`: an interpreter that has Daft, Ray Data, Pillow, NumPy, ImageHash and SciPy, of this one's versions so that
images are decoded alike: `python -m venv PEERS && PEERS/bin/pip install daft "ray[data]" imagehash pillow==… numpy==…`.
What it lacks is not measured.
"""

import argparse
import io
import json
import os
import re
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import psutil
from PIL import Image

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of, with_upstream
from curation_assets.flow.parallel import warm_up
from curation_assets.flow.run_table import keys_of, run_table
from curation_assets.sources.declaration import add_pool

RESULTS = Path(__file__).parent / "results" / "image_signals.csv"
MARKERS = ("<!-- figures of images -->", "<!-- end of figures of images -->")
METHODS = ("image_blur", "image_dark", "image_light", "image_entropy")
SIGNALS = ("perceptual_hash", *METHODS)
BROKEN_EVERY = 100
WARM_IMAGES = 16
TOLERANCE = 1e-12  # of values in [0, 1]: the peers add up floats in another order
PSS_EVERY_SECONDS = 0.25
#: Way → its name in the table. The first three are the peers.
WAYS = {
    "pool": "pool of processes",
    "daft": "Daft",
    "ray": "Ray Data",
    "apart": "this package, a pass per table",
    "ours": "this package, one pass",
}
PEERS = ("pool", "daft", "ray")


def photographs(folder: Path) -> Iterator[tuple[str, dict[str, bytes]]]:
    """(tar's name _ key, suffix → bytes) of each sample below `folder`, in order."""
    for source in sorted(folder.glob("*.tar")):
        with tarfile.open(source) as tar:
            samples: dict[str, dict[str, bytes]] = {}
            for member in tar:
                file = tar.extractfile(member)
                if file is not None:
                    name = Path(member.name)
                    samples.setdefault(name.stem, {})[name.suffix] = file.read()
        for key, files in samples.items():
            if ".jpg" in files:
                yield f"{source.stem}_{key}", files


def write_images(samples: Sequence[tuple[str, dict[str, bytes]]], into: Path, shards: int, broken_every: int) -> None:
    """`shards` tars of the samples, and the same images as Parquet (key, image). Some images are cut to a half."""
    into.mkdir(parents=True)
    size = -(-len(samples) // shards)
    for shard in range(shards):
        keys, images = [], []
        with tarfile.open(into / f"{shard:06d}.tar", "w") as tar:
            for number, (key, files) in enumerate(samples[shard * size : (shard + 1) * size], start=shard * size):
                image = files[".jpg"]
                if broken_every and number % broken_every == broken_every // 2:
                    image = image[: len(image) // 2]
                for suffix, data in {**files, ".jpg": image}.items():
                    info = tarfile.TarInfo(key + suffix)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
                keys.append(key)
                images.append(image)
        pl.DataFrame({"key": keys, "image": images}).write_parquet(into / f"{shard:06d}.parquet")


# --- this package, in a process of its own


def open_pool(home: Path, source: Path, profile: str) -> PoolContext:
    """A new pool of the tars below `source`."""
    settings = load_settings(home, profile)
    options = {
        "methods": list(METHODS), "duplicates": {"perceptual_bits": 4}, "distil": False, "downstream": False,
    }  # fmt: skip
    add_pool(settings, "measured", source, options=options)
    return PoolContext.open(settings, "measured")


def make_tables(ctx: PoolContext, names: Sequence[str], planned: Sequence[str] = ()) -> None:
    """Bring tables and what they rest on up to date."""
    ctx.planned = frozenset(planned)
    tables = tables_of(ctx)
    for table in with_upstream(tables, names).values():
        result = run_table(ctx, table, keys_of(table, ctx.shards()), tables=tables)
        assert not result.problems, result.problems


def measure_own(way: str, folder: Path, profile: str) -> None:
    """Start, warm up, wait, work; lines as image_peers.py writes them."""
    names = [f"signals/{name}" for name in SIGNALS]
    planned = names if way == "ours" else ()
    with tempfile.TemporaryDirectory(prefix="image_signals_") as homes:
        warm = open_pool(Path(homes) / "warm", folder / "warm", profile)
        warm_up(warm.settings, [])
        make_tables(warm, names, planned)
        ctx = open_pool(Path(homes) / "all", folder / "all", profile)
        _say(ready={})
        sys.stdin.readline()
        for phase, made, together in (("register", ["raw/samples"], ()), ("signals", names, planned)):
            start = time.perf_counter()
            make_tables(ctx, made, together)
            _say(phase=phase, seconds=time.perf_counter() - start)
            sys.stdin.readline()
        own_rows(ctx).write_parquet(folder / f"{way}.parquet")


def own_rows(ctx: PoolContext) -> pl.DataFrame:
    """The tables of a pool in the columns of image_peers.py; a row whose image is broken has nulls."""
    registered = ctx.store.scan("raw/registered_shards").collect()
    rows = registered.select("sample_id", pl.col("member").str.strip_suffix(".jpg").alias("key"))
    samples = ctx.store.scan("raw/samples").collect()
    rows = rows.join(samples.select("sample_id", "width", "height"), on="sample_id", validate="1:1")
    for name in SIGNALS:
        table = ctx.store.scan(f"signals/{name}").collect()
        column = name if name in table.columns else "value"
        rows = rows.join(table.select("sample_id", pl.col(column).alias(name)), on="sample_id", validate="1:1")
    return rows.drop("sample_id")


def _say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


# --- the process that measures


@dataclass
class Processes:
    """CPU seconds and memory of a process and all that descend from it, those that have ended included."""

    root: psutil.Process
    peak_bytes: int = 0  # PSS
    _cpu: dict[tuple[int, float], float] = field(default_factory=dict)  # seconds, by pid and start

    def look(self, memory: bool = False) -> float:
        """CPU seconds up to now."""
        total = 0
        for process in _family(self.root):
            try:
                times = process.cpu_times()
                self._cpu[process.pid, process.create_time()] = times.user + times.system
                total += process.memory_full_info().pss if memory else 0
            except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                continue
        self.peak_bytes = max(self.peak_bytes, total)
        return sum(self._cpu.values())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks at memory until the end of the block."""
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.wait(PSS_EVERY_SECONDS):
                self.look(memory=True)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            is_over.set()
            watcher.join()


#: The line of a traceback that names the exception.
EXCEPTION = re.compile(r"[\w.]*(Error|Exception)\b(\([\w.]*\))?:")


def _family(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def command_of(way: str, folder: Path, profile: str, peers: str | None) -> list[str]:
    """What runs a way."""
    if way in PEERS:
        return [peers or sys.executable, str(Path(__file__).with_name("image_peers.py")), way, str(folder)]
    return [sys.executable, "-m", "benchmarks.image_signals", str(folder), "--way", way, "--profile", profile]


def run_way(command: Sequence[str]) -> list[dict[str, Any]] | str:
    """Rows of each phase (seconds, cpu_seconds, peak_mib, start_seconds), or the last line of why there are none."""
    began = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        tree = Processes(psutil.Process(child.pid))
        rows: list[dict[str, Any]] = []
        start_seconds, cpu, versions = 0.0, 0.0, {}
        try:
            with tree.watched():
                for line in child.stdout:
                    facts = json.loads(line) if line.startswith("{") else {}
                    now = tree.look()
                    if "ready" in facts:
                        start_seconds, versions = time.perf_counter() - began, facts["ready"]
                        tree.peak_bytes = 0
                    elif "phase" in facts:
                        rows.append({**facts, "cpu_seconds": now - cpu, "peak_mib": tree.peak_bytes / 2**20})
                    else:
                        continue
                    cpu = tree.look()
                    child.stdin.write("\n")
        finally:
            for process in _family(tree.root)[1:]:
                _end(process)
        status = child.wait()
        errors.seek(0)
        said = [line.strip() for line in errors if line.strip()]
    if status:
        return next((line for line in reversed(said) if EXCEPTION.match(line)), f"exit status {status}")
    return [{**row, "start_seconds": start_seconds, "versions": versions} for row in rows]


def _end(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


def difference(expected: pl.DataFrame, found: pl.DataFrame) -> tuple[bool, str]:
    """Whether two results are equal, and in words."""
    columns = ["key", "width", "height", *SIGNALS]
    expected, found = (
        table.select(columns).with_columns(pl.col("width", "height").cast(pl.Int64)).sort("key")
        for table in (expected, found)
    )
    exact = ["key", "width", "height", "perceptual_hash"]
    same = expected.select(exact).equals(found.select(exact))
    if not same or any(expected[name].is_null().ne(found[name].is_null()).any() for name in METHODS):
        return False, "DIFFERENT"
    largest = max(float((expected[name] - found[name]).abs().max() or 0.0) for name in METHODS)  # type: ignore[arg-type]
    broken = found["perceptual_hash"].null_count()
    return largest <= TOLERANCE, f"hashes and sizes equal, max Δ {largest:.0e}, {broken} broken images null"


def measure(arguments: argparse.Namespace, folder: Path) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Every way in turn, `--rounds` times, and what became of it: rows by round, and words by way."""
    rows: list[dict[str, Any]] = []
    words: dict[str, str] = {}
    for number in range(arguments.rounds):
        for way in WAYS:
            if way in words and way not in {row["way"] for row in rows}:
                continue  # was not there in the first round
            done = run_way(command_of(way, folder, arguments.profile, arguments.peers))
            if isinstance(done, str):
                words[way] = f"not measured: {done}"
                continue
            for row in done:
                print(f"round {number + 1}, {WAYS[way]}, {row['phase']}: {row['seconds']:.2f} s", flush=True)
                rows.append({"round": number + 1, "way": way, **row})
    expected = pl.read_parquet(folder / "ours.parquet")
    for way in dict.fromkeys(row["way"] for row in rows):
        is_equal, words[way] = difference(expected, pl.read_parquet(folder / f"{way}.parquet"))
        if not is_equal:
            rows = [row for row in rows if row["way"] != way]
        elif way in PEERS:
            outcome = run_way([*command_of(way, folder, arguments.profile, arguments.peers), "--unguarded"])
            became = f"ends with {outcome}" if isinstance(outcome, str) else "ends well"
            words[way] += f"; without an except of its own it {became}"
    return rows, words


def summary(rows: Sequence[dict[str, Any]], words: dict[str, str], images: int) -> list[dict[str, Any]]:
    """A row per way, medians over the rounds. Ratios are against the fastest peer of the same round."""
    by_way: dict[str, list[dict[str, Any]]] = {}
    for way in WAYS:
        of_way = [row for row in rows if row["way"] == way]
        by_way[WAYS[way]] = [row for row in of_way if row["phase"] == "signals"]
        if way == "ours":
            by_way["this package, from the tars on"] = [
                {**row, **{name: row[name] + other[name] for name in ("seconds", "cpu_seconds")}}
                for row, other in zip(
                    (row for row in of_way if row["phase"] == "signals"),
                    (row for row in of_way if row["phase"] == "register"),
                    strict=True,
                )
            ]
    peers = [row for row in rows if row["way"] in PEERS]
    fastest = {
        number: {name: min(row[name] for row in peers if row["round"] == number) for name in ("seconds", "cpu_seconds")}
        for number in {row["round"] for row in peers}
    }
    found = []
    for name, of_way in by_way.items():
        ratios = [fastest[row["round"]]["seconds"] / row["seconds"] for row in of_way if row["round"] in fastest]
        cpu = [fastest[row["round"]]["cpu_seconds"] / row["cpu_seconds"] for row in of_way if row["round"] in fastest]
        way = next((way for way, shown in WAYS.items() if shown == name), "ours")
        found.append(
            {
                "way": name,
                "images": images,
                **{f"{key}": _median([row[key] for row in of_way], 2) for key in ("seconds", "cpu_seconds")},
                **{f"{key}": _median([row[key] for row in of_way], 0) for key in ("peak_mib", "start_seconds")},
                "ratio": _median(ratios, 2),
                "ratio_low": round(min(ratios), 2) if ratios else None,
                "ratio_high": round(max(ratios), 2) if ratios else None,
                "cpu_ratio": _median(cpu, 2),
                "result": words.get(way, ""),
            }
        )
    return found


def _median(values: Sequence[float], digits: int) -> float | None:
    return round(statistics.median(values), digits) if values else None


def table(rows: Sequence[dict[str, Any]], facts: Sequence[str]) -> str:
    """Markdown: the machine, then one table."""
    lines = [
        "; ".join(facts) + ".",
        "",
        "| way | seconds | CPU seconds | images/s | peak MiB | start, s | times the fastest peer (spread) | by CPU time | result |",  # noqa: E501
        "|---|" + "--:|" * 7 + "---|",
    ]
    for row in rows:
        if row["seconds"] is None:
            lines.append(f"| {row['way']} |" + " – |" * 7 + f" {row['result']} |")
            continue
        ratio = "–"
        if row["ratio"] is not None:
            ratio = f"{row['ratio']:.2f} ({row['ratio_low']:.2f}–{row['ratio_high']:.2f})"
        lines.append(
            f"| {row['way']} | {row['seconds']:.2f} | {row['cpu_seconds']:.2f} | {row['images'] / row['seconds']:.0f} "
            f"| {row['peak_mib']:.0f} | {row['start_seconds']:.0f} | {ratio} "
            f"| {'–' if row['cpu_ratio'] is None else format(row['cpu_ratio'], '.2f')} | {row['result']} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure every way, or run one of this package's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=2500)
    parser.add_argument("--shards", type=int, default=8, help="tars, and Parquet files, that they are spread over")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", default="embedded", help="decides how many workers: no model is loaded")
    parser.add_argument("--peers", help="interpreter that has Daft and Ray Data")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--into", type=Path, help="write the table between the markers of this page")
    parser.add_argument("--way", choices=[way for way in WAYS if way not in PEERS], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        measure_own(given.way, given.folder, given.profile)
        return
    from benchmarks.performance import processor, publish  # loads torch, which the ways do not need

    load = os.getloadavg()[0]
    samples: list[tuple[str, dict[str, bytes]]] = []
    for sample in photographs(given.folder):
        if len(samples) == given.images:
            break
        samples.append(sample)
    with tempfile.TemporaryDirectory(prefix="image_signals_") as name:
        folder = Path(name)
        write_images(samples[:WARM_IMAGES], folder / "warm", min(given.shards, 2), 0)
        write_images(samples, folder / "all", given.shards, BROKEN_EVERY)
        measured, words = measure(given, folder)
    rows = summary(measured, words, len(samples))
    versions = {name: version for row in measured for name, version in row["versions"].items()}
    sizes = [Image.open(io.BytesIO(files[".jpg"])).size for _, files in samples]
    facts = [
        f"{os.cpu_count()} cores of {processor()}",
        f"load {load:.1f} when started",
        f"{given.rounds} rounds, medians",
        f"{len(samples)} photographs of {statistics.mean(w * h for w, h in sizes) / 1e6:.3f} megapixels on average, "
        f"one of {BROKEN_EVERY} cut short, in {given.shards} files",
        "peers: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    publish(rows, table(rows, facts), given.out, given.into, MARKERS)


if __name__ == "__main__":
    main()

"""Seconds from `curate look` to its page: a tar of photographs, a csv of captions, a Parquet of pairs of the web.

    python benchmarks/look.py --shared DIR [--repeats 3] [--into benchmarks/results/look.md]

`DIR` holds data/photos, data/captions and data/web. The first repetition of each has an empty cache folder, as after a
fresh installation: the backbones are converted then. CPU seconds hardly depend on what else the machine does; wall
seconds do, so the load is written beside them.
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import polars as pl

REPOSITORY = Path(__file__).parents[1]
CURATE = "from curation_assets.cli import main; main()"


def web_parquet(folder: Path, path: Path, rows: int) -> None:
    """The first pairs of tars as Hugging Face writes images."""
    pairs = []
    for tar_path in sorted(folder.glob("train-*.tar")):
        with tarfile.open(tar_path) as tar:
            members = {one.name: tar.extractfile(one) for one in tar if one.isfile()}
            files = {name: file.read() for name, file in members.items() if file is not None}
        for name, data in files.items():
            if name.endswith(".jpg"):
                caption = files[f"{name[:-4]}.txt"].decode()
                pairs.append({"image": {"bytes": data, "path": name}, "caption": caption})
        if len(pairs) >= rows:
            break
    pl.DataFrame(pairs[:rows]).write_parquet(path)


def timed(source: Path, folder: Path, cache: Path) -> dict[str, float | str]:
    """One command: wall seconds to its first line and to the page, CPU seconds, size of the page, load before it."""
    page = folder / "page.html"
    page.unlink(missing_ok=True)
    load = os.getloadavg()[0]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-c", CURATE, "look", str(source), "--no-open", "--into", str(page)],
        env={**os.environ, "CURATION_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    first = time.perf_counter() - began
    output = process.stdout.read()
    status, wall = process.wait(), time.perf_counter() - began
    if status or not page.is_file():
        raise RuntimeError(f"curate look {source} ended with status {status}: {output}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    said = next(line for line in output.splitlines() if " rows: " in line).partition(" rows: ")[0]
    size = page.stat().st_size / 1e6
    return {"rows": said, "first line": first, "page": wall, "cpu": cpu, "MB": size, "load before": load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--into", type=Path, default=REPOSITORY / "benchmarks" / "results" / "look.md")
    given = parser.parse_args()
    data, lines = given.shared / "data", []
    head = (
        "# A first look: seconds from the command to the page\n\n"
        f"`python benchmarks/look.py --repeats {given.repeats}`; {os.cpu_count()} cores, Python "
        f"{platform.python_version()}. Bar: 60 s on two idle cores; on a busy machine read the CPU seconds, of which "
        "two idle cores do some 1.8 a second.\n\n"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        web_parquet(data / "web", folder / "pairs.parquet", 2_000)
        captions = pl.read_parquet(data / "captions" / "coco_val2017_captions.parquet", columns=["caption"])
        captions.head(25_000).write_csv(folder / "captions.csv")
        sources = [
            ("csv, 25,000 captions", folder / "captions.csv"),
            ("tar, 500 photographs", data / "photos" / "000000.tar"),
            ("Parquet, 2,000 pairs of the web", folder / "pairs.parquet"),
        ]
        lines.append("| source | rows | run | first line s | page s | CPU s | MB | load before |")
        lines.append("|---|---|---|---:|---:|---:|---:|---:|")
        for title, source in sources:
            for number in range(given.repeats):
                cache = folder / f"cache-{title}"
                found = timed(source, folder, cache)
                run = "empty cache" if number == 0 else f"{number + 1}"
                lines.append(
                    f"| {title} | {found['rows']} | {run} | {found['first line']:.1f} | {found['page']:.1f} "
                    f"| {found['cpu']:.1f} | {found['MB']:.1f} | {found['load before']:.1f} |"
                )
                given.into.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
                print(title, found, flush=True)


if __name__ == "__main__":
    main()

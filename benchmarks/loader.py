"""How fast a subset is read in place, against reading tars from front to back.

    python -m benchmarks.loader FOLDER_OF_TARS [--repetitions N] [--into benchmarks/results/loader.md]

Of a pool of these tars, and of one of their images enlarged threefold (which is the size that trainings store), 5, 30
and 100 % are drawn. Read are: the subset in place by `ca.dataset`, in the source's order
and shuffled; the same subset exported to tars of its own, and the pool's own tars whole, both by webdataset and by
tarfile, all members of every sample, nothing decoded. All are timed in turn, in one process, `repetitions` times;
a ratio is of neighbours in time. CPU seconds are beside wall seconds: other work on the machine does not count in them.
"""

import argparse
import io
import os
import platform
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import webdataset as wds
from PIL import Image

import curation_assets as ca
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.identity import pack_uids
from curation_assets.outputs.exports.subset import find_subset
from curation_assets.outputs.exports.webdataset import export_webdataset

SHARES = (0.05, 0.3, 1.0)
LEAST_SECONDS = 1.0  # of one measurement: passes are repeated until then
POOL = "pool"
PLACE, SHUFFLED = "in place", "in place, shuffled"
WEBDATASET, TARFILE = "its own tars, webdataset", "its own tars, tarfile"
WHOLE_WEBDATASET, WHOLE_TARFILE = "the pool's tars, webdataset", "the pool's tars, tarfile"

Reader = Callable[[], Iterable[object]]  # gives one object a sample


def by_webdataset(tars: list[Path]) -> Iterable[object]:
    """Samples as webdataset groups them."""
    return wds.WebDataset([str(tar) for tar in tars], shardshuffle=False, empty_check=False)


def by_tarfile(tars: list[Path]) -> Iterator[object]:
    """Members of the same key together: what webdataset does, by hand."""
    for path in tars:
        with tarfile.open(path) as tar:
            key, sample = None, dict[str, bytes]()
            for member in tar:
                name, _, extension = member.name.partition(".")
                if name != key and sample:
                    yield sample
                    sample = {}
                key, file = name, tar.extractfile(member)
                assert file is not None
                sample[extension] = file.read()
            yield sample


def drop_from_cache(tars: list[Path]) -> None:
    """Have the system forget the files' pages, so that they are read from the disk again."""
    for path in tars:
        file = os.open(path, os.O_RDONLY)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def measure(read: Reader, tars: list[Path], *, is_cold: bool) -> tuple[float, float]:
    """(wall seconds, CPU seconds) a sample: of one pass from the disk, else of passes for LEAST_SECONDS."""
    if is_cold:
        drop_from_cache(tars)
    count, wall, cpu = 0, time.perf_counter(), time.process_time()
    while not count or (not is_cold and time.perf_counter() - wall < LEAST_SECONDS):
        count += sum(1 for _ in read())
    return (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count


def readers(ctx: PoolContext, share: float, work: Path) -> dict[str, tuple[Reader, list[Path]]]:
    """What is compared at a share: name → reader, the tars that it reads."""
    ids = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").select("sample_id").collect()["sample_id"]
    ids = ids.unique().sort()
    drawn = np.random.default_rng(0).choice(len(ids), round(share * len(ids)), replace=False)
    work.mkdir(parents=True, exist_ok=True)
    listed, exported = work / f"{share}.npy", work / f"{share}"
    np.save(listed, pack_uids(ids[np.sort(drawn)].to_list()))
    export_webdataset(find_subset(ctx, str(listed)), exported)
    own = sorted(exported.glob("*.tar"))
    whole = sorted({(ctx.store.root / tar).resolve() for tar in find_subset(ctx, str(listed)).rows["tar"]})
    opened = partial(ca.dataset, str(listed), home=ctx.settings.home, columns=("key", "image", "caption"))
    plain, shuffled = opened(), opened(shuffle_seed=0)
    return {
        PLACE: (lambda: plain, whole),
        SHUFFLED: (lambda: shuffled, whole),
        WEBDATASET: (partial(by_webdataset, own), own),
        TARFILE: (partial(by_tarfile, own), own),
        WHOLE_WEBDATASET: (partial(by_webdataset, whole), whole),
        WHOLE_TARFILE: (partial(by_tarfile, whole), whole),
    }


def enlarge(source: Path, target: Path) -> None:
    """The tars of a folder with their JPEGs three times as wide and high."""
    target.mkdir()
    for path in sorted(source.glob("*.tar")):
        with tarfile.open(path) as before, tarfile.open(target / path.name, "w") as after:
            for member in before:
                file = before.extractfile(member)
                assert file is not None
                data = file.read()
                if member.name.endswith(".jpg"):
                    image, buffer = Image.open(io.BytesIO(data)).convert("RGB"), io.BytesIO()
                    image.resize((3 * image.width, 3 * image.height), Image.Resampling.BICUBIC).save(buffer, "JPEG")
                    data = buffer.getvalue()
                member.size = len(data)
                after.addfile(member, io.BytesIO(data))


def spread(values: list[float], digits: int) -> str:
    """'median (lowest to highest)'."""
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def table(ctx: PoolContext, work: Path, repetitions: int, *, is_cold: bool) -> Iterator[str]:
    """Rows of a Markdown table."""
    yield "| share | read | samples/s, wall | ÷ its own tars, webdataset | ÷ its own tars, tarfile | the same in CPU |"
    yield "|---|---|---|---|---|---|"
    for share in SHARES:
        compared = readers(ctx, share, work)
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in compared}
        for _ in range(repetitions):
            for name, (read, tars) in compared.items():
                seconds[name].append(measure(read, tars, is_cold=is_cold))
        for name, taken in seconds.items():
            ratios = [
                [base[clock] / own[clock] for base, own in zip(seconds[other], taken, strict=True)]
                for clock, other in ((0, WEBDATASET), (0, TARFILE), (1, WEBDATASET), (1, TARFILE))
            ]
            cpu = ", ".join(f"{statistics.median(ratio):.2f}" for ratio in ratios[2:])
            rates = spread([1 / wall for wall, _ in taken], 0)
            shown = [f"{share:.0%}", name, rates, spread(ratios[0], 2), spread(ratios[1], 2), cpu]
            yield f"| {' | '.join(shown)} |"


def main() -> None:
    """Read all, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tars", type=Path)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--into", type=Path, default=Path(__file__).parent / "results" / "loader.md")
    given = parser.parse_args()
    lines = [
        "# Reading a subset in place",
        "",
        f"One process on {os.cpu_count()} cores ({platform.machine()}), {given.repetitions} repetitions in turn, "
        "median (lowest to highest). Ratios above 1: faster than the tars. Written by `benchmarks/loader.py`.",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        enlarge(given.tars, Path(folder) / "tars")
        for name, tars in (("as they are", given.tars), ("enlarged", Path(folder) / "tars")):
            work = Path(folder) / name.replace(" ", "_")
            ca.add_pool(POOL, tars.resolve(), home=work / "home")
            ctx = PoolContext.open(load_settings(work / "home"), POOL)
            run_with_upstream(ctx, "raw/samples")
            kept = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()
            lines += [
                f"## Images {name}: {kept.height:,} in {kept['tar'].n_unique()} tars, median "
                f"{kept['image_bytes'].median():,.0f} bytes",
                "",
            ]
            for is_cold, title in ((False, "Tars in the system's cache:"), (True, "Tars read from the disk:")):
                print(f"{name}: {title}", flush=True)
                lines += [title, "", *table(ctx, work / str(is_cold), given.repetitions, is_cold=is_cold), ""]
    given.into.write_text("\n".join(lines[:-1]) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()

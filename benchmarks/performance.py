"""The student and the selection against what a user would write: python benchmarks/performance.py --shared DIR.

Alternating in one run, --rounds times: captions scored by a plain sentence-transformers loop (batches of 32 as they
come, all six layers), by the layers of the student in padded batches of 32, by the shipped student, the same in
bfloat16, the static one and the cascade; and the selection by one score as DataComp's script makes it in pandas, and by
this package. Equal results are checked first. Writes benchmarks/results/performance.csv and the tables of --into
(benchmarks/results/performance.md). Under 8 minutes on an idle machine of two cores.
"""

import argparse
import gc
import os
import platform
import re
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from curation_assets.core.settings import Profile, load_profile
from curation_assets.engines import load_engine
from curation_assets.engines.addresses import resolve_address
from curation_assets.engines.batches import run_by_length
from curation_assets.engines.sentence_layers import MAX_TOKENS, pool
from curation_assets.numeric.agreement import correlations
from curation_assets.numeric.identity import packed_uids
from curation_assets.numeric.selection import compat_rank, value_of_rank
from curation_assets.selection.rows import uid_columns

RESULTS = Path(__file__).parent / "results" / "performance.csv"
PLAIN_BATCH = 32
AT_ONCE = load_profile("embedded").batch_size["student"]  # captions a call, as the pipeline hands them over
FRACTION = 0.3  # of DataComp's baselines
SHARD_ROWS = 10_000
MARKERS = ("<!-- figures -->", "<!-- end of figures -->")
Work = Callable[[], Any]


def student(address: str, **settings: Any) -> Any:
    """An engine of the role student."""
    profile = Profile(
        "benchmark",
        {"student": address},
        generation={"student": settings},
        device="cpu",
        batch_size={"student": AT_ONCE},
    )
    return load_engine("student", profile)


def plain_loop() -> Callable[[list[str]], np.ndarray]:
    """Embeddings as the library's examples compute them: batch after batch as the captions come."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(resolve_address("embedded:minilm").folder), device="cpu", local_files_only=True)
    return lambda texts: np.concatenate(
        [
            model.encode(texts[start : start + PLAIN_BATCH], batch_size=PLAIN_BATCH, show_progress_bar=False)
            for start in range(0, len(texts), PLAIN_BATCH)
        ]
    )


def padded(exact: Any) -> Callable[[list[str]], np.ndarray]:
    """The same student in padded, masked batches of 32, sorted by their length in characters."""
    model, layer = exact.sentence_encoder.model, exact.sentence_encoder.layers[0]

    @torch.inference_mode()
    def encode(batch: list[str]) -> torch.Tensor:
        ids, is_real = model.tokenize(batch, MAX_TOKENS)
        pooled = pool(model.hidden_states(ids, is_real)[layer], is_real[:, :, None], "mean")
        return torch.nn.functional.normalize(pooled, dim=-1)

    return lambda texts: np.concatenate(
        [
            exact.score_embeddings(run_by_length(texts[start : start + AT_ONCE], PLAIN_BATCH, encode).numpy())
            for start in range(0, len(texts), AT_ONCE)
        ]
    )


def by_calls(engine: Any, at_once: int) -> Callable[[list[str]], np.ndarray]:
    """`at_once` captions a call."""
    return lambda texts: np.concatenate(
        [engine.score_captions(texts[start : start + at_once]) for start in range(0, len(texts), at_once)]
    )


def caption_rows(shared: Path, count: int, rounds: int) -> list[dict[str, Any]]:
    """Raw alt-text and COCO captions, each in its own order drawn once."""
    folder = shared / "data" / "captions"
    alt = pl.read_parquet(folder / "alt_texts.parquet").filter(pl.col("source") != "cc3m_val")["text"]
    coco = pl.read_parquet(folder / "coco_val2017_captions.parquet")["caption"]
    exact, static = student("embedded:icc_student"), student("embedded:icc_student_static")
    rows = []
    for kind, column in (("raw alt-text", alt), ("COCO captions", coco)):
        texts = [text for text in column.sample(fraction=1, shuffle=True, seed=5).to_list() if text and text.strip()]
        texts = texts[:count]
        expected = exact.score_captions(texts)
        cut = float(np.quantile(expected, 1 - FRACTION))
        works: dict[str, Callable[[list[str]], np.ndarray]] = {
            "plain loop": plain_loop(),
            "student, padded batches of 32": padded(exact),
            "student": by_calls(exact, AT_ONCE),
            "student, bfloat16": by_calls(student("embedded:icc_student", precision="bfloat16"), AT_ONCE),
            f"cascade, best {FRACTION:.0%}": by_calls(student(f"cascade:{cut:.4f}"), AT_ONCE),
            "static student": by_calls(static, AT_ONCE),
        }
        equal = {name: _agreement(work(texts), expected, cut) for name, work in works.items() if name != "plain loop"}
        works["plain loop"](texts[:PLAIN_BATCH])  # warm
        rows += measure(f"{len(texts)} captions, {kind}", {n: _call(w, texts) for n, w in works.items()}, equal, rounds)
    return rows


def _call(work: Callable[[list[str]], np.ndarray], texts: list[str]) -> Work:
    return lambda: work(texts)


def _agreement(values: np.ndarray, expected: np.ndarray, cut: float) -> str:
    lost = float((values[expected >= cut] < cut).mean())
    spearman = correlations(values, expected)[1]
    return f"max Δ {np.abs(values - expected).max():.1e}, Spearman {spearman:.4f}, lost above cut {lost:.2%}"


def selection_rows(rows: int, rounds: int) -> list[dict[str, Any]]:
    """Metadata of `rows` samples as DataComp stores it; one score's best fraction as sorted u8,u8 npy."""
    with tempfile.TemporaryDirectory(prefix="performance_") as name:
        folder = Path(name)
        rng = np.random.default_rng(0)
        for number in range(rows // SHARD_ROWS):
            letters = np.frombuffer(rng.bytes(SHARD_ROWS * 16).hex().encode(), dtype="S32").astype("U32")
            score = rng.normal(0.25, 0.08, SHARD_ROWS).astype(np.float32)
            score[rng.random(SHARD_ROWS) < 0.01] = np.nan
            pl.DataFrame(
                {
                    "uid": pl.Series(letters, dtype=pl.String),
                    "text": ["a caption of usual length, which nobody reads here"] * SHARD_ROWS,
                    "clip_l14_similarity_score": score,
                }
            ).write_parquet(folder / f"{number:08d}.parquet")
        works: dict[str, Work] = {
            "pandas script": lambda: in_pandas(folder, folder / "pandas.npy"),
            "this package": lambda: in_polars(folder, folder / "ours.npy"),
        }
        for work in works.values():
            work()
        same = (folder / "pandas.npy").read_bytes() == (folder / "ours.npy").read_bytes()
        if not same:
            raise AssertionError("the two subsets differ")
        return measure(f"best {FRACTION:.0%} of {rows:,} rows → npy", works, {"this package": "the same bytes"}, rounds)


def in_pandas(folder: Path, out: Path) -> None:
    """Read, threshold at the element of the descending order, pack one by one, sort (formulas.md §3.3)."""
    import pandas as pd

    paths = sorted(folder.glob("*.parquet"))
    frame = pd.concat([pd.read_parquet(path, columns=["uid", "clip_l14_similarity_score"]) for path in paths])
    score = frame["clip_l14_similarity_score"].to_numpy()
    descending = np.sort(score[~np.isnan(score)])[::-1]
    threshold = descending[int(len(descending) * FRACTION)]
    uids = frame["uid"].to_numpy()[score >= threshold]
    packed = np.array([(int(uid[:16], 16), int(uid[16:32], 16)) for uid in uids], np.dtype("u8,u8"))
    packed.sort()
    np.save(out, packed)


def in_polars(folder: Path, out: Path) -> None:
    """The package's own functions: `value_of_rank`, `uid_columns`, `packed_uids`."""
    column = "clip_l14_similarity_score"
    table = pl.scan_parquet(sorted(folder.glob("*.parquet")), glob=False).select("uid", column).collect()
    score = table[column].to_numpy()
    rank = compat_rank(int(np.count_nonzero(~np.isnan(score))), FRACTION)
    kept = table.filter(score >= value_of_rank(lambda: [score], rank)[0])
    halves = kept.select(uid_columns("uid")).sort("uid_high", "uid_low")
    np.save(out, packed_uids(halves["uid_high"].to_numpy(), halves["uid_low"].to_numpy()), allow_pickle=False)


def measure(work: str, ways: dict[str, Work], equal: dict[str, str], rounds: int) -> list[dict[str, Any]]:
    """Every way in turn, `rounds` times; the first one is the baseline of the ratios, round by round."""
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, call in ways.items():
            gc.collect()
            before, start = _cpu_seconds(), time.perf_counter()
            call()
            seconds[name].append((time.perf_counter() - start, _cpu_seconds() - before))
            print(f"{work}, round {number + 1}, {name}: {seconds[name][-1][0]:.2f} s", flush=True)
    base = np.array(seconds[next(iter(ways))])  # (R, 2)
    found = []
    for name, taken in seconds.items():
        ratios = base / np.array(taken)  # (R, 2)
        found.append(
            {
                "work": work,
                "way": name,
                "seconds": round(float(np.median([wall for wall, _ in taken])), 3),
                "cpu_seconds": round(float(np.median([cpu for _, cpu in taken])), 3),
                "ratio": round(float(np.median(ratios[:, 0])), 2),
                "ratio_low": round(float(ratios[:, 0].min()), 2),
                "ratio_high": round(float(ratios[:, 0].max()), 2),
                "cpu_ratio": round(float(np.median(ratios[:, 1])), 2),
                "equal": equal.get(name, ""),
            }
        )
    return found


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def tables(rows: Sequence[dict[str, Any]], facts: Sequence[str]) -> str:
    """Markdown: the machine, then one table per work."""
    parts = ["; ".join(facts) + "."]
    for work in dict.fromkeys(row["work"] for row in rows):
        lines = [
            "| way | seconds | CPU seconds | times the first (spread) | by CPU time | result |",
            "|---|" + "--:|" * 4 + "---|",
        ]
        for row in rows:
            if row["work"] == work:
                spread = f"{row['ratio']:.1f} ({row['ratio_low']:.1f}–{row['ratio_high']:.1f})"
                lines.append(
                    f"| {row['way']} | {row['seconds']:.2f} | {row['cpu_seconds']:.2f} | {spread} "
                    f"| {row['cpu_ratio']:.1f} | {row['equal']} |"
                )
        parts.append(f"**{work}**\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def processor() -> str:
    """Model name and what it multiplies in; Linux only."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.is_file() else ""
    name = re.search(r"model name\s*: (.*)", text)
    kinds = [kind for kind in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if f" {kind}" in text]
    return f"{name.group(1) if name else platform.processor()} ({', '.join(kinds) or 'no vector units known'})"


def between_markers(page: str, markers: tuple[str, str], shown: str) -> str:
    """The page with `shown` between its two markers. Raises ValueError where it lacks one of them."""
    start, end = markers
    if start not in page or end not in page:
        raise ValueError(f"expected the markers {start} and {end} in the page; add them where the tables belong")
    before, _, rest = page.partition(start)
    return f"{before}{start}\n{shown}\n{end}{rest.partition(end)[2]}"


def machine_facts(load: float, rounds: int) -> list[str]:
    """What figures depend on: processor, torch, load when the run began, rounds, memory."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return [
        f"{os.cpu_count()} cores of {processor()}",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads",
        f"load {load:.1f} when started",
        f"{rounds} rounds, medians",
        f"peak memory of the whole run {peak:.1f} GiB",
    ]


def publish(
    rows: list[dict[str, Any]], shown: str, out: Path, into: Path | None, markers: tuple[str, str] = MARKERS
) -> None:
    """Write the rows as CSV, print what is shown, and put it between the markers of a page."""
    out.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(rows).write_csv(out)
    print(shown)
    if into is not None:
        into.write_text(between_markers(into.read_text(encoding="utf-8"), markers, shown), encoding="utf-8")


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder of data/captions")
    parser.add_argument("--captions", type=int, default=3_000, help="of each kind")
    parser.add_argument("--rows", type=int, default=2_560_000, help="of the pool to select from")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--into", type=Path, help="write the tables between the markers of this page")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    rows = caption_rows(given.shared, given.captions, given.rounds) + selection_rows(given.rows, given.rounds)
    publish(rows, tables(rows, machine_facts(load, given.rounds)), given.out, given.into)


if __name__ == "__main__":
    main()

"""Captions per second of the signals of text that need no teacher: python -m benchmarks.text_signals --shared DIR.

SIEVE's sentence cosines (each caption against eight generated ones) beside the loop that a user would write with
sentence-transformers, values compared first; masking, language, personal data, concreteness by lexicon; and
relatedness, whose weights are fitted on the pool part by part (`--pool` captions) and on `--downstream` texts. Writes
benchmarks/results/text_signals.csv and the table of --into (performance.md beside it). Ten minutes on two idle cores.
"""

import argparse
import gc
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.settings import Profile, load_profile
from curation_assets.methods import get_method
from curation_assets.numeric.medium_phrases import mask_medium_phrases
from curation_assets.numeric.relatedness import relatedness
from curation_assets.scoring.parameters import with_parameters
from curation_assets.stages.standardised.word_weights import weights_of

RESULTS = Path(__file__).parent / "results" / "text_signals.csv"
MARKERS = ("<!-- figures of text -->", "<!-- end of figures of text -->")
GENERATED = 8  # captions of an image, as SIEVE samples them
SENTENCES_AT_ONCE = load_profile("embedded").batch_size["sentence_encoder"]
AT_ONCE = {"sieve": SENTENCES_AT_ONCE}  # captions of a batch, as the pipeline hands them over
DEFAULT_AT_ONCE = 256
PART = 100_000  # captions of a shard of the large pool
TOLERANCE = 1e-5  # of cosines: batches of other lengths add up floats in another order


def captions_of(shared: Path) -> tuple[list[str], list[list[str]]]:
    """All alt-texts and captions, shuffled once; and groups of a COCO image's five captions."""
    folder = shared / "data" / "captions"
    coco = pl.read_parquet(folder / "coco_val2017_captions.parquet")
    alt = pl.read_parquet(folder / "alt_texts.parquet")["text"]
    flickr = pl.read_parquet(folder / "flickr8k_captions.parquet")["caption"]
    mixed = pl.concat([alt, coco["caption"], flickr]).drop_nulls().sample(fraction=1, shuffle=True, seed=5).to_list()
    groups = coco.group_by("image_id", maintain_order=True).agg("caption")["caption"].to_list()
    return [text for text in mixed if text.strip()], groups


def sieve_columns(groups: Sequence[Sequence[str]], count: int) -> dict[str, list[Any]]:
    """Captions, each with eight of the same image and of the next: some repeat, as generated captions do."""
    chosen = [(groups[i], groups[(i + 1) % len(groups)]) for i in range(count)]
    return {
        "caption": [own[0] for own, _ in chosen],
        "generated_captions": [[*own[1:5], *other[:4]][:GENERATED] for own, other in chosen],
    }


def plain_sieve(columns: dict[str, list[Any]], encode: Callable[[list[str]], np.ndarray]) -> np.ndarray:
    """Every text of every sample is embedded, as it comes; the best cosine. Captions that mask to nothing score 0."""
    texts = [
        mask_medium_phrases(text)
        for caption, generated in zip(columns["caption"], columns["generated_captions"], strict=True)
        for text in (caption, *generated)
    ]
    vectors = encode(texts)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[[not text for text in texts]] = 0
    vectors = vectors.reshape(len(columns["caption"]), 1 + GENERATED, -1)  # (N, 1 + R, D)
    best: np.ndarray = np.einsum("nd,nrd->nr", vectors[:, 0], vectors[:, 1:]).max(axis=1)
    return best


def in_batches(call: Callable[[dict[str, list[Any]]], Any], columns: dict[str, list[Any]], at_once: int) -> list[Any]:
    """The answers of a method's function, a batch of captions at a time."""
    starts = range(0, len(columns["caption"]), at_once)
    return [call({name: values[start : start + at_once] for name, values in columns.items()}) for start in starts]


def works(
    texts: list[str], groups: list[list[str]], given: argparse.Namespace
) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Name → (captions, work)."""
    from benchmarks.performance import plain_loop  # loads torch, which relatedness is measured without
    from curation_assets.engines import load_engine

    addresses = {"sentence_encoder": "embedded:minilm", "language_identifier": "embedded:lid176"}
    profile = Profile("benchmark", addresses, device="cpu", batch_size={"sentence_encoder": SENTENCES_AT_ONCE})
    engines = {role: load_engine(role, profile) for role in addresses}
    encode = plain_loop()
    sieve = sieve_columns(groups, given.sieve)
    captions = {"caption": texts[: given.captions]}

    def of_method(name: str, columns: dict[str, list[Any]], **settings: Any) -> Callable[[], list[Any]]:
        method = with_parameters(get_method(name), **settings)
        roles = {role: engines[role] for role in method.roles}
        at_once = AT_ONCE.get(name, DEFAULT_AT_ONCE)
        return lambda: in_batches(lambda batch: method.function(**batch, **roles), columns, at_once)

    ours = of_method("sieve", sieve)
    values = np.concatenate([answer.value for answer in ours()])
    largest = float(np.abs(values - plain_sieve(sieve, encode)).max())
    if largest > TOLERANCE:
        raise AssertionError(f"SIEVE differs from the plain loop by {largest:.1e}")
    lexicon = given.shared / "data" / "words" / "concreteness_ratings_half.tsv"
    count = len(captions["caption"])
    return {
        f"SIEVE, {GENERATED} generated captions, plain loop": (given.sieve, lambda: plain_sieve(sieve, encode)),
        f"SIEVE, {GENERATED} generated captions": (given.sieve, ours),
        "masking, clean": (count, lambda: [mask_medium_phrases(text) for text in captions["caption"]]),
        "masking, as the reference": (count, lambda: [mask_medium_phrases(t, "repo") for t in captions["caption"]]),
        "english": (count, of_method("english", captions)),
        "personal_data": (count, of_method("personal_data", captions)),
        "concreteness_lexicon": (count, of_method("concreteness_lexicon", captions, path=str(lexicon))),
    }


def large_pool(texts: Sequence[str], count: int) -> Iterator[list[str]]:
    """`count` captions in parts: each is the first half of one caption and the second half of another.

    One of ten ends in a number that no other has, as those of products do: a pool of the web has a million words.
    """
    rng = np.random.default_rng(5)
    heads = [text.split()[: (len(text.split()) + 1) // 2] for text in texts]
    tails = [text.split()[(len(text.split()) + 1) // 2 :] for text in texts]
    for start in range(0, count, PART):
        pairs = rng.integers(0, len(texts), (min(PART, count - start), 2)).tolist()
        yield [
            " ".join([*heads[first], *tails[second], *([f"n{start + i}"] if i % 10 == 0 else [])])
            for i, (first, second) in enumerate(pairs)
        ]


def measure(rounds: int, ways: dict[str, tuple[int, Callable[[], Any]]]) -> list[dict[str, Any]]:
    """Every way in turn, `rounds` times."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, (count, work) in ways.items():
            gc.collect()
            cpu, start = time.process_time(), time.perf_counter()
            work()
            taken[name].append((time.perf_counter() - start, time.process_time() - cpu))
            print(f"round {number + 1}, {name}: {count / taken[name][-1][0]:,.0f} a second", flush=True)
    return [_row(name, count, taken[name]) for name, (count, _) in ways.items()]


class DrawnPool:
    """The parts of a large pool, and what drawing them took: (wall, CPU) seconds."""

    def __init__(self, texts: Sequence[str], count: int) -> None:
        self.texts, self.count = texts, count
        self.spent = (0.0, 0.0)

    def __iter__(self) -> Iterator[list[str]]:
        parts = large_pool(self.texts, self.count)
        while True:
            before = _clocks()
            part = next(parts, None)
            self.spent = _plus(self.spent, _since(before))
            if part is None:
                return
            yield part


def relatedness_rows(texts: list[str], given: argparse.Namespace) -> list[dict[str, Any]]:
    """Weights of a pool and downstream texts, and the pool's values, once: a part of the pool in memory at a time.

    Drawing the pool's captions is not counted.
    """
    downstream = [text for part in large_pool(texts[::-1], given.downstream) for text in part]
    name = f"relatedness to {given.downstream:,} texts"
    pool, before = DrawnPool(texts, given.pool), _clocks()
    weights = weights_of(pool, downstream)
    fitting = _plus(_since(before), pool.spent, -1)
    fitted = _row(f"{name}, weights ({len(weights.words):,} words)", given.pool, [fitting])
    pool, before = DrawnPool(texts, given.pool), _clocks()
    for part in pool:
        assert len(relatedness(part, weights)) == len(part)
    return [fitted, _row(name, given.pool, [_plus(_since(before), pool.spent, -1)])]


def _clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(before: tuple[float, float]) -> tuple[float, float]:
    return _plus(_clocks(), before, -1)


def _plus(first: tuple[float, float], second: tuple[float, float], sign: int = 1) -> tuple[float, float]:
    return first[0] + sign * second[0], first[1] + sign * second[1]


def _row(name: str, count: int, taken: Sequence[tuple[float, float]]) -> dict[str, Any]:
    rates = [count / seconds for seconds, _ in taken]
    return {
        "signal": name,
        "captions": count,
        "per_second": round(float(np.median(rates))),
        "per_second_low": round(min(rates)),
        "per_second_high": round(max(rates)),
        "per_cpu_second": round(float(np.median([count / cpu for _, cpu in taken]))),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,  # of the process up to here
    }


def table(rows: Sequence[dict[str, Any]], facts: Sequence[str]) -> str:
    """Markdown: the machine, then one table."""
    lines = [
        "; ".join(facts) + ".",
        "",
        "| signal | captions | a second (spread) | a CPU second | peak MiB so far |",
        "|---|" + "--:|" * 4,
    ]
    lines += [
        f"| {row['signal']} | {row['captions']:,} | {row['per_second']:,} ({row['per_second_low']:,}–"
        f"{row['per_second_high']:,}) | {row['per_cpu_second']:,} | {row['peak_mib']:,} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Parse, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder of data/captions and data/words")
    parser.add_argument("--captions", type=int, default=50_000, help="of all but SIEVE and relatedness")
    parser.add_argument("--sieve", type=int, default=1_000, help="captions, each with eight generated ones")
    parser.add_argument("--pool", type=int, default=10_000_000, help="captions of the pool of relatedness")
    parser.add_argument("--downstream", type=int, default=100_000, help="texts that they are related to")
    parser.add_argument("--rounds", type=int, default=3, help="of all but relatedness, which is measured once")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--into", type=Path, help="write the table between the markers of this page")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    texts, groups = captions_of(given.shared)
    related = relatedness_rows(texts, given)  # first: its peak memory is that of a process without models
    rows = [*measure(given.rounds, works(texts, groups, given)), *related]
    from benchmarks.performance import processor, publish

    facts = [
        f"{os.cpu_count()} cores of {processor()}",
        f"load {load:.1f} when started",
        f"{given.rounds} rounds, medians (relatedness: one)",
        "one process",
    ]
    publish(rows, table(rows, facts), given.out, given.into, MARKERS)


if __name__ == "__main__":
    main()

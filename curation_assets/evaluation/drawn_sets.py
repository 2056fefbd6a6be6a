"""Training sets: what one model of a comparison is trained on. A policy's subset, a control or a given list, at a size.

All are drawn from the rows that may be trained on: images that the models are measured on are taken out first, so
that shares are of the same rows for everyone.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from curation_assets.core.table_names import reference_of
from curation_assets.numeric.selection import random_ranking, share_count
from curation_assets.numeric.sorting import as_pairs
from curation_assets.selection.judging import multiplicity
from curation_assets.selection.left_out import without_benchmarks
from curation_assets.selection.part_by_part import Pool, kept_parts
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import DROPPED, PoolRows
from curation_assets.stores.columns import uid_texts

Trainable = Callable[[PoolRows], PoolRows]  # rows → the same, of which only trainable ones are kept
Parts = Callable[[], Iterable[PoolRows]]
LEXICON = "signals/concreteness_lexicon"
POLICY, CONTROL, FILE = "policy", "control", "file"  # kinds
CLEAN = "clean"  # the kind of a sample without planted noise
SAMPLING_SEED = 0  # of what is drawn from a set that is larger than the size
_KEY = re.compile(r"(?P<name>[a-z0-9_]+)_(?:own|at(?P<share>[0-9]{4}))-(?P<seed>[0-9]{6})")


@dataclass(frozen=True)
class TrainingKey:
    """A training set, its size and a training seed: the partition of one training."""

    name: str
    size: float | None  # share of the pool, in thousandths; None: the set's own size
    seed: int

    def __str__(self) -> str:
        """As a partition is called: icc_at0250-000002 is a quarter of the pool, seed 2; icc_own-000002 its own size."""
        size = "own" if self.size is None else f"at{round(1000 * self.size):04d}"
        return f"{self.name}_{size}-{self.seed:06d}"

    @classmethod
    def parse(cls, key: str) -> "TrainingKey":
        """Inverse of str(). Raises ValueError for any other text."""
        match = _KEY.fullmatch(key)
        if match is None:
            raise ValueError(f"expected NAME_own-SEED or NAME_atSHARE-SEED such as icc_at0250-000002, got {key!r}")
        share = match["share"]
        return cls(match["name"], None if share is None else int(share) / 1000, int(match["seed"]))


def training_keys(names: Iterable[str], sizes: Sequence[float], seeds: Sequence[int]) -> tuple[TrainingKey, ...]:
    """Every set × size × seed, seeds fastest. No sizes: each set's own.

    Raises ValueError for a size that is no share in thousandths.
    """
    for size in sizes:
        if not 0 < size <= 1 or abs(1000 * size - round(1000 * size)) > 1e-6:
            raise ValueError(f"downstream_sizes must be shares in (0, 1], in thousandths, got {size}")
    return tuple(TrainingKey(name, size, seed) for name in names for size in (sizes or (None,)) for seed in seeds)


def trainable(rows: PoolRows, held_out: pl.DataFrame, is_decontaminated: bool) -> PoolRows:
    """The rows without those of `held_out` (columns shard, source_row), and `is_decontaminated` without those of
    benchmarks: they count as dropped."""
    keys = pl.DataFrame([_shards(rows), pl.Series("source_row", rows.source_row, dtype=pl.Int64)])
    is_held_out = keys.select(
        pl.struct(keys.columns).is_in(held_out.select(pl.struct(keys.columns)).to_series().implode())
    )
    status = rows.status.copy()
    status[is_held_out.to_series().to_numpy()] = DROPPED
    rows = replace(rows, status=status, _signals={})
    return without_benchmarks(rows) if is_decontaminated else rows


def _shards(rows: PoolRows) -> pl.Series:
    return pl.Series("shard", rows.shard.words, dtype=pl.String).gather(rows.shard.codes)


def _listed(rows: PoolRows, times: np.ndarray) -> pl.DataFrame:
    """Those of the rows that count, (N,) how often: halves of the id, shard, source_row, count."""
    columns = [
        pl.Series("uid_high", rows.uid_high),
        pl.Series("uid_low", rows.uid_low),
        _shards(rows),
        pl.Series("source_row", rows.source_row, dtype=pl.Int64),
        pl.Series("count", times, dtype=pl.UInt32),
    ]
    return pl.DataFrame(columns).filter(pl.col("count") > 0)


def policy_set(policy: Policy, pool: Pool, changed: Trainable, size: float | None, seed: int) -> pl.DataFrame:
    """A policy's subset of trainable rows, as `_listed`, by cuts fitted on them.

    At a size, a policy that ranks keeps its best; a rule (a threshold) keeps a random draw of what passes, or all
    where that is less. A policy that repeats lists an id as often as it counts. The policy `random` draws anew for
    every seed.
    """
    if policy.rank_by == RANDOM:
        policy = replace(policy, seed=seed)
    is_ranked = size is not None and policy.threshold is None
    cut = policy.with_fraction(size) if is_ranked and size is not None else policy

    def parts() -> Iterator[pl.DataFrame]:
        for rows, kept in zip(map(changed, pool.parts()), kept_parts(cut, pool, changed), strict=True):
            values = rows.signal(policy.rank_by).values if policy.repeats else None
            yield _listed(rows, kept if is_ranked else multiplicity(kept, values))

    if size is None or is_ranked:
        return pl.concat(parts())
    return drawn(parts(), _count(map(changed, pool.parts()), size))


def control_set(name: str, parts: Parts, size: float, *, clean: pl.Series | None) -> pl.DataFrame:
    """A control, as `_listed`: what a policy must be better than to be worth its cost.

    `longest_caption`: most words, then characters. `lexicon`: highest mean concreteness of words. `oracle`: a draw of
    the samples without planted noise (`clean`: their ids). `all`: every trainable row, whatever the size. `parts`: the
    trainable rows, of some shards after the other.
    """

    def listed(*columns: Callable[[PoolRows], pl.Series]) -> Iterator[pl.DataFrame]:
        for rows in parts():
            keys = [column(rows).alias(f"key{number}") for number, column in enumerate(columns)]
            times = rows.is_kept & np.all([key.is_not_null() for key in keys], axis=0)
            yield _listed(rows, times).with_columns(key.filter(pl.Series(times)) for key in keys)

    if name == "all":
        return pl.concat(listed())
    count = _count(parts(), size)
    if name == "oracle":
        assert clean is not None, name
        return drawn((part.filter(_ids(part).is_in(clean.implode())) for part in listed()), count)
    if name == "lexicon":
        values = listed(lambda rows: -pl.Series(rows.values(reference_of(LEXICON))).fill_nan(None))
        return _first(values, ["key0"], count)
    assert name == "longest_caption", name
    captions = (lambda rows: -_captions(rows).map_elements(lambda text: len(text.split()), pl.Int64),
                lambda rows: -_captions(rows).map_elements(len, pl.Int64))  # fmt: skip
    return _first(listed(*captions), ["key0", "key1"], count)


def given_set(packed: np.ndarray, parts: Parts, size: float | None) -> pl.DataFrame:
    """Trainable rows whose ids are listed in sorted u8,u8, as `_listed`, each as often as it is there."""
    ids, counts = np.unique(as_pairs(packed["f0"], packed["f1"]), return_counts=True)
    ids, counts = np.append(ids, b""), np.append(counts, 0)  # where ids come that are after all of these

    def listed() -> Iterator[pl.DataFrame]:
        for rows in parts():
            mine = as_pairs(rows.uid_high, rows.uid_low)
            place = np.searchsorted(ids[:-1], mine)
            yield _listed(rows, np.where(rows.is_kept & (ids[place] == mine), counts[place], 0))

    return pl.concat(listed()) if size is None else drawn(listed(), _count(parts(), size))


def drawn(parts: Iterable[pl.DataFrame], count: int) -> pl.DataFrame:
    """`count` of the entries that are `_listed`, chosen by the hash of their ids and so the same in every pool; all
    where they are fewer."""
    keyed = (part.with_columns(key0=-random_ranking(_ids(part).to_list(), SAMPLING_SEED)) for part in parts)
    return _first(keyed, ["key0"], count)


def _first(parts: Iterable[pl.DataFrame], by: Sequence[str], count: int) -> pl.DataFrame:
    """The first `count` of the entries in order of `by`, then of ids. Holds them and a part."""
    first = pl.DataFrame()
    for part in parts:
        first = pl.concat([first, part] if first.width else [part]).sort(*by, "uid_high", "uid_low")
        left = count - (pl.col("count").cast(pl.Int64).cum_sum() - pl.col("count"))
        first = first.with_columns(count=pl.min_horizontal(pl.col("count").cast(pl.Int64), left))
        first = first.filter(pl.col("count") > 0).with_columns(pl.col("count").cast(pl.UInt32))
    return first.drop(by)


def _ids(part: pl.DataFrame) -> pl.Series:
    return uid_texts(part["uid_high"], part["uid_low"])


def _captions(rows: PoolRows) -> pl.Series:
    return rows.facts(["caption"])["caption"]


def _count(parts: Iterable[PoolRows], size: float) -> int:
    return share_count(sum(int(np.count_nonzero(rows.is_kept)) for rows in parts), size)

"""Training sets: what one model of a comparison is trained on. A policy's subset, a control or a given list, at a size.

All are drawn from the rows that may be trained on: images that the models are measured on are taken out first, so
that shares are of the same rows for everyone.
"""

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from curation_assets.core.table_names import CONTAMINATION, SAMPLES, reference_of
from curation_assets.numeric.selection import random_ranking, share_count
from curation_assets.selection.judging import judge_pool, multiplicity
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import (
    DROP_REASON,
    ROW_KEY,
    UID,
    Changed,
    Rows,
    Wanted,
    dropped,
    uid_columns,
    values_of,
)
from curation_assets.stores.columns import uid_texts

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
    """Every set × size × seed, seeds fastest. No sizes: each set's own."""
    return tuple(TrainingKey(name, size, seed) for name in names for size in (sizes or (None,)) for seed in seeds)


def trainable(pool: Rows, held_out: pl.DataFrame, is_decontaminated: bool) -> Rows:
    """The rows without those of `held_out` (columns shard, source_row), and `is_decontaminated` without those of
    benchmarks: they count as dropped."""
    places = held_out.select(pl.struct(ROW_KEY)).to_series().implode()
    pool = Changed(pool, functools.partial(dropped, reasons=_why(pl.struct(ROW_KEY).is_in(places))))
    if not is_decontaminated:
        return pool
    in_benchmarks = functools.partial(dropped, reasons=pl.col(f"{CONTAMINATION}:{DROP_REASON}"))
    return Changed(pool, in_benchmarks, Wanted(texts=((CONTAMINATION, DROP_REASON),)))


def _why(is_held_out: pl.Expr) -> pl.Expr:
    return pl.when(is_held_out).then(pl.lit("held_out"))


def _listed(rows: pl.DataFrame, times: np.ndarray | None = None, **keys: pl.Series) -> pl.DataFrame:
    """The rows that count and have all `keys`: halves of the id, shard, source_row, count, keys.

    `times`: (N,) how often each row counts; None: once where it is kept.
    """
    count = pl.col("status") == "kept" if times is None else pl.Series(times)
    listed = rows.select(*uid_columns(), *ROW_KEY, count.cast(pl.UInt32).alias("count")).with_columns(**keys)
    return listed.filter(pl.col("count") > 0).drop_nulls(list(keys) or ["count"])


def policy_set(policy: Policy, pool: Rows, size: float | None, seed: int) -> pl.DataFrame:
    """A policy's subset of trainable rows, as `_listed`, by cuts fitted on them.

    At a size, a policy that ranks keeps its best; a rule (a threshold) keeps a random draw of what passes, or all
    where that is less. A policy that repeats lists an id as often as it counts. The policy `random` draws anew for
    every seed.
    """
    if policy.rank_by == RANDOM:
        policy = replace(policy, seed=seed)
    is_ranked = size is not None and policy.threshold is None
    cut = policy.with_fraction(size) if is_ranked and size is not None else policy
    counted = replace(cut, repeats=False) if is_ranked else cut
    parts = (_listed(verdicts, multiplicity(counted, verdicts)) for verdicts in judge_pool(cut, pool))
    if size is None or is_ranked:
        return pl.concat(parts)
    return drawn(parts, _count(pool, size))


def control_set(name: str, pool: Rows, size: float, *, clean: pl.Series | None) -> pl.DataFrame:
    """A control, as `_listed`: what a policy must be better than to be worth its cost.

    `longest_caption`: most words, then characters. `lexicon`: highest mean concreteness of words. `oracle`: a draw of
    the samples without planted noise (`clean`: their ids). `all`: every trainable row, whatever the size. `pool`: the
    trainable rows.
    """
    if name == "all":
        return pl.concat(map(_listed, pool.parts()))
    count = _count(pool, size)
    if name == "oracle":
        assert clean is not None, name
        return drawn((_listed(rows.filter(pl.col("sample_id").is_in(clean.implode()))) for rows in pool.parts()), count)
    if name == "lexicon":
        lexicon = reference_of(LEXICON)
        parts = pool.parts(Wanted((lexicon,)))
        valued = (_listed(rows, key0=-pl.Series(values_of(rows, lexicon)).fill_nan(None)) for rows in parts)
        return _first(valued, ["key0"], count)
    assert name == "longest_caption", name
    return _first(map(_by_length, pool.parts(Wanted(texts=((SAMPLES, "caption"),)))), ["key0", "key1"], count)


def _by_length(rows: pl.DataFrame) -> pl.DataFrame:
    captions = rows[f"{SAMPLES}:caption"]
    words = captions.map_elements(lambda text: len(text.split()), pl.Int64)
    return _listed(rows, key0=-words, key1=-captions.str.len_chars().cast(pl.Int64))


def given_set(packed: np.ndarray, pool: Rows, size: float | None) -> pl.DataFrame:
    """Trainable rows whose ids are listed in sorted u8,u8, as `_listed`, each as often as it is there."""
    ids = pl.DataFrame(dict(zip(UID, (packed["f0"], packed["f1"]), strict=True)))
    counted = ids.group_by(UID).agg(times=pl.len())

    def listed() -> Iterator[pl.DataFrame]:
        for rows in pool.parts():
            times = rows.select(uid_columns()).join(counted, on=UID, how="left", maintain_order="left")["times"]
            yield _listed(rows, times.fill_null(0).set(rows["status"] != "kept", 0).to_numpy())

    return pl.concat(listed()) if size is None else drawn(listed(), _count(pool, size))


def drawn(parts: Iterable[pl.DataFrame], count: int) -> pl.DataFrame:
    """`count` of the entries that are `_listed`, chosen by the hash of their ids and so the same in every pool; all
    where they are fewer."""
    keyed = (
        part.with_columns(key0=-random_ranking(uid_texts(part["uid_high"], part["uid_low"]).to_list(), SAMPLING_SEED))
        for part in parts
    )
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


def _count(pool: Rows, size: float) -> int:
    return share_count(sum(int((rows["status"] == "kept").sum()) for rows in pool.parts()), size)

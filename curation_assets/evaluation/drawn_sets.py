"""Training sets: what one model of a comparison is trained on. A policy's subset, a control or a given list, at a size.

All are drawn from the rows that may be trained on: images that the models are measured on are taken out first, so
that shares are of the same rows for everyone.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from curation_assets.numeric.selection import random_ranking, share_count
from curation_assets.selection.judging import kept_rows, multiplicity
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import DROPPED, PoolRows

POLICY, CONTROL, FILE = "policy", "control", "file"  # kinds
CLEAN = "clean"  # the kind of a sample without planted noise
SAMPLING_SEED = 0  # of what is drawn from a set that is larger than the size
_KEY = re.compile(r"^(?P<name>[a-z0-9_]+)_(?:own|at(?P<share>\d{4}))-(?P<seed>\d{6})$")


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
        match = _KEY.match(key)
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


def trainable(rows: PoolRows, held_out: pl.DataFrame) -> PoolRows:
    """The rows without those of `held_out` (columns shard, source_row): they count as dropped."""
    facts = rows.facts(["shard", "source_row"])
    is_held_out = facts.select(
        pl.struct("shard", "source_row").is_in(held_out.select(pl.struct("shard", "source_row")).to_series().implode())
    )
    status = rows.status.copy()
    status[is_held_out.to_series().to_numpy()] = DROPPED
    return replace(rows, status=status, _signals={})


def policy_set(policy: Policy, rows: PoolRows, size: float | None, seed: int) -> list[str]:
    """Ids of a policy's subset of trainable rows, sorted, by cuts fitted on them.

    At a size, a policy that ranks keeps its best; a rule (a threshold) keeps a random draw of what passes, or all
    where that is less. A policy that repeats lists an id as often as it counts. The policy `random` draws anew for
    every seed.
    """
    if policy.rank_by == RANDOM:
        policy = replace(policy, seed=seed)
    if size is None or policy.threshold is not None:
        values = rows.signal(policy.rank_by).values if policy.repeats else None
        passing = np.repeat(rows.sample_ids.to_numpy(), multiplicity(kept_rows(policy, rows), values)).tolist()
        return passing if size is None else drawn(passing, _count(rows, size))
    return rows.sample_ids.filter(pl.Series(kept_rows(policy.with_fraction(size), rows))).to_list()


def control_set(
    name: str, rows: PoolRows, size: float, *, lexicon: Mapping[str, float] | None, kinds: Mapping[str, str] | None
) -> list[str]:
    """Ids of a control, sorted: what a policy must be better than to be worth its cost.

    `longest_caption`: most words, then characters. `lexicon`: highest mean concreteness of words (`lexicon`: id →
    value). `oracle`: a draw of the samples without planted noise (`kinds`: id → kind). `all`: every trainable row,
    whatever the size.
    """
    ids = rows.sample_ids.filter(pl.Series(rows.is_kept)).to_list()
    count = _count(rows, size)
    if name == "all":
        return ids
    if name == "oracle":
        assert kinds is not None, name
        return drawn([sample_id for sample_id in ids if kinds.get(sample_id) == CLEAN], count)
    if name == "lexicon":
        assert lexicon is not None, name
        valued = [sample_id for sample_id in ids if lexicon.get(sample_id) is not None]
        return sorted(sorted(valued, key=lambda sample_id: (-lexicon[sample_id], sample_id))[:count])
    assert name == "longest_caption", name
    captions = rows.facts(["caption"])["caption"].filter(pl.Series(rows.is_kept)).to_list()
    longest = sorted(zip(ids, captions, strict=True), key=lambda row: (-len(row[1].split()), -len(row[1]), row[0]))
    return sorted(sample_id for sample_id, _ in longest[:count])


def given_set(ids: Sequence[str], rows: PoolRows, size: float | None) -> list[str]:
    """Those ids of a file that are trainable rows, each as often as the file lists it, sorted."""
    known = set(rows.sample_ids.filter(pl.Series(rows.is_kept)).to_list())
    listed = sorted(sample_id for sample_id in ids if sample_id in known)
    return listed if size is None else drawn(listed, _count(rows, size))


def drawn(ids: Sequence[str], count: int) -> list[str]:
    """`count` of the ids, sorted, chosen by their hash and so the same in every pool; all where they are fewer."""
    if len(ids) <= count:
        return sorted(ids)
    order = np.argsort(-random_ranking(ids, SAMPLING_SEED), kind="stable")
    return sorted(ids[position] for position in order[:count])


def _count(rows: PoolRows, size: float) -> int:
    return share_count(int(np.count_nonzero(rows.is_kept)), size)

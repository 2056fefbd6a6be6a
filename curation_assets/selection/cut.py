"""Cuts: a policy's thresholds, frozen on one pool; enough to judge a sample of a later shard."""

import bisect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.plain_json import number, plain
from curation_assets.methods import oriented
from curation_assets.numeric.selection import Cutoff, share_count
from curation_assets.selection.policy import Policy, Step

#: Comes before every sample_id: in a cut, in place of a sample that was taken down.
NO_ID = "0" * 32


@dataclass(frozen=True)
class Cut:
    """One cut of a policy, frozen: enough to judge a sample of a later shard.

    A sample passes when its value is better than `threshold`, or equal to it with a sample_id up to `boundary_id`; the
    sample of that id also where its value was made again and is as good as equal (`judging.MADE_AGAIN`).
    """

    rank_by: str
    candidates: int  # samples that reached this cut
    valued: int  # of those, samples with a value
    kept: int
    threshold: float | None  # worst value that passes, in its unit, which may be infinite; None: none does
    boundary_id: str | None  # None: every value equal to the threshold passes; NO_ID: none does
    #: (1001,) of the values that reached it, from the worst; empty where none did, and of cuts of earlier versions.
    quantiles: tuple[float, ...] = field(default=(), compare=False)

    def passes(self, values: np.ndarray, ids: pl.Series) -> np.ndarray:
        """(M,) values, higher is better (NaN: none), and their sample_ids → (M,) bool."""
        if self.threshold is None:
            return np.zeros(len(values), dtype=bool)
        return Cutoff(oriented(self.rank_by, self.threshold), self.boundary_id).passes(values, ids)

    def share_below(self, value: float) -> float | None:
        """Share of the values that reached this cut that `value` is better than, in [0, 1]; None: it is unknown."""
        if not self.quantiles:
            return None
        ordered = [oriented(self.rank_by, one) for one in self.quantiles]
        worse = bisect.bisect_left(ordered, oriented(self.rank_by, value))
        return min(1.0, worse / (len(ordered) - 1))


@dataclass(frozen=True)
class PolicyCut:
    """All cuts of a policy on one pool: its prefilters in order, then the final one."""

    policy: str
    policy_version: str
    pool_size: int  # samples that raw kept
    pool_fingerprint: str  # sha256 of those samples' ids and values: which pool the cut was made on
    cuts: tuple[Cut, ...]

    @property
    def threshold(self) -> float | None:
        """Worst kept value of the final ranking; None where it keeps none."""
        return self.cuts[-1].threshold

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        content: dict[str, Any] = plain(asdict(self))
        for cut in content["cuts"]:
            del cut["quantiles"]  # for look-ups alone
        return content

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "PolicyCut":
        """Inverse of `to_dict`."""
        cuts = (Cut(**{**cut, "threshold": number(cut["threshold"])}) for cut in content["cuts"])
        return cls(**{**content, "cuts": tuple(cuts)})


def check_cut(policy: Policy, cut: PolicyCut) -> None:
    """Raise ValueError where the cut belongs to another policy or another version of it."""
    if (cut.policy, cut.policy_version) != (policy.name, policy.version):
        raise ValueError(
            f"the cut was made by policy {cut.policy!r} version {cut.policy_version[:12]}, not by {policy.name!r} "
            f"version {policy.version[:12]}; apply the policy anew"
        )


#: Grain: one row per step of a policy, prefilters first.
CUT_SCHEMA: dict[str, Any] = {
    "policy": pl.String,
    "policy_version": pl.String,
    "pool_size": pl.Int64,
    "pool_fingerprint": pl.String,
    "step": pl.Int64,
    "rank_by": pl.String,
    "candidates": pl.Int64,
    "valued": pl.Int64,
    "kept": pl.Int64,
    "threshold": pl.Float64,  # null: nothing passes
    "boundary_id": pl.String,
    "quantiles": pl.List(pl.Float64),
}


def cut_frame(cut: PolicyCut) -> pl.DataFrame:
    """A cut as a table (CUT_SCHEMA)."""
    content = asdict(cut)
    of_pool = {name: value for name, value in content.items() if name != "cuts"}
    rows = [{**of_pool, "step": step, **of_step} for step, of_step in enumerate(content["cuts"])]
    return pl.DataFrame(rows, schema=CUT_SCHEMA)


def cut_of_frame(frame: pl.DataFrame) -> PolicyCut:
    """Inverse of `cut_frame`."""
    rows = frame.sort("step").to_dicts()
    of_cut = [field.name for field in fields(Cut) if field.name in frame.columns]
    of_pool = {name: rows[0][name] for name in ("policy", "policy_version", "pool_size", "pool_fingerprint")}
    cuts = [{name: row[name] for name in of_cut} for row in rows]
    for cut in cuts:
        cut["quantiles"] = tuple(cut.get("quantiles") or ())
    return PolicyCut.from_dict({**of_pool, "cuts": cuts})


def kept_count(step: Step, pool_size: int) -> int:
    """How many samples a step by fraction or count keeps of a pool, if so many have a value."""
    if step.count is not None:
        return step.count
    assert step.fraction is not None, step
    return share_count(pool_size, step.fraction)

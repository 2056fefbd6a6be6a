"""Policies: which samples become the subset. One small YAML file each."""

import difflib
import hashlib
import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from curation_assets.core.stages import check_reads_forward
from curation_assets.numeric.selection import (
    check_fraction,
)

POLICIES_ROOT = Path(__file__).parent / "policies"
RANDOM = "random"
CODE_VERSION = "1"  # bump when the same policy file would give other verdicts

Semantics = Literal["exact", "compat"]


@dataclass(frozen=True)
class Prefilter:
    """A first cut: only the best `fraction` of the pool by `rank_by`, or values from `threshold` on, go further.

    A filter that says 1 or 0 is a threshold of 1. Subsets are intersected (DataComp, SIEVE §4.3) by prefilters with
    thresholds, or a fraction first and thresholds after it. Raises ValueError unless exactly one of both is given.
    """

    rank_by: str
    fraction: float | None = None  # of the kept samples of the pool, (0, 1]
    threshold: float | None = None  # in the unit of rank_by; keeps values ≥ it

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.threshold is None):
            raise ValueError(
                f"prefilter {self.rank_by} needs fraction or threshold, one of them; got {self.fraction}, "
                f"{self.threshold}"
            )


@dataclass(frozen=True)
class Step:
    """One cut of a policy in the order in which they are made: exactly one of the three says how much passes."""

    rank_by: str
    fraction: float | None
    threshold: float | None
    count: int | None = None


@dataclass(frozen=True)
class Policy:
    """How a subset is chosen. Higher values are better; ties go by sample_id, lowest first.

    `fraction` is of the samples that raw kept, whatever the prefilters leave, so policies of one fraction keep equally
    many. semantics 'exact' keeps round-half-up(n · fraction); 'compat' is DataComp's rule (n · fraction + 1, plus
    ties; METHODS §2.4). Raises ValueError unless exactly one of `fraction`, `threshold` and `count` is given.
    """

    name: str
    rank_by: str  # "stage.table" whose value (or quality) ranks, or "random"
    fraction: float | None = None
    threshold: float | None = None  # in the unit of rank_by; keeps values ≥ it
    count: int | None = None  # so many samples, such as Rao et al.'s amalgams of 2,015,000
    prefilters: tuple[Prefilter, ...] = ()
    seed: int = 0  # for rank_by random
    semantics: Semantics = "exact"
    description: str = ""

    def __post_init__(self) -> None:
        where = f"policy {self.name!r}"
        given = [one for one in (self.fraction, self.threshold, self.count) if one is not None]
        if len(given) != 1:
            raise ValueError(f"{where} needs fraction, threshold or count, one of them; got {given or 'none'}")
        if self.count is not None and self.count < 1:
            raise ValueError(f"{where}: count must be at least 1, got {self.count}")
        if self.semantics not in ("exact", "compat"):
            raise ValueError(f"{where}: semantics must be 'exact' or 'compat', got {self.semantics!r}")
        if self.semantics == "compat" and (self.prefilters or self.fraction is None or self.fraction >= 1):
            raise ValueError(f"{where}: compat takes a fraction below 1 and no prefilters, as the reference does")
        for share in (self.fraction, *(prefilter.fraction for prefilter in self.prefilters)):
            if share is not None:
                check_fraction(share)
        for prefilter in self.prefilters:
            if self.fraction is not None and prefilter.fraction is not None and prefilter.fraction < self.fraction:
                raise ValueError(
                    f"{where}: prefilter {prefilter.rank_by} keeps {prefilter.fraction} of the pool, less than the "
                    f"final {self.fraction}; both are fractions of the whole pool"
                )
        for reference in self.references:
            if reference.count(".") != 1:
                raise ValueError(f"{where}: rank_by must read stage.table or {RANDOM}, got {reference!r}")
            check_reads_forward(f"filtered/{self.name}", reference.replace(".", "/"))

    @property
    def references(self) -> tuple[str, ...]:
        """Tables that the policy reads, 'stage.table', sorted; none for a random policy."""
        return tuple(sorted({self.rank_by, *(prefilter.rank_by for prefilter in self.prefilters)} - {RANDOM}))

    @property
    def version(self) -> str:
        """Changes whenever the verdicts may: sha256 of everything but the description."""
        content = {**asdict(self), "description": None, "code_version": CODE_VERSION}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The prefilters in order, then the cut itself."""
        first = (Step(one.rank_by, one.fraction, one.threshold) for one in self.prefilters)
        return (*first, Step(self.rank_by, self.fraction, self.threshold, self.count))

    def with_fraction(self, fraction: float) -> "Policy":
        """The same policy with another fraction (in place of its threshold); wider prefilters stay as they are.

        A prefilter that would keep less than `fraction` keeps just as much, and so decides nothing.
        """
        prefilters = tuple(
            one if one.fraction is None else replace(one, fraction=max(one.fraction, fraction))
            for one in self.prefilters
        )
        return replace(self, fraction=fraction, threshold=None, count=None, prefilters=prefilters)


def load_policies(root: Path = POLICIES_ROOT) -> dict[str, Policy]:
    """Every policy file of a folder by name, sorted."""
    return {policy.name: policy for policy in map(load_policy, sorted(Path(root).glob("*.yaml")))}


def load_policy(path: Path) -> Policy:
    """A policy from its YAML file. The file is named like the policy. Raises ValueError for unknown or missing keys."""
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    known = set(Policy.__dataclass_fields__)
    unknown = sorted(set(content) - known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=1)
        raise ValueError(f"{path}: unknown keys {unknown}{f'; did you mean {near[0]!r}?' if near else ''}")
    if content.get("name") != path.stem or "rank_by" not in content:
        raise ValueError(f"{path}: expected name: {path.stem} and rank_by, got {content}")
    prefilters = tuple(Prefilter(**prefilter) for prefilter in content.pop("prefilters", None) or ())
    return Policy(prefilters=prefilters, **content)


def policy_content(policy: Policy) -> dict[str, Any]:
    """What the policy's YAML file says: only what differs from the defaults. The inverse of `load_policy`."""
    content: dict[str, Any] = {}
    for one in fields(Policy):
        value = getattr(policy, one.name)
        if one.name in ("name", "rank_by") or value != one.default:
            content[one.name] = (
                [_without_nones(prefilter) for prefilter in value] if one.name == "prefilters" else value
            )
    return content


def _without_nones(prefilter: Prefilter) -> dict[str, Any]:
    return {name: value for name, value in asdict(prefilter).items() if value is not None}

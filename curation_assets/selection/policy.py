"""Policies: which samples become the subset. One small YAML file each."""

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from curation_assets.core.stages import check_reads_forward
from curation_assets.core.table_names import CONTAMINATION, PROVENANCE, table_of
from curation_assets.core.validation import Number, Switch, Threshold, Whole, build, checked, content_of, setting
from curation_assets.core.yaml_files import read_yaml
from curation_assets.methods import lower_is_better
from curation_assets.stores.file_hash import FileState

POLICIES_ROOT = Path(__file__).parent / "policies"
RANDOM = "random"
CODE_VERSION = "1"  # bump when the same policy file would give other verdicts

_CAME_LATER = ("licences", "decontaminate")
_LICENCE_ID = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")

Semantics = Literal["exact", "compat"]


def is_licence_id(text: str) -> bool:
    """Whether a text has the form of an SPDX id, in either case; others are prose."""
    return _LICENCE_ID.fullmatch(text.lower()) is not None


@checked("prefilter")
class Prefilter:
    """A first cut: only the best `fraction` of the pool by `rank_by`, or values as good as `threshold`, go further.

    A filter whose values are 1 or 0 is a threshold of 1. Subsets are intersected (DataComp, SIEVE §4.3) by prefilters
    with thresholds, or a fraction first and thresholds after it. Raises ValueError unless exactly one of both is given.
    """

    rank_by: str = setting(description="stage.table whose value (or quality) ranks.")
    fraction: Number | None = setting(default=None, gt=0, le=1, description="Share kept of the pool's kept samples.")
    threshold: Threshold | None = setting(default=None, unit="of rank_by", description="Values as good are kept.")

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.threshold is None):
            raise ValueError(
                f"{self.rank_by} needs fraction or threshold, one of them; got {self.fraction}, {self.threshold}"
            )


@dataclass(frozen=True)
class Step:
    """One cut of a policy in the order in which they are made: exactly one of the three sets how much passes."""

    rank_by: str
    fraction: float | None
    threshold: float | None
    count: int | None = None


@checked("policy")
class Policy:
    """How a subset is chosen. Higher values are better, of a method of direction lower the lower ones; ties go by
    sample_id, lowest first.

    `fraction` is of the samples that raw kept, whatever the prefilters leave, so policies of one fraction keep equally
    many. Rows that `licences` or `decontaminate` leave out count as if raw had not kept them. semantics 'exact' keeps
    round-half-up(n · fraction); 'compat' is DataComp's rule (n · fraction + 1, plus ties; formulas.md §2.4), every
    fraction of all samples that raw kept and that have a value, whatever the other cuts keep: subsets are intersected,
    in any order (§3.2). Raises ValueError unless exactly one of `fraction`,
    `threshold` and `count` is given.
    """

    name: str = setting(description="The name of the file, and of the table of its verdicts.")
    rank_by: str = setting(description="stage.table whose value (or quality) ranks, or random.")
    fraction: Number | None = setting(default=None, gt=0, le=1, description="Share kept of what raw kept.")
    threshold: Threshold | None = setting(default=None, unit="of rank_by", description="Values as good are kept.")
    count: Whole | None = setting(  # such as Rao et al.'s amalgams of 2,015,000
        default=None, ge=1, unit="samples", description="So many are kept, or all where there are fewer."
    )
    prefilters: tuple[Prefilter, ...] = setting(default=(), description="Cuts made before, in order.")
    seed: Whole = setting(default=0, description="For rank_by random.")
    semantics: Semantics = setting(default="exact", description="Round half up, or DataComp's n · fraction + 1.")
    repeats: Switch = setting(
        default=False, description="A kept sample counts as often as its value says, a multiplicity (kind soft_cap)."
    )
    licences: tuple[str, ...] = setting(
        default=(), description="Only rows of these are judged: SPDX ids, unknown, other (a text); none: all rows."
    )
    decontaminate: Switch = setting(
        default=False, description="Leave out rows of benchmarks; set by the pool's option decontaminate."
    )
    description: str = setting(default="", description="For people; changes no verdict.")

    def __post_init__(self) -> None:
        given = [amount for amount in (self.fraction, self.threshold, self.count) if amount is not None]
        if len(given) != 1:
            raise ValueError(f"needs fraction, threshold or count, one of them; got {given or 'none'}")
        if self.repeats and self.rank_by == RANDOM:
            raise ValueError("repeats needs a rank_by whose values are multiplicities, got random")
        if self.semantics == "compat":
            self._check_compat()
        else:
            self._check_fractions()
        for licence in self.licences:
            if not is_licence_id(licence):
                raise ValueError(f"licences must be SPDX ids such as cc-by-4.0, unknown or other, got {licence!r}")
        for reference in self.references:
            if reference.count(".") != 1:
                raise ValueError(f"rank_by must read stage.table or {RANDOM}, got {reference!r}")
            check_reads_forward(f"filtered/{self.name}", table_of(reference))

    def _check_fractions(self) -> None:
        """A cut by fraction cannot keep more than a prefilter before it left."""
        for prefilter in self.prefilters:
            if self.fraction is not None and prefilter.fraction is not None and prefilter.fraction < self.fraction:
                raise ValueError(
                    f"prefilter {prefilter.rank_by} keeps {prefilter.fraction} of the pool, less than the "
                    f"final {self.fraction}; both are fractions of the whole pool"
                )

    def _check_compat(self) -> None:
        fractions = [step.fraction for step in self.steps if step.fraction is not None]
        if self.count is not None or any(fraction >= 1 for fraction in fractions):
            raise ValueError(
                "compat takes a fraction below 1 (or a threshold) for every cut, as the reference does; got "
                f"{f'count {self.count}' if self.count is not None else f'fractions {fractions}'}"
            )

    @property
    def references(self) -> tuple[str, ...]:
        """Tables that the policy reads, 'stage.table', sorted; none for a random policy."""
        return tuple(sorted({self.rank_by, *(prefilter.rank_by for prefilter in self.prefilters)} - {RANDOM}))

    @property
    def tables(self) -> tuple[str, ...]:
        """What verdicts rest on besides raw/samples, 'stage/name'."""
        licences = (PROVENANCE,) if self.licences else ()
        return (*map(table_of, self.references), *licences, *((CONTAMINATION,) if self.decontaminate else ()))

    def recorded(self) -> dict[str, Any]:
        """All settings for JSON; those that came later only where set, so that files of before stay the same."""
        content = asdict(self)
        return {name: value for name, value in content.items() if name not in _CAME_LATER or value}

    @property
    def version(self) -> str:
        """Changes whenever the verdicts may: sha256 of everything but the description."""
        content = {**self.recorded(), "description": None, "code_version": CODE_VERSION}
        if not self.repeats:
            del content["repeats"]  # policies of before it was there keep their version
        if lower := [reference for reference in self.references if lower_is_better(reference)]:
            content["lower_is_better"] = lower
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @property
    def steps(self) -> tuple[Step, ...]:
        """The prefilters in order, then the cut itself."""
        first = (Step(prefilter.rank_by, prefilter.fraction, prefilter.threshold) for prefilter in self.prefilters)
        return (*first, Step(self.rank_by, self.fraction, self.threshold, self.count))

    def with_fraction(self, fraction: float) -> "Policy":
        """The same policy with another fraction (in place of its threshold); wider prefilters stay as they are.

        A prefilter that would keep less than `fraction` keeps just as much, and so decides nothing.
        """
        prefilters = tuple(
            prefilter if prefilter.fraction is None else replace(prefilter, fraction=max(prefilter.fraction, fraction))
            for prefilter in self.prefilters
        )
        return replace(self, fraction=fraction, threshold=None, count=None, prefilters=prefilters)


def load_policies(root: Path = POLICIES_ROOT) -> dict[str, Policy]:
    """Every policy file of a folder by name, sorted."""
    return {policy.name: policy for policy in map(load_policy, sorted(Path(root).glob("*.yaml")))}


@functools.cache
def shipped_policies() -> Mapping[str, Policy]:
    """The policies of this package by name, sorted; they are read once per process."""
    return MappingProxyType(load_policies())


def load_policy(path: Path) -> Policy:
    """A policy from its YAML file. The file is named like the policy. Raises ValueError for unknown or missing keys."""
    return _read_policy(path, FileState.of(path))


@functools.lru_cache(maxsize=256)
def _read_policy(path: Path, state: FileState) -> Policy:
    """A file as it is. Every look at the tables of a pool reads all policies: 15 ms each time without this."""
    content = read_yaml(path)
    policy = build(Policy, content, str(path))
    if policy.name != path.stem:
        raise ValueError(f"{path}: expected name: {path.stem}, got {policy.name!r}; file and policy are named alike")
    return policy


def policy_content(policy: Policy) -> dict[str, Any]:
    """The content of the policy's YAML file: only what differs from the defaults. The inverse of `load_policy`."""
    return content_of(policy)

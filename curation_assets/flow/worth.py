"""What a signal is worth on photographs: AUCs that were measured with named models, and where they do not apply."""

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from curation_assets.core.settings import Profile
from curation_assets.flow.sql import recipes
from curation_assets.methods import all_methods
from curation_assets.numeric.metrics.separation import PARTLY
from curation_assets.scoring.prepared import roles_needed

#: Measured by benchmarks/noisy_photos.py on photographs that no shipped model was trained on.
MEASURED = Path(__file__).parent / "worth_on_photographs.csv"
DOMAIN = "photographs"


@dataclass(frozen=True)
class Measurement:
    """How well a signal tells clean photographs with their captions from one kind of noise."""

    kind: str  # of KINDS
    auc: float  # chance that a clean sample has the better value; .5 is chance
    low: float  # 95 % interval
    high: float
    n: int  # samples of the kind

    def __str__(self) -> str:
        return f"{self.kind} {_two(self.auc)} [{_two(self.low)}, {_two(self.high)}], n {self.n}"


@dataclass(frozen=True)
class Worth:
    """What is known of a signal on photographs, for the kinds of noise that it is made for."""

    reference: str  # 'signals.METHOD' or 'fused.RECIPE'
    made_for: tuple[str, ...]  # kinds of noise, the main one first
    measurements: tuple[Measurement, ...]  # in the order of made_for

    @property
    def is_meaningful(self) -> bool | None:
        """Whether it separates the kind that it is mainly made for (AUC of .65 at least); None: not measured."""
        main = [measured for measured in self.measurements if measured.kind == self.made_for[0]]
        return main[0].auc >= PARTLY if main else None

    def __str__(self) -> str:
        """Such as 'AUC mismatched .97 [.96, .98], n 500', or that it is not meaningful, or not measured."""
        if not self.measurements:
            return f"not measured on {DOMAIN}"
        figures = "AUC " + "; ".join(map(str, self.measurements))
        return f"not meaningful on {DOMAIN} ({figures})" if self.is_meaningful is False else figures


def worth_of(reference: str, profile: Profile, given: Collection[str] = ()) -> Worth:
    """What a signal is worth on photographs with the models of `profile`.

    `given`: methods and derived columns whose values the user brings; nothing is known of signals that rest on them.

    `reference`: 'signals.METHOD' or 'fused.RECIPE'. Without measurements where these very addresses were not measured,
    and for a table that is neither or is made for no kind of noise.
    """
    engines = None if _rests_on(reference, given) else engines_of(reference, profile)
    rows = {} if engines is None else _measured().get((reference, engines), {})
    kinds = _made_for(reference)
    return Worth(reference, kinds, tuple(rows[kind] for kind in kinds if kind in rows))


def engines_of(reference: str, profile: Profile) -> str | None:
    """'role=address;…' of all models behind a signal, sorted by role; None where the profile lacks one."""
    roles = {role for name in _methods_of(reference) for role in roles_needed(all_methods()[name], ())}
    if not roles <= set(profile.roles):
        return None
    return ";".join(f"{role}={profile.roles[role]}" for role in sorted(roles))


def _rests_on(reference: str, given: Collection[str]) -> bool:
    return any(name in given or set(all_methods()[name].columns) & set(given) for name in _methods_of(reference))


def _methods_of(reference: str) -> list[str]:
    """The method of a signal; of a recipe those that it reads, through other recipes too."""
    if reference in recipes():
        read = [name for name in recipes()[reference].references if name in recipes() or name.startswith("signals.")]
        return [method for name in read for method in _methods_of(name)]
    name = reference.removeprefix("signals.")
    return [name] if name in all_methods() else []


def _made_for(reference: str) -> tuple[str, ...]:
    if reference in recipes():
        return recipes()[reference].made_for
    return next((all_methods()[name].made_for for name in _methods_of(reference)), ())


@functools.cache
def _measured() -> Mapping[tuple[str, str], Mapping[str, Measurement]]:
    """(reference, engines) → kind → measurement."""
    rows: dict[tuple[str, str], dict[str, Measurement]] = {}
    for row in pl.read_csv(MEASURED, schema_overrides={"engines": pl.String}, glob=False).iter_rows(named=True):
        measured = Measurement(row["kind"], row["auc"], row["low"], row["high"], row["n"])
        rows.setdefault((row["reference"], row["engines"] or ""), {})[row["kind"]] = measured
    return rows


def _two(number: float) -> str:
    return f"{number:.2f}".lstrip("0") or "0"

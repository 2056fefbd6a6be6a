"""What a signal is worth on rows like a pool's: AUCs that were measured with named models, and where they do not apply.

Two tables: on photographs with captions that people wrote, for planted kinds of noise; and on pairs of real web pages,
for kinds of images and the language of the text. There what reads the text alone cannot tell an image's own text from
others: its AUC is of texts that say what their image shows against texts that do not, by labels of a person.
"""

import functools
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from curation_assets.core.settings import Profile
from curation_assets.flow.sql import recipes
from curation_assets.methods import all_methods
from curation_assets.numeric.metrics.separation import PARTLY
from curation_assets.scoring.prepared import roles_needed
from curation_assets.selection.fitted import load_recipes

#: Measured by benchmarks/noisy_photos.py on photographs that no shipped model was trained on.
MEASURED = Path(__file__).parent / "worth_on_photographs.csv"
DOMAIN = "photographs"
#: Measured by benchmarks/worth_on_web_pairs.py on pairs of sites that the models were not trained on.
MEASURED_ON_WEB = Path(__file__).parent / "worth_on_web_pairs.csv"
WEB = "web"
ENGLISH, OTHER_LANGUAGE = "en", "other"
ANY_KIND = "all"
OWN_TEXT, DESCRIPTIVE = "own text", "descriptive"  # what an AUC on web pairs tells from others


@dataclass(frozen=True)
class Measurement:
    """How well a signal tells rows from others: on photographs clean ones from a kind of noise, on web pairs an image's
    own text from texts of other sites, or a descriptive text from others."""

    auc: float  # chance that a clean sample, the own or the descriptive text, has the better value; .5 is chance
    low: float  # 95 % interval, of web pairs over sites
    high: float
    n: int  # samples of the kind, or pairs
    of: str = OWN_TEXT

    def __str__(self) -> str:
        return f"{_two(self.auc)} [{_two(self.low)}, {_two(self.high)}], n {self.n}"


@dataclass(frozen=True)
class Worth:
    """What is known of a signal on photographs, for the kinds of noise that it is made for."""

    reference: str  # 'signals.METHOD' or 'fused.RECIPE'
    made_for: tuple[str, ...]  # kinds of noise, the main one first
    measurements: Mapping[str, Measurement]  # kind of noise → what was measured, in the order of made_for

    @property
    def is_meaningful(self) -> bool | None:
        """Whether it separates the kind that it is mainly made for (AUC of .65 at least); None: not measured."""
        main = self.measurements.get(self.made_for[0]) if self.made_for else None
        return None if main is None else main.auc >= PARTLY

    def __str__(self) -> str:
        """Such as 'AUC mismatched .97 [.96, .98], n 500', or that it is not meaningful, or not measured."""
        if not self.measurements:
            return f"not measured on {DOMAIN}"
        figures = "AUC " + "; ".join(f"{kind} {measured}" for kind, measured in self.measurements.items())
        return f"not meaningful on {DOMAIN} ({figures})" if self.is_meaningful is False else figures


@dataclass(frozen=True)
class Composition:
    """Which kinds of images with texts of which language a pool holds."""

    counts: Mapping[tuple[str, str], int]  # (kind of image, ANY_KIND where unknown; ENGLISH or OTHER_LANGUAGE) → rows

    @property
    def n(self) -> int:
        """Rows that were looked at."""
        return sum(self.counts.values())

    def kinds(self) -> list[tuple[str, float]]:
        """Kind → its share of the rows, the largest first."""
        return self._shares(0)

    def languages(self) -> list[tuple[str, float]]:
        """ENGLISH, OTHER_LANGUAGE → share of the rows, the larger first."""
        return self._shares(1)

    def _shares(self, place: int) -> list[tuple[str, float]]:
        counted: Counter[str] = Counter()
        for group, count in self.counts.items():
            counted[group[place]] += count
        return [(name, count / self.n) for name, count in counted.most_common()]

    def of_languages(self) -> "Composition":
        """The same rows, whatever kinds their images are of."""
        counts: Counter[tuple[str, str]] = Counter()
        for (_, language), count in self.counts.items():
            counts[ANY_KIND, language] += count
        return Composition(counts)

    def __str__(self) -> str:
        """Such as '61% photo, 39% screenshot; 93% English'."""
        kinds = ", ".join(f"{share:.0%} {kind}" for kind, share in self.kinds() if kind != ANY_KIND)
        english = dict(self.languages()).get(ENGLISH, 0.0)
        return f"{kinds or 'kinds of images unknown'}; {english:.0%} English"


@dataclass(frozen=True)
class WebWorth:
    """What is known of a signal for the rows of a pool of web pairs."""

    reference: str
    parts: tuple[tuple[str, str, float | None, Measurement | None], ...]  # kind, language, share of rows, the larger
    # first; no share where the pool's rows are not known yet

    @property
    def is_measured(self) -> bool:
        """Whether anything is known of it for rows like these."""
        return any(measured is not None for *_, measured in self.parts)

    @property
    def reads_text_alone(self) -> bool:
        """Whether its AUCs are of descriptive texts against others."""
        return any(measured is not None and measured.of == DESCRIPTIVE for *_, measured in self.parts)

    @property
    def unmeasured(self) -> float:
        """Share of the rows of whose kind and language nothing is known, in [0, 1]."""
        return sum(share or 0.0 for _, _, share, measured in self.parts if measured is None)

    def __str__(self) -> str:
        """Such as 'AUC photo .87 [.83, .90], n 215 (62% of the rows); not measured: 38% of the rows'."""
        if not self.is_measured:
            return "not measured on web pairs"
        shown = [
            f"{group_name(kind, language)} {measured}" + ("" if share is None else f" ({share:.0%} of the rows)")
            for kind, language, share, measured in self.parts
            if measured is not None
        ]
        rest = [f"not measured: {self.unmeasured:.0%} of the rows"] if self.unmeasured >= 0.005 else []
        told = "AUC of descriptive texts against others, " if self.reads_text_alone else "AUC "
        return told + "; ".join([*shown, *rest])


def domain_in_words(domain: str | None) -> str:
    """Where pairs come from, and what an AUC compares there: 'web pairs (AUC of …)'."""
    if domain == WEB:
        return "web pairs (AUC of an image's own text against texts of other sites, 95 % interval)"
    return f"{domain} (AUC of clean against noise, 95 % interval)"


def group_name(kind: str, language: str) -> str:
    """Such as 'photo' of English texts, 'photo, not English'."""
    name = "all kinds" if kind == ANY_KIND else kind
    return name if language == ENGLISH else f"{name}, not English"


def web_worth_of(
    reference: str, profile: Profile, composition: Composition | None, given: Collection[str] = ()
) -> WebWorth:
    """What a signal is worth on web pairs like the pool's, with the models of `profile`; `given` as in `worth_of`.

    Without `composition`, which a run makes known: for English texts with images of all kinds.
    """
    rows = _measurements(MEASURED_ON_WEB, reference, profile, given)
    if composition is None:
        group = (ANY_KIND, ENGLISH)
        return WebWorth(reference, ((*group, None, rows[group]),) if group in rows else ())
    if any(measured.of == DESCRIPTIVE for measured in rows.values()):
        composition = composition.of_languages()
    ordered = sorted(composition.counts.items(), key=lambda item: (-item[1], item[0]))
    return WebWorth(reference, tuple((*group, count / composition.n, rows.get(group)) for group, count in ordered))


def worth_of(reference: str, profile: Profile, given: Collection[str] = ()) -> Worth:
    """What a signal is worth on photographs with the models of `profile`.

    `given`: methods and derived columns whose values the user brings; nothing is known of signals that rest on them.

    `reference`: 'signals.METHOD' or 'fused.RECIPE'. Without measurements where these very addresses were not measured,
    and for a table that is neither or is made for no kind of noise.
    """
    rows, kinds = _measurements(MEASURED, reference, profile, given), _made_for(reference)
    return Worth(reference, kinds, {kind: rows[kind, ENGLISH] for kind in kinds if (kind, ENGLISH) in rows})


def _measurements(
    path: Path, reference: str, profile: Profile, given: Collection[str]
) -> Mapping[tuple[str, str], Measurement]:
    """(kind of image or noise, language) → measurement with the very models of a profile."""
    engines = None if _rests_on(reference, given) else engines_of(reference, profile)
    return {} if engines is None else _measured(path).get((reference, engines), {})


def engines_of(reference: str, profile: Profile) -> str | None:
    """'role=address;…' of all models behind a signal, sorted by role; None where the profile lacks one."""
    roles = {role for name in _methods_of(reference) for role in roles_needed(all_methods()[name], ())}
    if not roles <= set(profile.roles):
        return None
    return ";".join(f"{role}={profile.roles[role]}" for role in sorted(roles))


def signals_behind(reference: str) -> list[str]:
    """'signals.METHOD' of each method that a recipe or a signal rests on."""
    return [f"signals.{name}" for name in _methods_of(reference)]


def _rests_on(reference: str, given: Collection[str]) -> bool:
    return any(name in given or set(all_methods()[name].columns) & set(given) for name in _methods_of(reference))


def _methods_of(reference: str) -> list[str]:
    """The method of a signal; of a recipe those that it reads, through other recipes too."""
    if reference in recipes():
        read = [name for name in recipes()[reference].references if name in recipes() or name.startswith("signals.")]
        return [method for name in read for method in _methods_of(name)]
    fitted = load_recipes().get(reference.removeprefix("fused."))
    if fitted is not None and fitted.key == reference:
        return [method for name in fitted.settings.signals for method in _methods_of(name)]
    name = reference.removeprefix("signals.")
    return [name] if name in all_methods() else []


def _made_for(reference: str) -> tuple[str, ...]:
    if reference in recipes():
        return recipes()[reference].made_for
    return next((all_methods()[name].made_for for name in _methods_of(reference)), ())


@functools.cache
def _measured(path: Path) -> Mapping[tuple[str, str], Mapping[tuple[str, str], Measurement]]:
    """(reference, engines) → (kind of image or noise, language) → measurement."""
    rows: dict[tuple[str, str], dict[tuple[str, str], Measurement]] = {}
    for row in pl.read_csv(path, schema_overrides={"engines": pl.String}, glob=False).iter_rows(named=True):
        measured = Measurement(row["auc"], row["low"], row["high"], row["n"], row.get("of", OWN_TEXT))
        group = row["kind"], row.get("language", ENGLISH)
        rows.setdefault((row["reference"], row["engines"] or ""), {})[group] = measured
    return rows


def _two(number: float) -> str:
    return f"{number:.2f}".lstrip("0") or "0"

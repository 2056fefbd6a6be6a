"""ICC: how concrete a caption is, by the distilled student. Text only, so it runs on the whole pool."""

import math

import numpy as np

from curation_assets.core.roles import LanguageIdentifier, Student, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.methods.datacomp_caption import ExampleIdentifier
from curation_assets.methods.english import english

NOT_ENGLISH = "not_english"


def icc(
    caption: Texts,
    student: Student,
    language_identifier: LanguageIdentifier,
    clip01: bool = False,
    english_only: bool = True,
) -> Values:
    """The student's output as it is: a regression head, nominally in [0, 1] but not clipped (formulas.md §1.1).

    `clip01` cuts it to [0, 1] for readers that insist; captions beyond an end then tie. A caption of which another
    language is likely (method `english`) has no value, reason NOT_ENGLISH, unless the student reads several languages
    or `english_only` is off.
    """
    value = student.score_captions(caption)  # (N,)
    reason: list[str | None] = [None] * len(caption)
    if english_only and not getattr(student, "is_multilingual", False):
        is_english = english(caption, language_identifier).value == 1
        value = np.where(is_english, value, np.nan)
        reason = [None if is_one else NOT_ENGLISH for is_one in is_english]
    return Values(np.clip(value, 0.0, 1.0) if clip01 else value, reason)


class _ExampleStudent:
    """Concrete is what can be painted: the share of words that name a thing, plus a little over 1 for all."""

    def score_captions(self, captions: Texts) -> np.ndarray:
        things = {"dog", "ball", "red"}
        shares = [sum(word in things for word in text.split()) / len(text.split()) for text in captions]
        return np.array(shares) * 1.04


METHOD = Method(
    function=icc,
    unit="concreteness, nominally 0 to 1, not clipped",
    bounds=(-math.inf, math.inf),  # an unclipped regression: the published student reaches 1.04 (formulas.md §1.1)
    source="ICC: Image Caption Concreteness (2024) §4.3, distilled student",
    version="4",
    blank_caption="empty_caption",
    summary="Concreteness of the caption: the student's regression of the fused teachers' scores.",
    made_for=("abstract", "partial", "boilerplate", "file_name"),
    default=True,
    example=Example(
        columns={"caption": ["red dog", "dog of hope forever", "hope"]},
        value=[1.04, 0.26, 0.0],
        roles={"student": _ExampleStudent(), "language_identifier": ExampleIdentifier()},
    ),
)

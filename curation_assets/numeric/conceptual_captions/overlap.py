"""Image and text together: a word of the caption must name a label of the image."""

import re
from collections.abc import Sequence

from curation_assets.numeric.lemmas import candidate_lemmas

WORD = re.compile(r"[a-z0-9]+")


def overlapping_words(caption: str, labels: Sequence[str]) -> list[str]:
    """Distinct words of the caption, in order, that share a dictionary form with a word of a label.

    "two dogs" and the label "dog" overlap, by spelling alone (`numeric/lemmas.py`), which stands in for the paper's
    stemming. A label of several words or synonyms ("stop sign,stopsign") overlaps by any of its words.
    """
    forms = {form for label in labels for word in WORD.findall(label.lower()) for form in candidate_lemmas(word)}
    words = dict.fromkeys(WORD.findall(caption.lower()))
    return [word for word in words if not forms.isdisjoint(candidate_lemmas(word))]

"""Quality of Rao et al.: do the caption's words name the objects that a detector sees in the image?"""

from collections.abc import Sequence

import numpy as np

from curation_assets.core.roles import Texts, WordVectors
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.object_word_quality import PAIRS, object_word_cosines, top_pair_sum, words_of


def object_word_quality(
    caption: Texts,
    detected_objects: Sequence[Sequence[str]],
    word_vectors: WordVectors,
    one_to_one: bool = False,
) -> Values:
    """Sum of the 3 largest cosines between an object's and a word's vector. Rao et al., eq. 3; formulas.md §8.2.

    The equation prints 1 − cos, its text and figure mean cos. Fewer pairs add up to less, and none to 0, as in the
    paper. `one_to_one`: no object and no word counts twice. Details: pair_count (of all pairs), word_count and
    object_count (with a vector).
    """
    counts: list[tuple[int, int]] = []
    value = np.zeros(len(caption))
    for i, (text, objects) in enumerate(zip(caption, detected_objects, strict=True)):
        cosines = object_word_cosines(objects, words_of(text), word_vectors.word_vectors)  # (O, W)
        value[i] = top_pair_sum(cosines, one_to_one=one_to_one)
        counts.append((cosines.shape[0], cosines.shape[1]))
    return Values.of(
        value,
        pair_count=[objects * words for objects, words in counts],
        object_count=[objects for objects, _ in counts],
        word_count=[words for _, words in counts],
    )


class _ExampleVectors:
    """Three words in the plane; puppy lies .6 towards dog."""

    def word_vectors(self, words: Texts) -> tuple[np.ndarray, np.ndarray]:
        vectors = {"dog": (1.0, 0.0), "kite": (0.0, 1.0), "puppy": (0.6, 0.8)}
        known = np.array([word in vectors for word in words], dtype=bool)
        return np.array([vectors.get(word, (0.0, 0.0)) for word in words]).reshape(-1, 2), known


METHOD = Method(
    function=object_word_quality,
    unit="sum of 3 cosines",
    bounds=(-float(PAIRS), float(PAIRS)),
    source="Rao et al., quality (eq. 3, with cos for 1 − cos); formulas.md §8.2",
    summary="Sum of the 3 highest cosines of word vectors between the caption's words and detected objects.",
    made_for=("mismatched", "abstract"),
    example=Example(
        columns={
            "caption": ["a dog and a kite", "a puppy", "nothing known"],
            "detected_objects": [["dog", "kite"], ["dog"], ["dog"]],
        },
        value=[2.0, 0.6, 0.0],  # 1 + 1 + 0; one pair; no pair
        roles={"word_vectors": _ExampleVectors()},
    ),
)

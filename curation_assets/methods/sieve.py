"""SIEVE: does what a captioner sees agree with the caption? Sentence cosine, best of several generated captions."""

from collections.abc import Sequence

import numpy as np

from curation_assets.core.roles import SentenceEncoder, Texts
from curation_assets.methods import Example, Method, Values
from curation_assets.numeric.medium_phrases import Masking, mask_medium_phrases


def sieve(
    caption: Texts,
    generated_captions: Sequence[Sequence[str]],
    sentence_encoder: SentenceEncoder,
    masking: Masking = "clean",
) -> Values:
    """Highest cosine of the masked caption with a masked generated caption. SIEVE §3.2, formulas.md §2.

    masking 'clean': a text that is empty after masking agrees with nothing, cosine 0. masking 'repo': empty texts are
    embedded like others, but a best generated caption that is exactly "" scores 0, as in the reference.
    No generated captions: reason `no_generated_captions`. Details: best_caption (as generated), mean_cosine.
    """
    own = [mask_medium_phrases(text, masking) for text in caption]
    generated = [[mask_medium_phrases(text, masking) for text in texts] for texts in generated_captions]
    # Each text is embedded once: generated captions repeat a lot. Sorted, so that the order of samples is irrelevant.
    texts = sorted({*own, *(text for group in generated for text in group)})
    vectors = sentence_encoder.embed_sentences(texts) if texts else np.zeros((0, 0))  # (U, D)
    row_of = {text: row for row, text in enumerate(texts)}

    value = np.full(len(own), np.nan)
    reason: list[str | None] = ["no_generated_captions"] * len(own)
    best_caption: list[str | None] = [None] * len(own)
    mean_cosine: list[float | None] = [None] * len(own)
    for i, (text, group) in enumerate(zip(own, generated, strict=True)):
        if not group:
            continue
        rows = [row_of[candidate] for candidate in group]
        cosines = vectors[rows].astype(np.float64) @ vectors[row_of[text]].astype(np.float64)  # (R,)
        is_empty = np.array([candidate == "" for candidate in group])  # (R,)
        if masking == "clean":
            cosines = np.where(is_empty | (text == ""), 0.0, cosines)
        best = int(cosines.argmax())
        # The cosine of two float32 unit vectors may read 1.0000001: that is 1.
        value[i] = 0.0 if is_empty[best] else float(np.clip(cosines[best], -1.0, 1.0))
        reason[i], best_caption[i] = None, generated_captions[i][best]
        mean_cosine[i] = float(cosines.mean())
    return Values(value, reason, {"best_caption": best_caption, "mean_cosine": mean_cosine})


class _ExampleSentenceEncoder:
    """One axis per word of a tiny vocabulary: sentences agree by the words they share."""

    def embed_sentences(self, sentences: Texts) -> np.ndarray:
        axes = ["red", "kite", "barn"]
        counts = np.array([[text.split().count(word) for word in axes] for text in sentences], dtype=np.float64)
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-12)


METHOD = Method(
    function=sieve,
    unit="cosine",
    bounds=(-1.0, 1.0),
    source="SIEVE (Mahmoud et al. 2024) §3.2; masking of formulas.md §2.3, clean mode",
    summary="Highest cosine of sentence embeddings between the caption and generated captions, medium phrases masked.",
    made_for=("mismatched", "abstract", "boilerplate"),
    default=True,
    example=Example(
        columns={
            "caption": ["a photo of red kite", "red", "stock photo", "barn"],
            "generated_captions": [["barn", "image of red kite"], ["red kite", "barn"], ["red kite"], ["kite", "red"]],
        },
        # equal after masking; 1/√2; nothing left of the caption; no word shared
        value=[1.0, 0.70710678, 0.0, 0.0],
        roles={"sentence_encoder": _ExampleSentenceEncoder()},
    ),
)

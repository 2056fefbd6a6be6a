"""SBA: can a caption be recovered from its meaning? Semantic-bottleneck autoencoder, a teacher of ICC."""

import numpy as np

from curation_assets.core.roles import SemanticDecoder, Texts
from curation_assets.methods import TEACHER_DETAILS, Example, Method, Values
from curation_assets.numeric.similarity import corrected_edit_similarity, edit_similarity


def sba(caption: Texts, semantic_decoder: SemanticDecoder, case_sensitive: bool = True) -> Values:
    """Highest edit similarity of a caption with its reconstructions. ICC §4.2, formulas.md §1.4.

    Reason where there is no reconstruction: `no_reconstruction`. Details: reconstructions and their similarities
    (beams, best first), best_reconstruction, open_similarity (inside (0, 1), for the logit).
    `case_sensitive`: as in the paper's code. CLIP's tokenizer lowers its input, so no caption in capitals comes back;
    False compares lowered texts.
    """
    value = np.full(len(caption), np.nan)
    reason: list[str | None] = ["no_reconstruction"] * len(caption)
    details: dict[str, list] = {name: [None] * len(caption) for name in TEACHER_DETAILS}
    beams = semantic_decoder.reconstruct_captions(caption)
    for i, (text, reconstructions) in enumerate(zip(caption, beams, strict=True)):
        if not reconstructions:
            continue
        compared = reconstructions if case_sensitive else [beam.lower() for beam in reconstructions]
        reference = text if case_sensitive else text.lower()
        similarities = edit_similarity(compared, [reference] * len(compared))  # (B,)
        best = int(similarities.argmax())
        value[i], reason[i] = similarities[best], None
        details["reconstructions"][i] = list(reconstructions)
        details["similarities"][i] = similarities.tolist()
        details["best_reconstruction"][i] = reconstructions[best]
        details["open_similarity"][i] = float(corrected_edit_similarity([compared[best]], [reference])[0])
    return Values(value, reason, details)


class _ExampleDecoder:
    """Remembers 'a red kite' almost, and returns 'kite' for anything else."""

    def reconstruct_captions(self, captions: Texts) -> list[list[str]]:
        return [["a kite", "a blue kite"] if text == "a red kite" else ["kite"] for text in captions]


METHOD = Method(
    function=sba,
    unit="edit similarity",
    bounds=(0.0, 1.0),
    source="ICC: Image Caption Concreteness (2024) §4.2, semantic-bottleneck autoencoder",
    blank_caption="empty_caption",
    stage="teachers",
    teacher_order=2,
    summary="Highest edit similarity of the caption with its reconstructions from one CLIP text vector.",
    made_for=("abstract",),
    default=True,
    example=Example(
        columns={"caption": ["a red kite", "a red kite over the sea", "kite"]},
        # "a blue kite": 4 edits of 11 → .636364 beats "a kite": 4 of 10 → .6; "kite" in 23 characters: 4/23
        value=[0.63636364, 0.17391304, 1.0],
        roles={"semantic_decoder": _ExampleDecoder()},
    ),
)

"""VBA: does a caption survive being drawn? Visual-bottleneck autoencoder, a teacher of ICC."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

from curation_assets.core.roles import BeamCaptioner, Images, Texts, TextSimilarity, TextToImage
from curation_assets.methods import TEACHER_DETAILS, Example, Method, Values
from curation_assets.numeric.identity import seed_of
from curation_assets.numeric.similarity import open_interval

PAPER_BEAMS = 5  # ICC §4.1


def vba(
    caption: Texts,
    sample_id: Sequence[str],
    text_to_image: TextToImage,
    beam_captioner: BeamCaptioner,
    text_similarity: TextSimilarity,
    beams: int | None = None,
) -> Values:
    """Draw the caption, caption the drawing with all beams kept, take the highest similarity. ICC §4.1, formulas.md
    §1.3.

    The drawing's seed comes from the sample_id, so a value depends on no neighbour and no shard. Reason where the
    drawing has no caption: `no_reconstruction`. Details: reconstructions and their similarities (beams, best first),
    best_reconstruction, open_similarity (inside (0, 1), for the logit).
    `beams`: None takes the beam captioner's own setting `beams` (its profile's), else the paper's 5.
    Raises ValueError for beams < 1.
    """
    if beams is None:
        beams = int(getattr(beam_captioner, "settings", {}).get("beams", PAPER_BEAMS))
    if beams < 1:
        raise ValueError(f"beams must be at least 1, got {beams}")
    seeds = [seed_of(sample, "text_to_image") for sample in sample_id]
    reconstructed = beam_captioner.beam_captions(text_to_image.generate_images(caption, seeds), beams)
    # One flat call: (sum of beams,) pairs
    candidates = [text for beam_texts in reconstructed for text in beam_texts]
    references = [text for text, beam_texts in zip(caption, reconstructed, strict=True) for _ in beam_texts]
    flat = text_similarity.similarity(candidates, references) if candidates else np.zeros(0)

    value = np.full(len(caption), np.nan)
    reason: list[str | None] = ["no_reconstruction"] * len(caption)
    details: dict[str, list] = {name: [None] * len(caption) for name in TEACHER_DETAILS}
    start = 0
    for i, beam_texts in enumerate(reconstructed):
        similarities = np.asarray(flat[start : start + len(beam_texts)], dtype=np.float64)  # (B,)
        start += len(beam_texts)
        if not beam_texts:
            continue
        best = int(similarities.argmax())
        value[i], reason[i] = similarities[best], None
        details["reconstructions"][i] = list(beam_texts)
        details["similarities"][i] = similarities.tolist()
        details["best_reconstruction"][i] = beam_texts[best]
        details["open_similarity"][i] = float(open_interval(similarities[best]))
    return Values(value, reason, details)


class _ExamplePainter:
    """Paints what it can: 'red' becomes a red pixel, anything else a black one."""

    def generate_images(self, captions: Texts, seeds: Sequence[int]) -> list[Image.Image]:
        return [Image.new("RGB", (1, 1), "red" if "red" in text else "black") for text in captions]


class _ExampleCaptioner:
    """Names the colour of the pixel: two beams at most."""

    def beam_captions(self, images: Images, beams: int) -> list[list[str]]:
        is_red = [bool(np.asarray(image)[0, 0, 0] == 255) for image in images]
        return [(["scarlet", "red"] if red else ["black", "dark"])[:beams] for red in is_red]


class _ExampleSimilarity:
    """Share of the reference's words that the candidate holds."""

    def similarity(self, candidates: Texts, references: Texts) -> np.ndarray:
        return np.array(
            [
                sum(word in candidate.split() for word in reference.split()) / len(reference.split())
                for candidate, reference in zip(candidates, references, strict=True)
            ]
        )


METHOD = Method(
    function=vba,
    unit="text similarity (BERTScore F1, not rescaled)",
    bounds=(-1.0, 1.0),
    source="ICC: Image Caption Concreteness (2024) §4.1, visual-bottleneck autoencoder",
    blank_caption="empty_caption",
    stage="teachers",
    teacher_order=1,
    summary="Highest text similarity of the caption with captions of a picture drawn from it.",
    made_for=("abstract",),
    default=True,
    example=Example(
        columns={"caption": ["red", "red hope", "hope"], "sample_id": [f"{i:032x}" for i in range(3)]},
        value=[1.0, 0.5, 0.0],
        roles={
            "text_to_image": _ExamplePainter(),
            "beam_captioner": _ExampleCaptioner(),
            "text_similarity": _ExampleSimilarity(),
        },
    ),
)

"""negCLIPLoss: the cosine of image and caption, less what both would be worth beside other captions and images."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from curation_assets.core.roles import ImageTextEncoder, Texts
from curation_assets.core.table_names import CONTRAST_PAIRS
from curation_assets.methods import Columns, Example, FileSetting, Method, Values
from curation_assets.numeric.contrast import neg_clip_loss as contrasted
from curation_assets.numeric.identity import unit_interval_of

TEMPERATURE = 0.01  # of OpenAI's CLIP, as in the paper's code


DRAW = "contrast_pairs"  # purpose of the hash by which a pool's pairs are drawn and known again


class ContrastPairs(NamedTuple):
    """The pairs that every sample is contrasted with, in the order of their draws. No ids: a fit holds no sample."""

    draws: frozenset[float]  # `draw_of` their ids
    images: np.ndarray  # (R, D) float32, unit rows
    captions: np.ndarray  # (R, D)


def draw_of(sample_id: str) -> float:
    """The lot of a sample, in [0, 1): a pool's contrast pairs are those with the smallest."""
    return unit_interval_of(sample_id, DRAW)


def vectors_of(column: Sequence[Any]) -> np.ndarray:
    """(N, D) float32 of a column of lists of numbers, or of little-endian float32 bytes. Raises ValueError."""
    rows = [np.frombuffer(cell, "<f4") if isinstance(cell, bytes) else np.array(cell, np.float32) for cell in column]
    widths = {row.shape for row in rows}
    if len(widths) != 1:
        raise ValueError(
            f"vectors of one table must have one length, at least one of them, got shapes {sorted(widths)}"
        )
    return np.stack(rows)


def read_contrast_pairs(columns: Columns) -> ContrastPairs:
    """The pairs in columns draw, image_embedding, caption_embedding; ValueError without rows of them."""
    needed = {"draw", "image_embedding", "caption_embedding"}
    if not needed <= set(columns) or not columns["draw"]:
        raise ValueError(f"a table of contrast pairs needs rows of {', '.join(sorted(needed))}, got {sorted(columns)}")
    vectors = (vectors_of(columns[name]) for name in ("image_embedding", "caption_embedding"))
    return ContrastPairs(frozenset(columns["draw"]), *vectors)


def neg_clip_loss(
    sample_id: Sequence[str],
    caption: Texts,
    image_embedding: Sequence[Sequence[float]],
    image_text_encoder: ImageTextEncoder,
    pairs: ContrastPairs | None = None,
    temperature: float = TEMPERATURE,
) -> Values:
    """Wang et al. 2024 §3.1 with a fixed set of pairs in place of random batches (formulas.md §15.1).

    A pool's pairs are its table signals/contrast_pairs; elsewhere the setting `path` names such a table. No pairs:
    reason `no_contrast_pairs`. `temperature` is that of the encoder's training. Detail: cosine.
    """
    if pairs is None:
        n = len(caption)
        return Values(np.full(n, np.nan), ["no_contrast_pairs"] * n, {"cosine": [None] * n})
    images = vectors_of(image_embedding) if len(caption) else np.zeros_like(pairs.images[:0])
    texts = np.asarray(image_text_encoder.embed_texts(caption), dtype=np.float32)
    is_known = np.array([draw_of(one) in pairs.draws for one in sample_id], dtype=bool)
    value = contrasted(images, texts, pairs.images, pairs.captions, is_known, temperature)
    return Values.of(value, cosine=np.einsum("nd,nd->n", images, texts, dtype=np.float64).tolist())


class _ExampleEncoder:
    """Unit vectors in the plane."""

    def embed_texts(self, texts: Texts) -> np.ndarray:
        vectors = {"right": (1.0, 0.0), "up": (0.0, 1.0)}
        return np.array([vectors[text] for text in texts], dtype=np.float32)


METHOD = Method(
    function=neg_clip_loss,
    unit="cosine less the mean log-sum-exp of the contrasted cosines times the temperature",
    bounds=(-float("inf"), 0.0),
    source="Wang et al. 2024 (arXiv 2405.19547) §3.1; formulas.md §15.1",
    summary="CLIP's cosine less what image and caption get beside a reference set of other captions and images.",
    made_for=("mismatched",),
    blank_caption="empty_caption",
    file_settings={"path": FileSetting("pairs", read_contrast_pairs, table=CONTRAST_PAIRS)},
    example=Example(  # τ = 1: 1 − log(e¹ + e⁰), the pair itself being in the set; 0 − log(e⁰ + e¹ + e⁰), added to it
        columns={
            "sample_id": ["0" * 31 + "1", "f" * 32],
            "caption": ["right", "up"],
            "image_embedding": [[1.0, 0.0], [1.0, 0.0]],
        },
        value=[1.0 - float(np.log(np.e + 1)), -float(np.log(np.e + 2))],
        roles={"image_text_encoder": _ExampleEncoder()},
        settings={
            "pairs": ContrastPairs(
                frozenset([draw_of("0" * 31 + "1"), 0.5]), np.eye(2, dtype=np.float32), np.eye(2, dtype=np.float32)
            ),
            "temperature": 1.0,
        },
    ),
)

"""Metrics of generated captions against references, by the reference implementations where they run.

BLEU, METEOR, ROUGE-L, CIDEr-D and SPICE as pycocoevalcap computes them, BERTScore, CLIPScore and RefCLIPScore. A metric
that cannot be had has a reason, never a zero. Metrics other than BERTScore and the CLIPScores are of tokens: those of
the Penn Treebank tokeniser where Java runs, of our approximation otherwise; `tokeniser_in_use` tells which, for callers
to store beside the values.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np

from curation_assets.core.errors import ProgramUnavailableError
from curation_assets.core.roles import Images, ImageTextEncoder, TextSimilarity
from curation_assets.engines import caption_programs
from curation_assets.methods.clip_score_metric import PROMPT, SCALE
from curation_assets.numeric.metrics.captioning import TOKEN_METRICS, check_captions, token_metrics, tokenise_caption

CaptionMetric = Literal["bleu", "meteor", "rouge_l", "cider", "spice", "bert_score", "clip_score", "ref_clip_score"]
CAPTION_METRICS: tuple[CaptionMetric, ...] = get_args(CaptionMetric)
#: Metrics that are measured on images.
OF_IMAGES = ("clip_score", "ref_clip_score")
Tokeniser = Literal["ptb", "approximate"]

IMAGES_AT_ONCE = 64  # decoded photographs: 64 × 640 × 480 × 3 B = 59 MB


@dataclass(frozen=True)
class Measured:
    """One metric of one system: a value, or why there is none."""

    value: float | None
    reason: str | None = None


Values = dict[str, dict[str, Measured]]  # system → metric key → what was measured


def measured_keys(metrics: Sequence[str]) -> list[str]:
    """Keys under which metrics are reported, bleu as bleu_1 … bleu_4. Raises ValueError for an unknown metric."""
    unknown = [name for name in metrics if name not in CAPTION_METRICS]
    if unknown:
        raise ValueError(f"no caption metric {unknown[0]!r}; expected some of {', '.join(CAPTION_METRICS)}")
    return [key for name in metrics for key in ([f"bleu_{n}" for n in range(1, 5)] if name == "bleu" else [name])]


def tokeniser_in_use() -> Tokeniser:
    """'ptb' where the Penn Treebank tokeniser runs, else 'approximate'. Values of the two are not quite comparable."""
    return "approximate" if why_approximate() else "ptb"


def why_approximate() -> str | None:
    """Why the Penn Treebank tokeniser does not run here, None where it does."""
    try:
        return _tried(caption_programs.find_java())
    except ProgramUnavailableError as error:
        return str(error)


@cache
def _tried(java: caption_programs.Java) -> str | None:
    """What went wrong with a first sentence; once per Java that is on the PATH."""
    try:
        caption_programs.treebank_tokens(["A red kite."])
    except ProgramUnavailableError as error:
        return str(error)
    return None


def measure_captions(
    references: Sequence[Sequence[str]],
    systems: Mapping[str, Sequence[str]],
    *,
    metrics: Sequence[str],
    similarity: TextSimilarity | None = None,
    encoder: ImageTextEncoder | None = None,
    images: Images | None = None,
) -> dict[str, dict[str, Measured]]:
    """System → metric key → value over the whole set, higher is better; formulas.md §10, docs/user/evaluation.md.

    `references`: N lists of at least one caption; `systems`: name → N captions; both as written, not tokenised.
    `metrics`: of CAPTION_METRICS. bert_score needs `similarity`; clip_score and ref_clip_score need `encoder` and
    `images` (N, read once, in order; a sequence that decodes on access will do). Raises ValueError for an unknown
    metric, unequal or empty input, ProgramUnavailableError where a tokeniser that has run before fails.
    """
    keys = measured_keys(metrics)
    for name, captions in systems.items():
        try:
            check_captions(references, captions)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    values: dict[str, dict[str, Measured]] = {name: {} for name in systems}
    if set(metrics) & {*TOKEN_METRICS, "meteor", "spice"}:
        _measure_tokens(references, systems, metrics, values)
    if "bert_score" in metrics:
        _measure_bert_score(references, systems, similarity, values)
    if set(metrics) & set(OF_IMAGES):
        _measure_clip_scores(references, systems, metrics, encoder, images, values)
    return {name: {key: of_system[key] for key in keys} for name, of_system in values.items()}


def _measure_tokens(
    references: Sequence[Sequence[str]], systems: Mapping[str, Sequence[str]], metrics: Sequence[str], values: Values
) -> None:
    tokenise: Callable[[Sequence[str]], list[str]] = caption_programs.treebank_tokens
    if tokeniser_in_use() == "approximate":

        def tokenise(texts: Sequence[str]) -> list[str]:
            return [tokenise_caption(text) for text in texts]

    tokens = iter(tokenise([text for texts in (*references, *systems.values()) for text in texts]))
    tokenised_references = [[next(tokens) for _ in texts] for texts in references]
    tokenised = {name: [next(tokens) for _ in captions] for name, captions in systems.items()}
    for name, candidates in tokenised.items():
        of_tokens = token_metrics(tokenised_references, candidates, metrics)
        values[name] |= {key: Measured(value) for key, value in of_tokens.items()}
    if "meteor" in metrics:
        _measure_program("meteor", lambda: _meteor(tokenised_references, tokenised), values)
    if "spice" in metrics:
        _measure_program("spice", lambda: _spice(tokenised_references, tokenised), values)


def _measure_program(key: str, measure: Callable[[], dict[str, Measured]], values: Values) -> None:
    """A program that is not there, or fails, leaves its reason for every system."""
    try:
        of_systems = measure()
    except ProgramUnavailableError as error:
        of_systems = dict.fromkeys(values, Measured(None, str(error)))
    for name, measured in of_systems.items():
        values[name][key] = measured


def _meteor(references: Sequence[Sequence[str]], systems: Mapping[str, Sequence[str]]) -> dict[str, Measured]:
    with caption_programs.running_meteor() as meteor:
        return {name: Measured(meteor.score(references, candidates)[0]) for name, candidates in systems.items()}


def _spice(references: Sequence[Sequence[str]], systems: Mapping[str, Sequence[str]]) -> dict[str, Measured]:
    measured = {}
    for name, (mean, per_image) in caption_programs.spice(references, systems).items():
        undefined = int(np.isnan(per_image).sum())
        reason = f"SPICE is undefined for {undefined} of {len(per_image)} images: no object, in caption or references"
        measured[name] = Measured(None, reason) if math.isnan(mean) else Measured(mean)
    return measured


def _measure_bert_score(
    references: Sequence[Sequence[str]],
    systems: Mapping[str, Sequence[str]],
    similarity: TextSimilarity | None,
    values: Values,
) -> None:
    """F1 with the reference that fits best, mean over images, as the package bert-score takes several references."""
    for name, captions in systems.items():
        if similarity is None:
            values[name]["bert_score"] = Measured(None, "BERTScore needs a model of the role text_similarity")
            continue
        repeated = [caption for caption, texts in zip(captions, references, strict=True) for _ in texts]
        pairs = similarity.similarity(repeated, [text for texts in references for text in texts])
        values[name]["bert_score"] = Measured(float(_best(pairs, references).mean()))


def _measure_clip_scores(
    references: Sequence[Sequence[str]],
    systems: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
    encoder: ImageTextEncoder | None,
    images: Images | None,
    values: Values,
) -> None:
    """CLIPScore, and its harmonic mean with the best cosine to a reference (Hessel et al. 2021 §3)."""
    chosen = [key for key in OF_IMAGES if key in metrics]
    if encoder is None or images is None:
        lacks = "a model of the role image_text_encoder" if encoder is None else "the images"
        for name in systems:
            values[name] |= {key: Measured(None, f"CLIPScore needs {lacks}") for key in chosen}
        return
    if len(images) != len(references):
        raise ValueError(f"expected one image per list of references, got {len(images)} and {len(references)}")
    starts = range(0, len(images), IMAGES_AT_ONCE)
    batches = ([images[i] for i in range(start, min(start + IMAGES_AT_ONCE, len(images)))] for start in starts)
    image_vectors = np.concatenate([encoder.embed_images(batch) for batch in batches])  # (N, D)
    flat = [PROMPT + text for texts in references for text in texts]
    reference_vectors = encoder.embed_texts(flat) if "ref_clip_score" in metrics else None  # (R, D)
    counts = [len(texts) for texts in references]
    for name, captions in systems.items():
        vectors = encoder.embed_texts([PROMPT + caption for caption in captions])  # (N, D)
        clip_scores = SCALE * np.clip((vectors * image_vectors).sum(axis=1, dtype=np.float64), 0.0, 1.0)  # (N,)
        if "clip_score" in metrics:
            values[name]["clip_score"] = Measured(float(clip_scores.mean()))
        if reference_vectors is not None:
            cosines = (np.repeat(vectors, counts, axis=0) * reference_vectors).sum(axis=1, dtype=np.float64)
            nearest = np.clip(_best(cosines, references), 0.0, 1.0)  # (N,)
            total = clip_scores + nearest
            harmonic = np.divide(2 * clip_scores * nearest, total, out=np.zeros_like(total), where=total > 0)
            values[name]["ref_clip_score"] = Measured(float(harmonic.mean()))


def _best(pairs: np.ndarray, references: Sequence[Sequence[str]]) -> np.ndarray:
    """(R,) values of each reference, image after image → (N,) the highest of each image."""
    starts = np.cumsum([0, *(len(texts) for texts in references[:-1])])
    return np.maximum.reduceat(np.asarray(pairs, dtype=np.float64), starts)

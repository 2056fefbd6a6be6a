"""An encoder on an evaluation set: its images and texts embedded, retrieval and zero-shot classification measured."""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
from PIL import Image

from benchmarks.papers.classes import LabelledSet, label_of
from benchmarks.papers.classification import SIMPLE_TEMPLATE, class_embeddings, zero_shot_metrics
from benchmarks.papers.recalls import chance_recalls, recall_intervals
from curation_assets.core.progress import ProgressReporter
from curation_assets.core.roles import ImageTextEncoder
from curation_assets.evaluation.sets.read_set import EvaluationImage, EvaluationSet, load_image
from curation_assets.numeric.agreement import wilson_interval
from curation_assets.numeric.metrics.retrieval import recalls_of_ranks, retrieval_ranks
from curation_assets.stores.atomic import remove_path
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.images import DEFAULT_LIMITS, ImageLimits, ImageRejected
from curation_assets.stores.saved_rows import DEFAULT_SECONDS, SavedRows

AT_ONCE = 128  # images decoded at a time: COCO's take 1 MB each
TEXTS_AT_ONCE = 1024

Interval = tuple[float, float]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Measured:
    """Metrics with what they were measured on. `counts`: images, captions, classes; `left_out` as in EvaluationSet."""

    metrics: Mapping[str, float]
    intervals: Mapping[str, Interval]  # 95 %
    chance: Mapping[str, float]
    counts: Mapping[str, int]
    left_out: Mapping[str, int]
    templates: tuple[str, ...] = ()


def measure_retrieval(
    evaluation: EvaluationSet,
    encoder: ImageTextEncoder,
    progress: ProgressReporter,
    unfinished: Path,
    limits: ImageLimits = DEFAULT_LIMITS,
) -> Measured:
    """recall@1, 5, 10 both ways over the images of the set that have captions and can be decoded.

    `unfinished`: folder in which embeddings wait while the work is not done. Raises ValueError for a set without
    captions, or without an image that can be decoded.
    """
    with_captions = [image for image in evaluation.images if image.captions]
    if not with_captions:
        raise ValueError(
            f"{evaluation.name} has labels and no captions; measure it by `python -m benchmarks.papers zero-shot`"
        )
    left_out = Counter(evaluation.left_out)
    left_out["no_caption"] += len(evaluation.images) - len(with_captions)
    work = EmbeddingWork(encoder, progress, unfinished)
    images, image_embeddings, rejected = work.images(with_captions, limits)
    captions = [caption for image in images for caption in image.captions]
    caption_image = np.repeat(np.arange(len(images)), [len(image.captions) for image in images])
    caption_embeddings = work.texts(captions, "captions")
    measured = retrieval_of_embeddings(image_embeddings, caption_embeddings, caption_image)
    work.finish()
    return replace(measured, left_out=_counted(left_out + rejected))


def retrieval_of_embeddings(images: np.ndarray, captions: np.ndarray, caption_image: np.ndarray) -> Measured:
    """recall@1, 5, 10 of unit embeddings (I, D), (T, D) and the image of each caption (T,). Raises ValueError."""
    ranks = retrieval_ranks(images, captions, caption_image)
    return Measured(
        recalls_of_ranks(*ranks),
        recall_intervals(*ranks, caption_image, np.random.default_rng(0)),
        chance_recalls(caption_image),
        {"images": len(images), "captions": len(captions)},
        {},
    )


def measure_zero_shot(
    evaluation: EvaluationSet,
    encoder: ImageTextEncoder,
    progress: ProgressReporter,
    unfinished: Path,
    limits: ImageLimits = DEFAULT_LIMITS,
) -> Measured:
    """acc1, acc5 and mean_per_class_recall of the classifier that the set's templates, or the simple one, make.

    Raises ValueError for a set without labels, or without an image that can be decoded.
    """
    if not isinstance(evaluation, LabelledSet) or not evaluation.class_names:
        raise ValueError(
            f"{evaluation.name} has captions and no labels; measure it by `python -m benchmarks.papers retrieval`"
        )
    templates = evaluation.templates or (SIMPLE_TEMPLATE,)
    texts = [template.replace("{}", name) for name in evaluation.class_names for template in templates]
    work = EmbeddingWork(encoder, progress, unfinished)
    embedded = work.texts(texts, "class names")
    classifier = class_embeddings(embedded.reshape(len(evaluation.class_names), len(templates), -1))  # (C, D)
    images, image_embeddings, rejected = work.images(evaluation.images, limits)
    labels = np.array([label_of(image) for image in images], dtype=np.int64)
    metrics = zero_shot_metrics(image_embeddings, classifier, labels)
    work.finish()
    class_count = len(evaluation.class_names)
    return Measured(
        metrics,
        {name: wilson_interval(metrics[name], len(images)) for name in ("acc1", "acc5") if name in metrics},
        {name: (5 if name == "acc5" else 1) / class_count for name in metrics},
        {"images": len(images), "classes": class_count, "classes_with_images": len(set(labels.tolist()))},
        _counted(Counter(evaluation.left_out) + rejected),
        templates,
    )


def _counted(left_out: Counter[str]) -> dict[str, int]:
    return {reason: count for reason, count in sorted(left_out.items()) if count}


class Row(NamedTuple):
    """An embedding (D,), or the reason why there is none."""

    embedding: np.ndarray | None
    reason: str | None = None


_ROWS = pl.Schema([("embedding", pl.List(pl.Float32)), ("reason", pl.String())])


class EmbeddingWork:
    """Embeds with progress. Rows are saved once a minute: a stopped call goes on there, `finish` removes them."""

    def __init__(self, encoder: ImageTextEncoder, progress: ProgressReporter, unfinished: Path) -> None:
        """`unfinished`: folder of folders, one per work, named by what is embedded and by the encoder."""
        self.encoder = encoder
        self._progress = progress
        self._unfinished = unfinished
        self._folders: list[Path] = []

    def texts(self, texts: Sequence[str], label: str) -> np.ndarray:
        """(N,) texts → (N, D)."""

        def embed(part: Sequence[str]) -> list[Row]:
            return [Row(row) for row in self.encoder.embed_texts(part)]

        key = config_sha256({"model": vars(self.encoder.identity), "texts": list(texts)})
        rows = self._rows(texts, TEXTS_AT_ONCE, embed, key, label)
        return np.array([row.embedding for row in rows], dtype=np.float32)

    def images(
        self, images: Sequence[EvaluationImage], limits: ImageLimits = DEFAULT_LIMITS
    ) -> tuple[list[EvaluationImage], np.ndarray, Counter[str]]:
        """The images that can be decoded, their embeddings (N, D), and why others cannot (`image_<reason>` → count).

        Raises ValueError where no image can be decoded.
        """

        def embed(part: Sequence[EvaluationImage]) -> list[Row]:
            return _embedded_rows(part, self.encoder, limits)

        rows = self._rows(images, AT_ONCE, embed, _images_key(images, self.encoder, limits), "images")
        kept = [(image, row.embedding) for image, row in zip(images, rows, strict=True) if row.reason is None]
        rejected = Counter(row.reason for row in rows if row.reason is not None)
        if not kept:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in sorted(rejected.items()))
            raise ValueError(f"none of {len(images):,} images can be decoded: {reasons}")
        return [image for image, _ in kept], np.array([row for _, row in kept], dtype=np.float32), rejected

    def finish(self) -> None:
        """Remove what was saved."""
        for folder in self._folders:
            remove_path(folder)

    def _rows(
        self,
        items: Sequence[Item],
        at_once: int,
        embed: Callable[[Sequence[Item]], list[Row]],
        key: str,
        label: str,
    ) -> list[Row]:
        saved = SavedRows(self._unfinished / key[:32], DEFAULT_SECONDS)
        self._folders.append(saved.folder)
        done = _read_rows(saved)
        unsaved = len(done)
        with self._progress.task(f"embed {label}", len(items)) as advance:
            advance(len(done))
            for start in range(len(done), len(items), at_once):
                done += embed(items[start : start + at_once])
                advance(min(at_once, len(items) - start))
                if saved.is_due():
                    saved.add(pl.DataFrame([row._asdict() for row in done[unsaved:]], schema=_ROWS))
                    unsaved = len(done)
        return done


def _read_rows(saved: SavedRows) -> list[Row]:
    frame = saved.read()
    if frame is None:
        return []
    embeddings = (None if cell is None else cell.to_numpy() for cell in frame["embedding"])
    return [Row(embedding, reason) for embedding, reason in zip(embeddings, frame["reason"], strict=True)]


def _embedded_rows(images: Sequence[EvaluationImage], encoder: ImageTextEncoder, limits: ImageLimits) -> list[Row]:
    loaded: list[Image.Image] = []
    reasons: list[str | None] = []
    for image in images:
        try:
            loaded.append(load_image(image, limits))
            reasons.append(None)
        except ImageRejected as rejection:
            reasons.append(f"image_{rejection.reason}")
    embeddings = iter(encoder.embed_images(loaded) if loaded else ())
    return [Row(next(embeddings)) if reason is None else Row(None, reason) for reason in reasons]


def _images_key(images: Sequence[EvaluationImage], encoder: ImageTextEncoder, limits: ImageLimits) -> str:
    """Changes with the images (places, sizes and times of their files), the encoder and the limits."""
    digest = hashlib.sha256(config_sha256({"model": vars(encoder.identity), "limits": vars(limits)}).encode())
    stamps: dict[str, str] = {}
    for image in images:
        file = image.path or image.tar or ""
        if file not in stamps:
            stat = Path(file).stat() if Path(file).is_file() else None
            stamps[file] = "" if stat is None else f"{stat.st_size} {stat.st_mtime_ns}"
        digest.update(f"{file}\0{image.member}\0{stamps[file]}\n".encode())
    return digest.hexdigest()

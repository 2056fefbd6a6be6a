"""python -m benchmarks.papers retrieval, zero-shot and karpathy: an encoder on standard evaluation sets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from curation_assets.cli.common import (
    FEW,
    HomeOption,
    JsonOption,
    ProfileOption,
    RoleOption,
    notice,
    settings_from,
    show,
    show_json,
    show_table,
)
from curation_assets.stores.arrays import load_npy

SetArgument = Annotated[
    Path,
    typer.Argument(
        metavar="SET",
        help="Folder: ImageNet's CLASS/*.jpg, or webdataset tars with KEY.cls and classnames.txt.",
    ),
]
SplitOption = Annotated[str | None, typer.Option("--split", help="Split of the set (default: test, else val).")]
LimitOption = Annotated[int | None, typer.Option("--limit", help="At most so many images, the first ones.")]
EmbeddingOption = Annotated[Path | None, typer.Option(metavar="NPY", help="Instead of SET; all three or none.")]
CaptionsOption = Annotated[
    int | None, typer.Option("--captions-per-image", help="The first ones (default: 5 of COCO and Flickr, else all).")
]


def retrieval(
    evaluation_set: Annotated[
        Path | None,
        typer.Argument(
            metavar="SET",
            help="Folder of COCO (Karpathy or annotations), Flickr30k, Flickr8k, NoCaps, webdataset tars, or images "
            "with a table of captions.",
            show_default=False,
        ),
    ] = None,
    profile: ProfileOption = None,
    role: RoleOption = None,
    split: SplitOption = None,
    limit: LimitOption = None,
    captions_per_image: CaptionsOption = None,
    image_embeddings: EmbeddingOption = None,
    caption_embeddings: EmbeddingOption = None,
    caption_image: EmbeddingOption = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Measure recall@k between the images and captions of a set, both ways.

    With the image_text_encoder of the profile (default: that of photographs), or of embeddings that you bring: rows of
    images (I, D), rows of captions (T, D), and the position of each caption's image (T,), from 0.
    """
    from benchmarks.papers.encoder_measures import measure_retrieval, retrieval_of_embeddings
    from benchmarks.papers.layouts import read_any_set

    files = {"images": image_embeddings, "captions": caption_embeddings, "caption_image": caption_image}
    given = {name: path for name, path in files.items() if path is not None}
    if given and (evaluation_set is not None or len(given) < len(files)):
        raise ValueError(
            "expected a SET, or all of --image-embeddings, --caption-embeddings and --caption-image; got "
            f"{'a SET and ' if evaluation_set else ''}files of {', '.join(given)}"
        )
    if given:
        measured = retrieval_of_embeddings(
            _unit_rows(given["images"]), _unit_rows(given["captions"]), _positions(given["caption_image"])
        )
        described: dict[str, Any] = {"set": None, "model": _file_identities(given)}
    else:
        if evaluation_set is None:
            raise ValueError(
                "expected a SET, the folder of an evaluation set: `python -m benchmarks.papers retrieval /data/coco`"
            )
        measured_set = read_any_set(evaluation_set, split=split, limit=limit, captions_per_image=captions_per_image)
        encoder, folder, reporter = _encoder(home, profile, role)
        measured = measure_retrieval(measured_set, encoder, reporter, folder)
        described = {"set": _set_facts(measured_set, evaluation_set), "model": vars(encoder.identity)}
    if as_json:
        show_json(_as_json(described, measured))
        return
    _show_head(described, measured)
    rows = []
    for k in (1, 5, 10):
        names = [f"{direction}_recall@{k}" for direction in ("text_to_image", "image_to_text", "mean")]
        rows.append((f"recall@{k}", *(_cell(measured, name) for name in names)))
    rows += [
        (
            f"chance @{k}",
            *(_number(measured.chance[f"{way}_recall@{k}"]) for way in ("text_to_image", "image_to_text", "mean")),
        )
        for k in (1, 5, 10)
    ]
    show_table(("", "text to image", "image to text", "mean"), rows)
    _show_tail(measured)


def zero_shot(
    evaluation_set: SetArgument,
    profile: ProfileOption = None,
    role: RoleOption = None,
    split: SplitOption = None,
    limit: LimitOption = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Measure zero-shot classification of a set's images by its class names.

    The classifier is the mean of each class name's embeddings in the set's templates
    (zeroshot_classification_templates.txt), or in "a photo of a {}." where the set has none.
    """
    from benchmarks.papers.encoder_measures import measure_zero_shot
    from benchmarks.papers.layouts import read_any_set

    measured_set = read_any_set(evaluation_set, split=split, limit=limit)
    encoder, folder, reporter = _encoder(home, profile, role)
    measured = measure_zero_shot(measured_set, encoder, reporter, folder)
    described = {"set": _set_facts(measured_set, evaluation_set), "model": vars(encoder.identity)}
    own = bool(getattr(measured_set, "templates", ()))
    if as_json:
        show_json(_as_json(described, measured) | {"templates": list(measured.templates), "templates_of_set": own})
        return
    _show_head(described, measured)
    which = f"{len(measured.templates)} of the set, such as" if own else "the set has none; the simple one:"
    show(f"Templates: {which} {measured.templates[0]!r}")
    rows = [(name, _cell(measured, name), _number(measured.chance[name])) for name in measured.metrics]
    show_table(("", "share", "chance"), rows)
    if "acc5" not in measured.metrics:
        show(f"No acc5: with {measured.counts['classes']} classes, five guesses are always right")
    _show_tail(measured)


def karpathy(
    evaluation_set: Annotated[
        Path, typer.Argument(metavar="SET", help="Folder of COCO's annotations, NoCaps, Flickr's texts, or a table.")
    ],
    split: SplitOption = None,
) -> None:
    """Write Karpathy's JSON of a set of another layout into its folder, for the option `evaluation_set`."""
    import json

    from benchmarks.papers.layouts import karpathy_of
    from curation_assets.stores.atomic import check_new, writing_new

    name, content = karpathy_of(evaluation_set, split)
    folder = evaluation_set if evaluation_set.is_dir() else evaluation_set.parent
    out = (folder.parent if folder.name == "annotations" else folder) / name
    check_new(out)
    with writing_new(out) as temporary:
        temporary.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    notice(f"{len(content['images']):,} images in {out}")


# -- models and files -------------------------------------------------------------------------------------------------


def _encoder(home: Path | None, profile: str | None, role: list[str] | None) -> tuple[Any, Path, Any]:
    """The encoder, the folder of unfinished work, and where progress is shown."""
    from curation_assets.cli.score import profile_for_files
    from curation_assets.core.progress import reporter_for
    from curation_assets.core.settings import PHOTO_PROFILE, load_profile
    from curation_assets.engines import load_engine

    settings = settings_from(home, profile)
    chosen = settings.profile if settings.is_profile_chosen else load_profile(PHOTO_PROFILE)
    encoder = load_engine("image_text_encoder", profile_for_files(chosen, role or []))
    return encoder, settings.home / "evaluation" / "unfinished", reporter_for()


def _unit_rows(path: Path) -> np.ndarray:
    """(N, D) rows of unit length. Raises ValueError for another shape, rows of zeros or numbers that are not finite."""
    rows = load_npy(path)
    if rows.ndim != 2 or not rows.size or not np.issubdtype(rows.dtype, np.floating):
        raise ValueError(f"{path}: expected rows of numbers (N, D), got {rows.dtype} {rows.shape}")
    rows = rows.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    wrong = ~(np.isfinite(lengths) & (lengths > 0)).ravel()
    if wrong.any():
        raise ValueError(
            f"{path}: row {int(np.argmax(wrong))} is zero or not finite ({int(wrong.sum())} such rows); leave them out"
        )
    if np.abs(lengths - 1).max() > 1e-3:
        notice(f"{path}: rows are not of unit length (up to {lengths.max():.4g}); they are scaled, cosines compared")
    return np.asarray(rows / lengths)


def _positions(path: Path) -> np.ndarray:
    positions = load_npy(path)
    if positions.ndim != 1 or not np.issubdtype(positions.dtype, np.integer):
        raise ValueError(f"{path}: expected whole numbers (T,), got {positions.dtype} {positions.shape}")
    return positions.astype(np.int64)


def _file_identities(files: Mapping[str, Path]) -> dict[str, Any]:
    from curation_assets.stores.file_hash import file_sha256

    return {"files": {name: {"path": str(path), "sha256": file_sha256(path)} for name, path in files.items()}}


# -- what is shown ----------------------------------------------------------------------------------------------------


def _set_facts(measured_set: Any, path: Path) -> dict[str, Any]:
    from benchmarks.papers.classes import set_sha256

    digest = set_sha256(measured_set)
    return {"name": measured_set.name, "layout": measured_set.layout, "path": str(path), "sha256": digest}


def _as_json(described: Mapping[str, Any], measured: Any) -> dict[str, Any]:
    return {
        **described,
        "n": measured.counts,
        "metrics": measured.metrics,
        "intervals": measured.intervals,
        "chance": measured.chance,
        "left_out": measured.left_out,
    }


def _show_head(described: Mapping[str, Any], measured: Any) -> None:
    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in measured.counts.items())
    facts, model = described["set"], described["model"]
    show(f"{facts['name']} ({facts['layout']}): {counts}" if facts else f"Embeddings: {counts}")
    if "files" in model:
        for name, file in model["files"].items():
            show(f"{name}: {file['path']}, sha256 {file['sha256'][:12]}")
    else:
        show(f"Model: {model['address']}, revision {model['revision']}, weights sha256 {model['weights_sha256'][:12]}")


def _number(share: float) -> str:
    return f"{share:.4f}"


def _cell(measured: Any, name: str) -> str:
    interval = measured.intervals.get(name)
    return _number(measured.metrics[name]) + (f" ({interval[0]:.4f}–{interval[1]:.4f})" if interval else "")


def _show_tail(measured: Any) -> None:
    show("In brackets: 95 % interval over the images of this set; ties count against the model")
    if measured.counts["images"] < FEW:
        notice(f"Only {measured.counts['images']} images: too few to tell models apart")
    if not measured.left_out:
        show("Left out: nothing")
    for reason, count in measured.left_out.items():
        show(f"Left out: {count:,} {reason}")

"""curate evaluate captions: generated captions against references, by every metric that can be had here."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import (
    JsonOption,
    ProfileOption,
    RoleOption,
    notice,
    settings_from,
    show,
    show_json,
    show_table,
)
from curation_assets.core.errors import ModelUnavailableError
from curation_assets.stores.caption_files import find_images, read_caption_pairs

HypothesesOption = Annotated[
    Path, typer.Option("--hypotheses", help="One caption per image: COCO results (.json) or a table.")
]
ReferencesOption = Annotated[
    Path, typer.Option("--references", help="COCO annotations, Karpathy's JSON, or a table; several per image.")
]
MetricsOption = Annotated[
    str | None,
    typer.Option(help="Some of bleu, meteor, rouge_l, cider, spice, bert_score, clip_score, ref_clip_score."),
]
ImagesOption = Annotated[
    Path | None, typer.Option("--images", help="Folder of the images, for CLIPScore and RefCLIPScore.")
]
SplitOption = Annotated[
    str | None, typer.Option(help="Split of the references; of Karpathy's JSON test is the default.")
]
SubsetOption = Annotated[
    bool, typer.Option("--subset", help="Measure the images that have a hypothesis, and leave the others out.")
]


@command("evaluate captions", "Evaluation")
def captions(
    hypotheses: HypothesesOption,
    references: ReferencesOption,
    metrics: MetricsOption = None,
    images: ImagesOption = None,
    split: SplitOption = None,
    subset: SubsetOption = False,
    profile: ProfileOption = None,
    role: RoleOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure captions against references: BLEU, METEOR, ROUGE-L, CIDEr-D, SPICE, BERTScore, CLIPScore.

    As pycocoevalcap does, whose Java programs give METEOR, SPICE and the tokens. What cannot be had has a reason.
    """
    from curation_assets.evaluation.caption_metrics import (
        CAPTION_METRICS,
        OF_IMAGES,
        Measured,
        measure_captions,
        measured_keys,
        tokeniser_in_use,
        why_approximate,
    )

    default: Sequence[str] = [name for name in CAPTION_METRICS if images is not None or name not in OF_IMAGES]
    chosen = default if metrics is None else [name.strip() for name in metrics.split(",") if name.strip()]
    keys = measured_keys(chosen)
    if not keys:
        raise ValueError(f"--metrics names none; expected some of {', '.join(CAPTION_METRICS)}")
    reads_images = bool(set(chosen) & set(OF_IMAGES))
    if reads_images and images is None:
        raise ValueError("clip_score and ref_clip_score read the images: name their folder with --images")
    pairs = read_caption_pairs(hypotheses, references, split=split, only_hypotheses=subset)
    files = find_images(images, pairs) if reads_images and images is not None else None
    engines, lacks = _engines(chosen, profile, role or [], reads_images)
    measured = measure_captions(
        pairs.references,
        {"captions": pairs.hypotheses},
        metrics=chosen,
        similarity=engines.get("text_similarity"),
        encoder=engines.get("image_text_encoder"),
        images=files,
    )["captions"]
    role_of = {"bert_score": "text_similarity", **dict.fromkeys(OF_IMAGES, "image_text_encoder")}
    for key, name in role_of.items():
        if key in measured and name in lacks:
            measured[key] = Measured(None, lacks[name])
    models = {name: engine.identity.address for name, engine in engines.items()}
    tokeniser, why = tokeniser_in_use(), why_approximate()
    count = sum(map(len, pairs.references))
    if as_json:
        facts = {"tokeniser": tokeniser, "tokeniser_reason": why, "models": models}
        values = {key: asdict(value) for key, value in measured.items()}
        show_json({"images": len(pairs.image_ids), "references": count, **facts, "metrics": values})
        return
    show(f"{len(pairs.image_ids):,} images, {count:,} references")
    rows = []
    for key, value in measured.items():
        model = models.get(role_of.get(key, ""))
        shown = "–" if value.value is None else f"{value.value:.4f}"
        rows.append((key, shown, f"{len(pairs.image_ids):,}", f"by {model}" if model else ""))
    show_table(("metric", "value", "images", ""), rows, left=("metric", ""))
    for key, value in measured.items():
        if value.reason is not None:
            show(f"{key}: not measured, {value.reason}")
    show("tokens: " + ("Penn Treebank tokeniser" if why is None else f"approximate, {why}"))
    if len(pairs.image_ids) == 1 and "cider" in measured:
        notice("CIDEr weighs words by how rare they are among the images: of a single one it is 0")


def _engines(
    metrics: Sequence[str], profile: str | None, roles: list[str], reads_images: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Role → engine that the metrics need, and role → why a model is not there."""
    from curation_assets.cli.score import profile_for_files
    from curation_assets.core.settings import PHOTO_PROFILE, load_profile
    from curation_assets.engines import load_engine

    settings = settings_from(None, profile)
    fits = settings.is_profile_chosen or not reads_images
    addresses = profile_for_files(settings.profile if fits else load_profile(PHOTO_PROFILE), roles)
    wanted = ["text_similarity"] if "bert_score" in metrics else []
    engines: dict[str, Any] = {}
    lacks = {}
    for name in [*wanted, *(["image_text_encoder"] if reads_images else [])]:
        try:
            engines[name] = load_engine(name, addresses)
        except ModelUnavailableError as error:
            lacks[name] = str(error)
    return engines, lacks

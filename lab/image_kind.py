"""Kinds of images: `python -m lab image_kind --pairs TABLE --out DIR`.

Trains the linear layer of `engines/kind_classifier.py` on frozen features, on a CPU. TABLE has the columns image (a
path relative to the table, or TAR:MEMBER), kind (of KINDS) and, if there is one, group, such as the site: rows of a
group are in one fold of the cross-validation. Prints cross-validated figures, then trains on everything and writes
DIR/image_kind, which a profile names as `path:DIR/image_kind`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from rich.console import Console
from safetensors.torch import save_file

from curation_assets.core.progress import reporter_for
from curation_assets.core.validation import check_known
from curation_assets.engines import photo_pair, resolve_address
from curation_assets.engines.efficientnet import BACKBONES
from curation_assets.engines.kind_classifier import KIND, KINDS_FILE
from curation_assets.numeric.identity import sample_id_of, unit_interval_of
from curation_assets.numeric.separation import roc_auc
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.images import ImageRejected
from curation_assets.stores.rankings import load_ranked_image
from curation_assets.stores.text_tables import read_rows
from lab import manifest
from lab.common import Clock, Setup, record, replaced_folder, run_or_refuse

KINDS = ("photo", "screenshot", "diagram", "drawing", "logo", "document")
PENALTY = 0.1  # times the sum of squares of the weights; of .03 to 1 by cross-validation
MIN_IMAGES = 20
AT_ONCE = 32  # images decoded together


def read_kinds(path: Path) -> pl.DataFrame:
    """image, kind, group of a table, sorted by image. Raises ValueError for a missing column or an unknown kind."""
    table = read_rows(path)
    if not {"image", "kind"} <= set(table.columns):
        raise ValueError(f"{path}: expected the columns image, kind and perhaps group, got {table.columns}")
    found = table["kind"].unique().to_list()
    check_known(str(path), "kind", found, KINDS)
    if "photo" not in found or len(found) < 2:
        raise ValueError(f"{path}: expected images of kind photo and of another kind, got {found}")
    group = "group" if "group" in table.columns else "image"
    return table.select("image", "kind", pl.col(group).alias("group")).sort("image")


def features_of(path: Path, table: pl.DataFrame) -> tuple[pl.DataFrame, torch.Tensor]:
    """The rows of `table` whose images can be decoded, and (N, F) features of these."""
    backbones = {name: resolve_address(f"embedded:{name}") for name in BACKBONES}
    features = photo_pair.load_features(tuple(BACKBONES), backbones, "cpu")
    rows: list[int] = []
    seen: list[torch.Tensor] = []
    with reporter_for(Console(stderr=True)).task("features of images", table.height) as advance:
        for start in range(0, table.height, AT_ONCE):
            images = []
            for row, name in enumerate(table["image"][start : start + AT_ONCE], start):
                try:
                    images.append(load_ranked_image(path, name))
                except ImageRejected as error:
                    print(f"{name} left out: {error.reason}")
                else:
                    rows.append(row)
            if images:
                seen.append(features(images)[0])
            advance(min(AT_ONCE, table.height - start))
    if len(rows) < MIN_IMAGES:
        raise ValueError(f"{path}: expected at least {MIN_IMAGES} images that can be decoded, got {len(rows)}")
    return table[rows], torch.cat(seen)


def fit(features: torch.Tensor, kinds: torch.Tensor) -> dict[str, torch.Tensor]:
    """(N, F), (N,) positions in KINDS → weight (K, F), bias (K,): multinomial logistic regression, penalised.

    Features are standardised for the fit, so the penalty is the same for all.
    """
    mean, sd = features.mean(dim=0), features.std(dim=0)
    sd = sd.clamp_min(0.05 * float(sd.median()))  # a feature that is hardly ever there
    inputs = (features - mean) / sd
    weight = torch.zeros(len(KINDS), inputs.shape[1], requires_grad=True)
    bias = torch.zeros(len(KINDS), requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=60, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(F.linear(inputs, weight, bias), kinds) + PENALTY * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        scaled = weight / sd
        return {"weight": scaled, "bias": bias - scaled @ mean}


def out_of_fold(features: torch.Tensor, kinds: torch.Tensor, groups: Sequence[str], folds: int) -> torch.Tensor:
    """(N, K) logits of each row by a layer that no row of its group was trained on."""
    fold_of = torch.tensor([int(unit_interval_of(sample_id_of(group, None), "folds") * folds) for group in groups])
    logits = torch.zeros(len(features), len(KINDS))
    for fold in range(folds):
        test = fold_of == fold
        if bool(test.any()):
            made = fit(features[~test], kinds[~test])
            logits[test] = F.linear(features[test], made["weight"], made["bias"])
    return logits


def temperature_of(logits: torch.Tensor, kinds: torch.Tensor) -> float:
    """By which logits are divided so that their softmax says how often it is right: the least mean log loss."""
    candidates = torch.linspace(0.5, 3.0, 126)  # steps of .02
    losses = [float(F.cross_entropy(logits / one, kinds)) for one in candidates]
    return round(float(candidates[int(np.argmin(losses))]), 2)


def figures(logits: torch.Tensor, kinds: torch.Tensor) -> dict[str, Any]:
    """n, AUC of photographs against the others by the probability of photo, shares that are right, confusion."""
    probabilities = logits.double().softmax(dim=1).numpy()
    found, truth = probabilities.argmax(axis=1), kinds.numpy()
    counts = np.zeros((len(KINDS), len(KINDS)), dtype=int)
    np.add.at(counts, (truth, found), 1)
    return {
        "n": len(truth),
        "photo_auc": round(roc_auc(probabilities[:, 0], truth == 0), 4),
        "photo_right": round(float(((found == 0) == (truth == 0)).mean()), 4),
        "kind_right": round(float((found == truth).mean()), 4),
        "confusion": counts.tolist(),  # rows: the kind, columns: what was found, both in the order of KINDS
    }


def run(given: argparse.Namespace) -> None:
    """What the module says."""
    clock = Clock()
    torch.set_num_threads(given.threads)
    table, features = features_of(given.pairs, read_kinds(given.pairs))
    kinds = torch.tensor([KINDS.index(kind) for kind in table["kind"]])
    logits = out_of_fold(features, kinds, table["group"].cast(pl.String).to_list(), given.folds)
    temperature = temperature_of(logits, kinds)
    measured = {"folds": given.folds, **figures(logits / temperature, kinds)}
    print(f"cross-validated: {measured}")
    tensors = {name: (one / temperature).half().contiguous() for name, one in fit(features, kinds).items()}
    folder = given.out / KIND
    with replaced_folder(folder) as temporary:
        save_file(tensors, temporary / KINDS_FILE)
        card = {
            "kind": KIND,
            "kinds": list(KINDS),
            "backbones": list(BACKBONES),
            "penalty": PENALTY,
            "temperature": temperature,
            "images": dict(table["kind"].value_counts().sort("kind").iter_rows()),
            "groups": table["group"].n_unique(),
            "cross_validated": measured,
            "weights_sha256": file_sha256(temporary / KINDS_FILE),
        }
        (temporary / "card.json").write_text(json.dumps(card, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{folder}: {clock.seconds():.0f} CPU-seconds; in a profile kind_classifier: path:{folder}")
    if (given.out / "manifest.json").is_file():  # the shipped folder
        setup = Setup(given.out, given.out / ".work", threads=given.threads)
        facts = {name: card[name] for name in ("penalty", "temperature", "images", "groups")}
        record(setup, KIND, {**facts, "cpu_seconds": clock.seconds()}, measured)
        manifest.run(setup)


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lab image_kind",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=Path, required=True, help="table of image and kind, perhaps group")
    parser.add_argument("--out", type=Path, required=True, help="folder that gets image_kind/")
    parser.add_argument("--folds", type=int, default=5, help="of the cross-validation")
    parser.add_argument("--threads", type=int, default=1)
    run_or_refuse(parser, run, arguments)


if __name__ == "__main__":
    main()

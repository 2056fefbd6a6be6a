"""Students: fit the small regressor that imitates the fused teachers, and write it as a folder with a card."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from curation_assets.core.roles import SentenceEncoder
from curation_assets.stores.file_hash import file_sha256
from curation_assets.training.options import StudentKind

#: Ridge penalties tried, from interpolation to the mean. Embeddings are unit vectors, so these are absolute.
RIDGE_PENALTIES = tuple(float(penalty) for penalty in np.logspace(-3, 3, 25))
FOLDS = 5
MIN_CAPTIONS = 20

#: Settings of the kinds that are trained step by step. roberta from scratch learns at 5e-4.
FIT_DEFAULTS: dict[str, dict[str, Any]] = {
    "minilm_mlp": {"epochs": 200, "patience": 20, "learning_rate": 1e-3},
    "minilm_finetuned": {"epochs": 5, "patience": 2, "learning_rate": 2e-5},
    "roberta": {"epochs": 10, "patience": 3, "learning_rate": 2e-5},
}


@dataclass(frozen=True)
class StudentCard:
    """What a student is and how it came to be; saved beside its weights as card.json."""

    kind: str
    n: int  # captions it was fitted on
    seed: int
    recipe: dict[str, Any]  # every setting of the fit, and what was chosen
    cv_pearson: float  # held-out agreement with the targets, in [-1, 1]; the split is in the recipe
    cv_spearman: float
    target_mean: float
    target_sd: float
    sentence_encoder: str | None  # address; kinds on frozen embeddings only
    sentence_encoder_sha256: str | None
    weights_sha256: str  # of the one .safetensors file


def train_student(
    captions: Sequence[str],
    targets: Sequence[float] | np.ndarray,
    out_dir: Path,
    *,
    kind: StudentKind = "minilm_ridge",
    sentence_encoder: SentenceEncoder | None = None,
    seed: int = 0,
    backbone: str | None = None,
    epochs: int | None = None,
    batch_size: int = 32,
    learning_rate: float | None = None,
    patience: int | None = None,
    device: str = "cpu",
) -> StudentCard:
    """Fit a student on (N,) captions and (N,) targets in about [0, 1]; write weights and card.json to
    `out_dir`.

    minilm_ridge: frozen sentence embeddings and a ridge in closed form, penalty by leave-one-out (formulas.md §12).
    minilm_mlp: one hidden layer on the same embeddings. minilm_finetuned: the encoder itself with mean pooling and a
    linear head. roberta: RobertaForSequenceClassification with one logit and MSE (ICC §4.3; formulas.md §1.8).
    The last three are trained with early stopping on a tenth of the captions; `epochs`, `batch_size`,
    `learning_rate`, `patience` (None: `FIT_DEFAULTS` of the kind) concern them only. `backbone` is an address: what
    minilm_finetuned starts from (None: embedded:minilm), and roberta (path:, hub:distilroberta-base; None builds
    128 wide × 2 layers on the shipped tokenizer). Output is never clipped. Same input and seed, same weights.
    Raises ValueError for unequal lengths, fewer than 20 captions, a target that is not finite, or constant
    targets.
    """
    goals = np.asarray(targets, dtype=np.float64)  # (N,)
    _check(captions, goals)
    out_dir.mkdir(parents=True, exist_ok=True)
    if kind == "minilm_ridge":
        if sentence_encoder is None:
            raise ValueError("kind minilm_ridge needs sentence_encoder=load_engine('sentence_encoder', profile)")
        card = _train_ridge(captions, goals, out_dir, sentence_encoder, seed)
    elif kind in FIT_DEFAULTS:
        standard = FIT_DEFAULTS[kind]
        rate = 5e-4 if kind == "roberta" and backbone is None else standard["learning_rate"]
        settings = {
            "seed": seed,
            "epochs": standard["epochs"] if epochs is None else epochs,
            "batch_size": batch_size,
            "learning_rate": rate if learning_rate is None else learning_rate,
            "patience": standard["patience"] if patience is None else patience,
            "device": device,
        }
        _check_fit(settings)
        card = _train_network(captions, goals, out_dir, kind, sentence_encoder, backbone, settings)
    else:
        raise ValueError(f"student kind must be one of {', '.join(get_args(StudentKind))}, got {kind!r}")
    (out_dir / "card.json").write_text(json.dumps(asdict(card), indent=2, sort_keys=True) + "\n")
    return card


def _check(captions: Sequence[str], goals: np.ndarray) -> None:
    if goals.shape != (len(captions),):
        raise ValueError(f"expected one target per caption, got {len(captions)} captions and shape {goals.shape}")
    if len(captions) < MIN_CAPTIONS:
        raise ValueError(f"a student needs at least {MIN_CAPTIONS} scored captions, got {len(captions)}")
    if not np.isfinite(goals).all():
        raise ValueError(f"{int((~np.isfinite(goals)).sum())} targets are not finite; drop captions without a score")
    if np.ptp(goals) == 0:
        raise ValueError(f"all targets equal {goals[0]}; there is nothing to learn, check the teachers")


def _check_fit(settings: dict[str, Any]) -> None:
    for name in ("epochs", "batch_size", "patience"):
        if settings[name] < 1:
            raise ValueError(f"{name} must be at least 1, got {settings[name]}")
    if not settings["learning_rate"] > 0:
        raise ValueError(f"learning_rate must be above 0, got {settings['learning_rate']}")


def _train_ridge(
    captions: Sequence[str], goals: np.ndarray, out_dir: Path, sentence_encoder: SentenceEncoder, seed: int
) -> StudentCard:
    from safetensors.numpy import save_file
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import KFold, cross_val_predict

    embeddings = sentence_encoder.embed_sentences(list(captions)).astype(np.float64)  # (N, D)
    # The penalty is chosen anew inside every fold, so the agreement below has seen no held-out target.
    folds = KFold(FOLDS, shuffle=True, random_state=seed)
    held_out = cross_val_predict(RidgeCV(alphas=RIDGE_PENALTIES), embeddings, goals, cv=folds)  # (N,)
    ridge = RidgeCV(alphas=RIDGE_PENALTIES).fit(embeddings, goals)
    weights = {
        "coefficients": np.ascontiguousarray(ridge.coef_, dtype=np.float64),
        "intercept": np.array([ridge.intercept_], dtype=np.float64),
    }
    save_file(weights, out_dir / "ridge.safetensors")
    recipe = {
        "penalty": float(ridge.alpha_),
        "penalties_tried": list(RIDGE_PENALTIES),
        "penalty_choice": "leave-one-out",
        "agreement": f"{FOLDS}-fold",
    }
    identity = sentence_encoder.identity
    return _card(
        "minilm_ridge", goals, held_out, goals, seed, recipe, out_dir / "ridge.safetensors",
        identity.address, identity.weights_sha256,
    )  # fmt: skip


def _train_network(
    captions: Sequence[str],
    goals: np.ndarray,
    out_dir: Path,
    kind: StudentKind,
    sentence_encoder: SentenceEncoder | None,
    backbone: str | None,
    settings: dict[str, Any],
) -> StudentCard:
    from curation_assets.training import student_networks as networks

    chosen = networks.FitSettings(**settings)
    address, sha256 = None, None
    if kind == "roberta":
        fit = networks.train_roberta(captions, goals, out_dir, chosen, backbone)
    elif kind == "minilm_finetuned":
        fit = networks.train_finetuned_minilm(captions, goals, out_dir, chosen, backbone or "embedded:minilm")
    else:
        if sentence_encoder is None:
            raise ValueError(f"kind {kind} needs sentence_encoder=load_engine('sentence_encoder', profile)")
        address, sha256 = sentence_encoder.identity.address, sentence_encoder.identity.weights_sha256
        fit = networks.train_mlp(captions, goals, out_dir, chosen, sentence_encoder)
    weights = out_dir / (networks.MLP_FILE if kind == "minilm_mlp" else networks.MODEL_FILE)
    held_out_goals = goals[fit.held_out]
    return _card(kind, goals, fit.predicted, held_out_goals, chosen.seed, fit.recipe, weights, address, sha256)


def _card(
    kind: str,
    goals: np.ndarray,
    predicted: np.ndarray,
    held_out_goals: np.ndarray,
    seed: int,
    recipe: dict[str, Any],
    weights: Path,
    encoder: str | None,
    encoder_sha256: str | None,
) -> StudentCard:
    from scipy.stats import pearsonr, spearmanr

    return StudentCard(
        kind=kind,
        n=len(goals),
        seed=seed,
        recipe=recipe,
        cv_pearson=float(pearsonr(predicted, held_out_goals).statistic),
        cv_spearman=float(spearmanr(predicted, held_out_goals).statistic),
        target_mean=float(goals.mean()),
        target_sd=float(goals.std()),
        sentence_encoder=encoder,
        sentence_encoder_sha256=encoder_sha256,
        weights_sha256=file_sha256(weights),
    )

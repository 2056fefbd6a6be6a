"""Students: fit the small regressor that imitates the fused teachers, and write it as a folder with a card."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from curation_assets.core.roles import ModelIdentity, SentenceEncoder
from curation_assets.core.validation import content_of
from curation_assets.stores.file_hash import file_sha256
from curation_assets.training import student_networks as networks
from curation_assets.training.options import EMBEDDING_KINDS, StudentFit, StudentKind

#: Ridge penalties tried, from interpolation to the mean. Embeddings are unit vectors, so these are absolute.
RIDGE_PENALTIES = tuple(float(penalty) for penalty in np.logspace(-3, 3, 25))
FOLDS = 5
MIN_CAPTIONS = 20

#: Of the kinds that are trained step by step, what `StudentFit` leaves out.
FIT_DEFAULTS: dict[str, dict[str, Any]] = {
    "minilm_mlp": {"epochs": 200, "patience": 20, "learning_rate": 1e-3, "batch_size": 32},
    "minilm_finetuned": {"epochs": 5, "patience": 2, "learning_rate": 2e-5, "batch_size": 32},
    "roberta": {"epochs": 10, "patience": 3, "learning_rate": 2e-5, "batch_size": 32},
}
NEW_ROBERTA_RATE = 5e-4  # learning rate of one without a backbone


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
    fit: StudentFit | None = None,
    device: str = "cpu",
) -> StudentCard:
    """Fit a student on (N,) captions and (N,) targets in about [0, 1]; write weights and card.json to
    `out_dir`.

    minilm_ridge: frozen sentence embeddings and a ridge in closed form, penalty by leave-one-out (formulas.md §12).
    minilm_mlp: one hidden layer on the same embeddings. minilm_finetuned: the encoder itself with mean pooling and a
    linear head. roberta: RobertaForSequenceClassification with one logit and MSE (ICC §4.3; formulas.md §1.8).
    The last three are trained with early stopping on a tenth of the captions, as `fit` says, else as `FIT_DEFAULTS` of
    the kind. Its backbone is what minilm_finetuned starts from (None: embedded:minilm), and roberta (None builds
    128 wide × 2 layers on the shipped tokenizer). Output is never clipped. Same input and seed, same weights.
    Raises ValueError for unequal lengths, fewer than 20 captions, a target that is not finite, or constant
    targets.
    """
    goals = np.asarray(targets, dtype=np.float64)  # (N,)
    _check(captions, goals)
    if kind not in get_args(StudentKind):
        raise ValueError(f"student kind must be one of {', '.join(get_args(StudentKind))}, got {kind!r}")
    embeddings, encoder = np.empty(0), None
    if kind in EMBEDDING_KINDS:
        if sentence_encoder is None:
            raise ValueError(f"kind {kind} needs sentence_encoder=load_engine('sentence_encoder', profile)")
        embeddings, encoder = sentence_encoder.embed_sentences(list(captions)), sentence_encoder.identity
    out_dir.mkdir(parents=True, exist_ok=True)
    if kind == "minilm_ridge":
        fitted = _train_ridge(embeddings, goals, out_dir, seed)
    else:
        settings = {**FIT_DEFAULTS[kind], **content_of(fit or StudentFit())}
        backbone = settings.pop("backbone", None)
        if kind == "roberta" and backbone is None and (fit is None or fit.learning_rate is None):
            settings["learning_rate"] = NEW_ROBERTA_RATE
        chosen = networks.FitSettings(seed=seed, device=device, **settings)
        if kind == "roberta":
            fitted = networks.train_roberta(captions, goals, out_dir, chosen, backbone)
        elif kind == "minilm_finetuned":
            fitted = networks.train_finetuned_minilm(captions, goals, out_dir, chosen, backbone or "embedded:minilm")
        else:
            fitted = networks.train_mlp(embeddings, goals, out_dir, chosen)
    card = _card(kind, seed, goals, fitted, encoder)
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


def _train_ridge(embeddings: np.ndarray, goals: np.ndarray, out_dir: Path, seed: int) -> networks.Fitted:
    from safetensors.numpy import save_file
    from sklearn.linear_model import RidgeCV
    from sklearn.model_selection import KFold, cross_val_predict

    embeddings = embeddings.astype(np.float64)  # (N, D)
    # The penalty is chosen anew inside every fold, so the agreement below has seen no held-out target.
    folds = KFold(FOLDS, shuffle=True, random_state=seed)
    predicted = cross_val_predict(RidgeCV(alphas=RIDGE_PENALTIES), embeddings, goals, cv=folds)  # (N,)
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
    return networks.Fitted(predicted, np.arange(len(goals)), recipe, out_dir / "ridge.safetensors")


def _card(
    kind: str, seed: int, goals: np.ndarray, fitted: networks.Fitted, encoder: ModelIdentity | None
) -> StudentCard:
    from scipy.stats import pearsonr, spearmanr

    held_out = goals[fitted.held_out]
    return StudentCard(
        kind=kind,
        n=len(goals),
        seed=seed,
        recipe=fitted.recipe,
        cv_pearson=float(pearsonr(fitted.predicted, held_out).statistic),
        cv_spearman=float(spearmanr(fitted.predicted, held_out).statistic),
        target_mean=float(goals.mean()),
        target_sd=float(goals.std()),
        sentence_encoder=encoder.address if encoder else None,
        sentence_encoder_sha256=encoder.weights_sha256 if encoder else None,
        weights_sha256=file_sha256(fitted.weights),
    )

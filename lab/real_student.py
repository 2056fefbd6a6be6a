"""The student for real captions: `python -m lab.real_student --shared DIR --out DIR`.

Teachers on real text (formulas.md §12): the scene bank, and a semantic-bottleneck autoencoder over MiniLM embeddings.
300 LAION captions that people rated 0 to 3 (`icc/calibration_300.tsv`) calibrate them; a small head on MiniLM's fourth
layer then imitates the calibrated teachers on real texts: COCO captions, Conceptual Captions, raw alt-text, and the
words of MiniLM's vocabulary. Writes OUT/icc_student and OUT/sentence_bottleneck.

DIR of --shared holds data/captions and data/icc. No other ratings are read: neither the paper's benchmark nor the word
ratings, which only judge the result (`benchmarks/icc_student.py`).
"""

import argparse
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import torch
from safetensors.numpy import save_file
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import KFold
from tqdm import tqdm

from curation_assets.core.settings import Profile, load_profile
from curation_assets.engines import load_engine, resolve_address
from curation_assets.engines.networks import build_mlp
from curation_assets.engines.sentence_layers import load_layers
from curation_assets.numeric.agreement import agreement, agreement_difference, correlations
from curation_assets.numeric.fusion import FusionWeights, fit_logistic_fusion, fuse
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.text_tables import read_table
from curation_assets.training.students import StudentCard
from curation_assets.world.bank import vocabulary
from lab import manifest
from lab.common import Clock, Setup, record, replaced_folder

ENCODER = "embedded:minilm"
STUDENT_LAYER, SENTENCE_LAYER = 4, 6  # read by the student; the embedding itself
POOLING = ("mean",)  # of the student's layer
POOLING_SCALE = {"mean": 1.0, "max": 1.0}  # of each unit vector beside the others, in the ridge
COCO_CAPTIONS, CONCEPTUAL_CAPTIONS = 8_000, 10_000
BANK_K = 100
BOTTLENECK_WIDTH, BOTTLENECK_SCENES = 160, 8_000
RIDGE_PENALTIES = tuple(float(penalty) for penalty in np.logspace(-2, 3, 21))
TEACHER_SCALE = 0.1  # of the standardised teacher scores beside unit embeddings
LOGISTIC_SHARE = 0.25  # of the logistic fusion in the target; the rest is the ridge
WORD_WEIGHT = 0.5  # of a single word against a caption
WORD_MEAN, WORD_SPREAD = 0.45, 0.15  # place of the single words on the scale of the captions
HIDDEN, EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 128, 4, 512, 2e-3, 1e-2
RATING_MAX = 3
FOLDS, REPEATS, RESAMPLES = 10, 3, 2_000
TEACHERS = ("scene_bank", "sentence_bottleneck")
AGAINST_PUBLISHED = "student minus published student, paired, first repeat"


@dataclass(frozen=True)
class Texts:
    """N texts as the teachers and the student see them."""

    layer: np.ndarray  # (N, P · D) a unit vector of STUDENT_LAYER per pooling
    teachers: np.ndarray  # (N, 2) scene_bank, sentence_bottleneck

    def __getitem__(self, rows: np.ndarray) -> "Texts":
        return Texts(self.layer[rows], self.teachers[rows])

    def __len__(self) -> int:
        return len(self.layer)


def joined(*parts: Texts) -> Texts:
    """One after the other."""
    return Texts(np.concatenate([p.layer for p in parts]), np.concatenate([p.teachers for p in parts]))


# --- what is read


def training_captions(shared: Path) -> dict[str, list[str]]:
    """Captions by source. Only sources whose terms allow it; never Flickr8k."""
    folder = shared / "data" / "captions"
    coco = read_parquet(folder / "coco_val2017_captions.parquet")
    alt = read_parquet(folder / "alt_texts.parquet")
    is_conceptual = pl.col("source") == "cc3m_val"
    return {
        "coco": coco.sample(COCO_CAPTIONS, seed=0)["caption"].to_list(),
        "conceptual": alt.filter(is_conceptual).sample(CONCEPTUAL_CAPTIONS, seed=0)["text"].to_list(),
        "alt_text": alt.filter(~is_conceptual)["text"].to_list(),
    }


def calibration(shared: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """(300,) captions, their human ratings 0 to 3, and the published student's scores."""
    table = read_table(shared / "data" / "icc" / "calibration_300.tsv")
    numbers = table.select(pl.col("concreteness", "icc_score").cast(pl.Float64))
    return table["caption"].to_list(), numbers["concreteness"].to_numpy(), numbers["icc_score"].to_numpy()


def vocabulary_words() -> list[str]:
    """Whole English words among MiniLM's word pieces."""
    folder = resolve_address(ENCODER).folder
    assert folder is not None
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    return sorted({piece for piece in pieces if re.fullmatch(r"[a-z]{3,}", piece)})


# --- teachers


class Encoder:
    """Both layers of texts, kept in the work folder: (N, 2 · P, D) float16."""

    def __init__(self, work: Path) -> None:
        self.identity = load_engine("sentence_encoder", Profile("training", {"sentence_encoder": ENCODER})).identity
        layers = (STUDENT_LAYER, SENTENCE_LAYER)
        self.engine = load_layers(self.identity, resolve_address(ENCODER), layers, POOLING, 64, "cpu")
        self.work = work

    def __call__(self, name: str, texts: list[str]) -> np.ndarray:
        digest = lines_digest([*texts, self.identity.weights_sha256])
        path = self.work / f"layers_{name}_{'_'.join(POOLING)}_{digest}.npy"
        if not path.is_file():
            parts = [
                self.engine.embed_sentences(texts[start : start + 512])
                for start in tqdm(range(0, len(texts), 512), desc=f"embed {name}", mininterval=5)
            ]
            temporary = path.with_suffix(".tmp.npy")
            np.save(temporary, np.concatenate(parts).reshape(len(texts), 2 * len(POOLING), -1).astype(np.float16))
            temporary.replace(path)
        return np.load(path, allow_pickle=False).astype(np.float32)


def lines_digest(lines: list[str]) -> str:
    """Short sha256 over lines."""
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def bank_scores(embeddings: np.ndarray, bank: np.ndarray) -> np.ndarray:
    """(N, D), (M, D) → (N,) mean cosine with the BANK_K nearest: what the method scene_bank computes."""
    parts = []
    for start in range(0, len(embeddings), 512):
        cosines = embeddings[start : start + 512] @ bank.T
        parts.append(-np.partition(-cosines, BANK_K - 1, axis=1)[:, :BANK_K].mean(axis=1))
    return np.concatenate(parts).astype(np.float64)


def bottleneck_scores(embeddings: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """(N, D) → (N,) cosine with the reconstruction: what the method sentence_bottleneck computes."""
    mean, components = weights["mean"].astype(np.float64), weights["components"].astype(np.float64)
    x = embeddings.astype(np.float64)
    again = (x - mean) @ components.T @ components + mean
    return (x * again).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(again, axis=1)


# --- calibration: from teachers and ratings to a target in about [0, 1]


@dataclass(frozen=True)
class Calibrated:
    """Teachers calibrated on rated captions."""

    target: Callable[[Texts], np.ndarray]  # (N,) about [0, 1]
    fused: Callable[[Texts], np.ndarray]  # (N,) the logistic fusion alone, in [0, 1]
    weights: FusionWeights
    penalty: float


def calibrate(texts: Texts, ratings: np.ndarray) -> Calibrated:
    """Logistic fusion of the teachers (ICC §4.3), and a ridge on the layer and the teachers in which the four ratings
    weigh alike (captions with nothing to draw are rare: 30 of 300). The target mixes the two.
    """
    mean, sd = texts.teachers.mean(axis=0), texts.teachers.std(axis=0)
    scales = np.repeat([POOLING_SCALE[how] for how in POOLING], texts.layer.shape[1] // len(POOLING))

    def z(given: Texts) -> np.ndarray:
        return (given.teachers - mean) / sd

    def features(given: Texts) -> np.ndarray:
        return np.concatenate([given.layer * scales, TEACHER_SCALE * z(given)], axis=1)

    weights = fit_logistic_fusion(z(texts), ratings, names=TEACHERS)
    values, counts = np.unique(ratings, return_counts=True)
    sample_weight = len(ratings) / len(values) / counts[np.searchsorted(values, ratings)]
    ridge = RidgeCV(alphas=RIDGE_PENALTIES).fit(features(texts), ratings / RATING_MAX, sample_weight=sample_weight)

    def fused(given: Texts) -> np.ndarray:
        return fuse(z(given), weights)

    def target(given: Texts) -> np.ndarray:
        return LOGISTIC_SHARE * fused(given) + (1 - LOGISTIC_SHARE) * ridge.predict(features(given))

    return Calibrated(target, fused, weights, float(ridge.alpha_))


def word_targets(words: Texts, things: Texts, ideas: Texts) -> np.ndarray:
    """(N,) targets of single words, which rated captions do not cover: a contrast of drawable against undrawable
    nouns of the bank's vocabulary, and the scene bank, half and half.
    """
    both = joined(things, ideas)
    is_thing = np.arange(len(both)) < len(things)
    contrast = LogisticRegression(C=10.0, max_iter=1000).fit(both.layer, is_thing).decision_function(words.layer)
    bank = words.teachers[:, 0]
    return WORD_MEAN + WORD_SPREAD * sum((x - x.mean()) / x.std() for x in (contrast, bank))


# --- the student


class Head:
    """One hidden layer on unit vectors: `engines.student.MlpStudent` with the weights of `tensors`."""

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.tensors = tensors

    def __call__(self, layer: np.ndarray) -> np.ndarray:
        t = {name: tensor.astype(np.float64) for name, tensor in self.tensors.items()}
        hidden = np.maximum(layer.astype(np.float64) @ t["hidden.weight"].T + t["hidden.bias"], 0.0)
        return hidden @ t["out.weight"] + t["out.bias"][0]


def distil(layer: np.ndarray, targets: np.ndarray, weights: np.ndarray, seed: int, label: str | None = None) -> Head:
    """Weighted MSE on (N, D), (N,), (N,). Input and target scales are folded into the weights, kept as float16."""
    blocks = layer.std(axis=0).reshape(len(POOLING), -1).mean(axis=1)  # (P,): one spread per pooling
    centre, spread = layer.mean(axis=0), np.repeat(blocks, layer.shape[1] // len(POOLING))
    level, sd = float(targets.mean()), float(targets.std())
    x = torch.from_numpy(((layer - centre) / spread).astype(np.float32))
    y, w = torch.tensor((targets - level) / sd, dtype=torch.float32), torch.tensor(weights, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = build_mlp((layer.shape[1], HIDDEN, 1))
        hidden, out = cast(torch.nn.Linear, net[0]), cast(torch.nn.Linear, net[-1])
        steps = EPOCHS * (len(x) // BATCH)
        optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1)
        rows = torch.cat([torch.randperm(len(x))[: len(x) // BATCH * BATCH] for _ in range(EPOCHS)]).view(steps, BATCH)
        for batch in tqdm(rows, desc=label, mininterval=5, disable=label is None):
            loss = (w[batch] * (net(x[batch])[:, 0] - y[batch]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        inner = hidden.weight.double().numpy() / spread
        tensors = {
            "hidden.weight": inner,
            "hidden.bias": hidden.bias.double().numpy() - inner @ centre,
            "out.weight": out.weight[0].double().numpy() * sd,
            "out.bias": out.bias.double().numpy() * sd + level,
        }
    return Head({name: np.ascontiguousarray(tensor, dtype=np.float16) for name, tensor in tensors.items()})


# --- the whole


def run(setup: Setup, shared: Path) -> None:
    """Teachers, cross-validation, the final student, both folders, the note and the manifest."""
    clock = Clock()
    encoder = Encoder(setup.work)
    captions = training_captions(shared)
    rated, ratings, published = calibration(shared)
    print({name: len(texts) for name, texts in captions.items()}, len(rated), "rated")

    bank_engine: Any = load_engine("scene_bank", load_profile("embedded"))
    bank = bank_engine.embeddings()  # (M, D)
    layers = {name: encoder(name, texts) for name, texts in captions.items()}
    weights = fit_bottleneck(layers["coco"][:, len(POOLING)], bank)

    def seen(encoded: np.ndarray) -> Texts:
        sentences = unit(encoded[:, len(POOLING)])  # the mean of the last layer
        scores = [bank_scores(sentences, bank), bottleneck_scores(sentences, weights)]
        inputs = [unit(encoded[:, i]) for i in range(len(POOLING))]
        return Texts(np.concatenate(inputs, axis=1), np.stack(scores, axis=1))

    corpus = joined(*(seen(encoded) for encoded in layers.values()))
    words = seen(encoder("words", vocabulary_words()))
    things = seen(encoder("things", [*(n for group in vocabulary.THINGS.values() for n in group),
                                     *vocabulary.ANIMALS, *vocabulary.PEOPLE]))  # fmt: skip
    ideas = seen(encoder("ideas", list(vocabulary.ABSTRACT)))
    labelled = seen(encoder("rated", rated))
    of_words = word_targets(words, things, ideas)
    inputs = np.concatenate([corpus.layer, words.layer])
    weight = np.concatenate([np.ones(len(corpus)), np.full(len(words), WORD_WEIGHT)])

    def student_of(calibrated: Calibrated, label: str | None = None) -> Head:
        targets = np.concatenate([calibrated.target(corpus), of_words])
        return distil(inputs, targets, weight, setup.seed, label)

    measured = cross_validate(labelled, ratings, student_of)
    single = {name: labelled.teachers[:, i] for i, name in enumerate(TEACHERS)}
    quality = {
        **{name: described(values[None], ratings) for name, values in single.items()},
        **{name: described(values, ratings) for name, values in measured.items()},
        "published student": described(published[None], ratings),
        AGAINST_PUBLISHED: difference(measured["student"][0], published, ratings),
    }
    for name, facts in quality.items():
        print(f"{name:22s}", {k: facts[k] for k in ("pearson", "spearman", "kendall")}, facts["intervals"])
    columns = {name: values[0] for name, values in measured.items()} | {"published": published, "rating": ratings}
    pl.DataFrame({"caption": rated, **columns}).write_parquet(setup.work / "out_of_fold.parquet")  # for curate agree

    final = calibrate(labelled, ratings)
    head = student_of(final, "distil")
    targets = final.target(corpus)
    recipe = {
        "texts": {name: len(texts) for name, texts in captions.items()} | {"words": len(words)},
        "calibration_sha256": file_sha256(shared / "data/icc/calibration_300.tsv"),
        "bank": {"address": "bank:embedded", "scenes": len(bank), "k": BANK_K},
        "bottleneck_width": BOTTLENECK_WIDTH,
        "fusion": {
            "names": final.weights.names,
            "weights": final.weights.weights,
            "intercept": final.weights.intercept,
        },
        "ridge_penalty": final.penalty,
        "logistic_share": LOGISTIC_SHARE,
        "word_weight": WORD_WEIGHT,
        "hidden": HIDDEN,
        "epochs": EPOCHS,
        "batch_size": BATCH,
        "learning_rate": LEARNING_RATE,
        "weight_decay": WEIGHT_DECAY,
        "agreement": f"{FOLDS}-fold cross-validation of calibration and distillation, {REPEATS} repeats",
        "published_student_on_the_same_captions": quality["published student"],
    }
    with replaced_folder(setup.out / "icc_student") as folder:
        save_file(head.tensors, folder / "mlp.safetensors")
        card = StudentCard(
            kind="minilm_mlp",
            n=len(inputs),
            seed=setup.seed,
            recipe=recipe,
            cv_pearson=quality["student"]["pearson"],
            cv_spearman=quality["student"]["spearman"],
            target_mean=float(targets.mean()),
            target_sd=float(targets.std()),
            sentence_encoder=ENCODER,
            sentence_encoder_sha256=encoder.identity.weights_sha256,
            weights_sha256=file_sha256(folder / "mlp.safetensors"),
        )
        write_json(
            folder / "card.json",
            {**asdict(card), "layers": [STUDENT_LAYER], "pooling": list(POOLING), "agreement": quality},
        )
    with replaced_folder(setup.out / "sentence_bottleneck") as folder:
        save_file(weights, folder / "bottleneck.safetensors")
        facts = {
            "kind": "linear bottleneck (PCA) over sentence embeddings",
            "layers": [SENTENCE_LAYER],
            "width": BOTTLENECK_WIDTH,
            "fitted_on": {"coco": COCO_CAPTIONS, "bank:embedded": BOTTLENECK_SCENES},
            "agreement": quality["sentence_bottleneck"],
            "sentence_encoder": ENCODER,
            "sentence_encoder_sha256": encoder.identity.weights_sha256,
            "weights_sha256": file_sha256(folder / "bottleneck.safetensors"),
        }
        write_json(folder / "card.json", facts)
    record(setup, "real_student", {**recipe, "seed": setup.seed, "cpu_seconds": clock.seconds()}, quality)
    manifest.run(setup)


def fit_bottleneck(coco: np.ndarray, bank: np.ndarray) -> dict[str, np.ndarray]:
    """mean (D,) and components (BOTTLENECK_WIDTH, D), float16, of COCO captions and scenes of the bank."""
    chosen = np.random.default_rng(0).permutation(len(bank))[:BOTTLENECK_SCENES]
    fitted = PCA(BOTTLENECK_WIDTH, svd_solver="full").fit(np.concatenate([coco, bank[np.sort(chosen)]]))
    # contiguous: safetensors writes the buffer as it lies in memory
    arrays = {"mean": fitted.mean_, "components": fitted.components_}
    return {name: np.ascontiguousarray(array, dtype=np.float16) for name, array in arrays.items()}


def cross_validate(
    labelled: Texts, ratings: np.ndarray, student_of: Callable[[Calibrated], Head]
) -> dict[str, np.ndarray]:
    """Out-of-fold values (REPEATS, N) of the logistic fusion, the full target, and a student distilled from it."""
    out_of_fold = {name: np.full((REPEATS, len(ratings)), np.nan) for name in ("fused", "target", "student")}
    with tqdm(total=REPEATS * FOLDS, desc="cross-validation", mininterval=5) as bar:
        for repeat in range(REPEATS):
            for train, test in KFold(FOLDS, shuffle=True, random_state=repeat).split(ratings):
                calibrated = calibrate(labelled[train], ratings[train])
                out_of_fold["fused"][repeat, test] = calibrated.fused(labelled[test])
                out_of_fold["target"][repeat, test] = calibrated.target(labelled[test])
                out_of_fold["student"][repeat, test] = student_of(calibrated)(labelled[test].layer)
                bar.update()
    return out_of_fold


def described(values: np.ndarray, ratings: np.ndarray) -> dict[str, Any]:
    """Agreement of (R, N) values: means over the repeats, bootstrap intervals (95 %) of the first repeat."""
    points = np.array([correlations(row, ratings) for row in values]).mean(axis=0)
    spread = agreement(values[0], ratings, np.random.default_rng(0), resamples=RESAMPLES)
    return {
        **{name: round(float(x), 4) for name, x in zip(("pearson", "spearman", "kendall"), points, strict=True)},
        "n": len(ratings),
        "intervals": {name: [round(low, 3), round(high, 3)] for name, (low, high) in spread.intervals.items()},
    }


def difference(values: np.ndarray, others: np.ndarray, ratings: np.ndarray) -> dict[str, Any]:
    """Agreement of (N,) values minus that of others, with paired bootstrap intervals (95 %)."""
    compared = agreement_difference(values, others, ratings, np.random.default_rng(0), resamples=RESAMPLES)
    return {
        **{name: round(getattr(compared, name), 4) for name in compared.intervals},
        "n": compared.n,
        "intervals": {name: [round(low, 3), round(high, 3)] for name, (low, high) in compared.intervals.items()},
    }


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows at unit length."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Sorted, indented."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.real_student", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, required=True, help="folder that holds data/captions and data/icc")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--work", type=Path, help="folder for intermediate files (default OUT/.work)")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    setup = Setup(
        arguments.out, arguments.work or arguments.out / ".work", threads=arguments.threads, seed=arguments.seed
    )
    run(setup, arguments.shared)


if __name__ == "__main__":
    main()

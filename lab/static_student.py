"""The static student: `python -m lab.static_student --captions FILE[:COLUMN[:GROUP]] … --out DIR`.

Distils a student on sentence embeddings (--student) into a net without a transformer (engines/static_student.py): the
net imitates the teacher's value and, on the way, the embedding that the teacher reads. Word vectors begin as the
teacher's encoder sees each word piece alone. A tenth of the groups (images, or hosts of URLs) sets the margin of the
cascade, another tenth judges; captions of these are not trained on. Writes OUT/icc_student_static.
"""

import argparse
import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import polars as pl
import torch
from safetensors.torch import save_file
from tqdm import tqdm

from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.engines.batches import TOKENS_AT_ONCE, batches_of_equal_length
from curation_assets.engines.sentence_layers import LayerEncoder
from curation_assets.engines.static_student import WEIGHTS, StaticNet, read_net
from curation_assets.engines.student import MlpStudent
from curation_assets.numeric.agreement import correlations
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.text_tables import read_rows
from curation_assets.training.students import StudentCard
from lab import manifest
from lab.common import Clock, Setup, record, replaced_folder
from lab.real_student import lines_digest, write_json

NAME, TEACHER, ENCODER = "icc_student_static", "embedded:icc_student", "embedded:minilm"
WIDTH, CHANNELS, HIDDEN = 64, 256, 256
EPOCHS, BATCH, DROPOUT = 10, 192, 0.1
LEARNING_RATE, VECTOR_LEARNING_RATE, WEIGHT_DECAY = 2e-3, 3e-3, 1e-2
EMBEDDING_SHARE = 0.5  # of the teacher's embedding in the loss, beside its value
MARGIN_LEVEL = 0.995  # of captions that reach a cut, at least this share is not skipped
TENTHS = {"margin": 0, "judge": 1}  # all others train


@dataclass(frozen=True)
class Captions:
    """N captions with what the teacher makes of them."""

    text: list[str]
    file: np.ndarray  # (N,) which file it came from
    tenth: np.ndarray  # (N,) 0 to 9, the same for a group
    embedding: np.ndarray  # (N, D) float32
    value: np.ndarray  # (N,)
    tokens: list[list[int]]


def read_captions(sources: list[str]) -> pl.DataFrame:
    """text, file, tenth of every caption that is not blank; a repeated one counts once."""
    parts = []
    for source in sources:
        name, _, rest = source.partition(":")
        column, _, group = rest.partition(":")
        table, column = read_rows(Path(name)), column or "caption"
        absent = {column, group or column} - set(table.columns)
        if absent:
            raise ValueError(f"{name}: expected the columns {sorted(absent)}, got {table.columns}")
        chosen = pl.DataFrame(
            {
                "text": table[column].cast(pl.String),
                "file": [Path(name).stem] * table.height,
                "tenth": [_tenth(str(cell)) for cell in table[group or column].to_list()],
            }
        )
        parts.append(chosen.filter(pl.col("text").str.strip_chars() != ""))
    return pl.concat(parts).unique("text", maintain_order=True)


def _tenth(group: str) -> int:
    """0 to 9 by the hash of a group; of a URL its host counts."""
    name = urlsplit(group).netloc or group
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % 10


def taught(table: pl.DataFrame, teacher: MlpStudent, work: Path) -> Captions:
    """The captions with embeddings and values of the teacher; embeddings are kept in the work folder."""
    encoder = cast(LayerEncoder, teacher.sentence_encoder)
    texts = table["text"].to_list()
    path = work / f"embeddings_{lines_digest([*texts, teacher.identity.weights_sha256])}.npy"
    if not path.is_file():
        steps = tqdm(range(0, len(texts), 4096), desc="teacher", mininterval=5)
        parts = [encoder.embed_sentences(texts[start : start + 4096]) for start in steps]
        temporary = path.with_suffix(".tmp.npy")
        np.save(temporary, np.concatenate(parts).astype(np.float16))
        temporary.replace(path)
    embeddings = np.load(path, allow_pickle=False).astype(np.float32)
    tokens = encoder.model.token_ids(texts, 128)
    return Captions(
        texts,
        table["file"].to_numpy(),
        table["tenth"].to_numpy(),
        embeddings,
        teacher.score_embeddings(embeddings),
        tokens,
    )


@torch.inference_mode()
def piece_vectors(encoder: LayerEncoder) -> np.ndarray:
    """(V, WIDTH): each word piece alone, half from the layer that the teacher reads, half from the encoder's own
    table, by principal components.
    """
    model = encoder.model
    first, last = model.token_ids([""], 2)[0]
    table = model.weights["embeddings.word_embeddings.weight"]
    ids = torch.stack([torch.tensor([first, piece, last]) for piece in range(len(table))])  # (V, 3)
    layer = torch.cat([model.hidden_states(part)[encoder.layers[0]].mean(dim=1) for part in ids.split(512)])  # (V, D)
    return np.concatenate([_principal(layer.numpy()), _principal(table.numpy())], axis=1).astype(np.float32)


def _principal(vectors: np.ndarray) -> np.ndarray:
    """(V, D) → (V, WIDTH / 2), with a standard deviation of a half."""
    centred = vectors - vectors.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)  # ascending
    chosen = centred @ axes[:, ::-1][:, : WIDTH // 2]
    return 0.5 * chosen / chosen.std()


def train(captions: Captions, rows: np.ndarray, vectors: np.ndarray, seed: int, epochs: int) -> StaticNet:
    """Squared error of value and embedding, both standardised, over `rows` of the captions."""
    values, embeddings = captions.value, captions.embedding
    level, sd = float(values[rows].mean()), float(values[rows].std())
    target = torch.tensor((values - level) / sd, dtype=torch.float32)
    shown = torch.from_numpy((embeddings - embeddings[rows].mean(axis=0)) / embeddings[rows].std())
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = StaticNet(len(vectors), WIDTH, CHANNELS, HIDDEN, is_sparse=True)
        net.vectors.weight.data.copy_(torch.from_numpy(vectors))
        to_embedding = torch.nn.Linear(HIDDEN, embeddings.shape[1])
        dense = [*(p for name, p in net.named_parameters() if name != "vectors.weight"), *to_embedding.parameters()]
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(dense, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY),
            torch.optim.SparseAdam(list(net.vectors.parameters()), lr=VECTOR_LEARNING_RATE),
        ]
        plans = [_batches(captions.tokens, rows, rng) for _ in range(epochs)]
        steps = sum(map(len, plans))
        schedules = [
            torch.optim.lr_scheduler.OneCycleLR(
                optimizer, rate, total_steps=steps + 1, pct_start=0.1, cycle_momentum=False
            )
            for optimizer, rate in zip(optimizers, (LEARNING_RATE, VECTOR_LEARNING_RATE), strict=True)
        ]
        net.train()
        for batch in tqdm([batch for plan in plans for batch in plan], desc="distil", mininterval=5):
            features = net.features(torch.tensor([captions.tokens[i] for i in batch]), DROPOUT)
            of_value = (net.out(features)[:, 0] - target[batch]) ** 2
            of_embedding = ((to_embedding(features) - shown[batch]) ** 2).mean(dim=1)
            # batches of rare lengths are small: a caption weighs the same in all
            loss = (of_value + EMBEDDING_SHARE * of_embedding).sum() / BATCH
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                schedule.step()
    with torch.no_grad():  # the value in its own unit
        net.out.weight *= sd
        net.out.bias.mul_(sd).add_(level)
    return net.eval()


def _batches(tokens: list[list[int]], rows: np.ndarray, rng: np.random.Generator) -> list[list[int]]:
    """Positions of captions, shuffled, in batches of one length, shuffled."""
    mixed = rng.permutation(rows)
    batches = list(batches_of_equal_length([len(tokens[i]) for i in mixed], BATCH, 1 << 30))
    return [mixed[batches[i]].tolist() for i in rng.permutation(len(batches))]


@torch.inference_mode()
def predict(net: StaticNet, tokens: list[list[int]]) -> np.ndarray:
    """(N,) values of tokenised captions."""
    values = np.zeros(len(tokens))
    for batch in batches_of_equal_length([len(ids) for ids in tokens], 1024, TOKENS_AT_ONCE["cuda"]):
        values[batch] = net(torch.tensor([tokens[i] for i in batch])).double().numpy()
    return values


def margin_of(exact: np.ndarray, fast: np.ndarray, level: float) -> float:
    """What `exact` exceeds `fast` by in at most a share 1 − level of new captions of the same kind.

    The split conformal quantile (Vovk et al. 2005; Lei et al. 2018): element ⌈(n + 1) level⌉ of the sorted errors.
    Raises ValueError for fewer captions than the level needs.
    """
    return float(np.sort(exact - fast)[_margin_position(len(exact), level) - 1])


def _margin_position(count: int, level: float) -> int:
    position = int(np.ceil((count + 1) * level))
    if position > count:
        raise ValueError(
            f"a margin at level {level} needs at least {round(level / (1 - level))} held-out captions of every file, "
            f"got {count}; give larger files"
        )
    return position


def judged(exact: np.ndarray, fast: np.ndarray, margin: float, share: float = 0.3) -> dict[str, float]:
    """Agreement of (N,) values, and what a cascade does that is to find the best `share`."""
    pearson, spearman, kendall = correlations(fast, exact)
    cut = float(np.quantile(exact, 1 - share))
    reaches, skipped = exact >= cut, fast < cut - margin
    figures = {
        "pearson": pearson,
        "spearman": spearman,
        "kendall": kendall,
        "cut": cut,
        "skipped": float(skipped.mean()),
        "lost_of_those_that_reach_it": float(skipped[reaches].mean()),
    }
    return {"n": len(exact), **{name: round(float(value), 4) for name, value in figures.items()}}


def run(setup: Setup, sources: list[str], teacher_address: str, epochs: int) -> dict[str, Any]:
    """Teach, train, judge, write the folder, the note and the manifest. Returns the figures by file."""
    clock = Clock()
    teacher: Any = load_engine("student", Profile("training", {"student": teacher_address}, device="cpu"))
    if not isinstance(teacher, MlpStudent) or not isinstance(teacher.sentence_encoder, LayerEncoder):
        raise ValueError(f"expected a student on a layer of {ENCODER} as teacher, got {teacher_address}")
    table = read_captions(sources)
    for (_,), of_file in table.group_by("file"):  # before the teacher reads for hours
        _margin_position(int((of_file["tenth"] == TENTHS["margin"]).sum()), MARGIN_LEVEL)
    captions = taught(table, teacher, setup.work)
    rows = np.flatnonzero(~np.isin(captions.tenth, list(TENTHS.values())))
    print(f"{len(rows)} of {len(captions.text)} captions train", flush=True)
    net = train(captions, rows, piece_vectors(teacher.sentence_encoder), setup.seed, epochs)
    with replaced_folder(setup.out / NAME) as folder:
        save_file({name: tensor.half().contiguous() for name, tensor in net.state_dict().items()}, folder / WEIGHTS)
        fast = predict(read_net(folder), captions.tokens)  # as it is stored
        margins = {
            str(name): margin_of(captions.value[part], fast[part], MARGIN_LEVEL)
            for name in dict.fromkeys(captions.file)
            for part in [np.flatnonzero((captions.file == name) & (captions.tenth == TENTHS["margin"]))]
        }
        margin = max(margins.values())
        is_judge = captions.tenth == TENTHS["judge"]
        groups = {"all": is_judge} | {str(n): is_judge & (captions.file == n) for n in dict.fromkeys(captions.file)}
        quality = {name: judged(captions.value[which], fast[which], margin) for name, which in groups.items()}
        for name, figures in quality.items():
            print(name, figures)
        recipe = {
            "teacher": teacher_address,
            "teacher_sha256": teacher.identity.weights_sha256,
            "files": {name: int((captions.file == name).sum()) for name in margins},
            "width": WIDTH,
            "channels": CHANNELS,
            "hidden": HIDDEN,
            "epochs": epochs,
            "batch_size": BATCH,
            "dropout": DROPOUT,
            "learning_rate": LEARNING_RATE,
            "vector_learning_rate": VECTOR_LEARNING_RATE,
            "weight_decay": WEIGHT_DECAY,
            "embedding_share": EMBEDDING_SHARE,
            "agreement": "with the teacher, on a tenth of the groups (images, hosts)",
        }
        card = StudentCard(
            kind="static",
            n=len(rows),
            seed=setup.seed,
            recipe=recipe,
            cv_pearson=quality["all"]["pearson"],
            cv_spearman=quality["all"]["spearman"],
            target_mean=float(captions.value[rows].mean()),
            target_sd=float(captions.value[rows].std()),
            sentence_encoder=ENCODER,
            sentence_encoder_sha256=teacher.sentence_encoder.identity.weights_sha256,
            weights_sha256=file_sha256(folder / WEIGHTS),
        )
        facts = {"level": MARGIN_LEVEL, "margin": margin, "by_file": margins}
        write_json(folder / "card.json", {**asdict(card), "margin": facts, "agreement": quality})
    record(setup, "static_student", {**recipe, "seed": setup.seed, "cpu_seconds": clock.seconds()}, quality)
    return quality


def main() -> None:
    """Parse, train, write; the manifest where OUT has one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--captions", action="append", required=True, help="txt, tsv, csv or parquet (repeat): FILE[:COLUMN[:GROUP]]"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="default OUT/.work")
    parser.add_argument("--student", default=TEACHER, help="the teacher: an address")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--seed", type=int, default=1234)
    given = parser.parse_args()
    setup = Setup(given.out, given.work or given.out / ".work", seed=given.seed)
    run(setup, given.captions, given.student, given.epochs)
    if (given.out / "manifest.json").is_file():
        manifest.run(setup)


if __name__ == "__main__":
    main()

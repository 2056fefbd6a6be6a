"""Trains the embedded tagger and parser: `python -m lab.parser --treebank DIR --out DIR`.

spaCy's own trainer on a Universal Dependencies treebank of English (`*-{train,dev,test}.conllu[.gz]`). Captions differ
from a treebank in two ways that matter: many are lower-case and few end in a full stop. So part of the training
sentences lose their capitals (spaCy's lower_case augmenter), part their final punctuation.
"""

import argparse
import gzip
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import spacy
from spacy.cli.init_config import fill_config
from spacy.cli.train import train
from spacy.tokens import Doc, DocBin
from spacy.training.converters import conllu_to_docs

from lab import manifest
from lab.common import Setup

SPLITS = ("train", "dev", "test")
GROUP_SHARES = (0.6, 0.25, 0.15)  # share of texts of 1, 2 and 3 sentences
EPOCHS = 10
SHARE_WITHOUT_FINAL_PUNCTUATION = 0.4

CONFIG = """
[paths]
train = null
dev = null

[system]
seed = 0

[nlp]
lang = "en"
pipeline = ["tok2vec", "tagger", "morphologizer", "parser"]
batch_size = 256

[components]

[components.tok2vec]
factory = "tok2vec"

[components.tok2vec.model]
@architectures = "spacy.HashEmbedCNN.v2"
pretrained_vectors = null
width = 96
depth = 4
embed_size = 3000
window_size = 1
maxout_pieces = 3
subword_features = true

[components.tagger]
factory = "tagger"

[components.tagger.model]
@architectures = "spacy.Tagger.v2"
nO = null

[components.tagger.model.tok2vec]
@architectures = "spacy.Tok2VecListener.v1"
width = ${components.tok2vec.model.width}

[components.morphologizer]
factory = "morphologizer"

[components.morphologizer.model]
@architectures = "spacy.Tagger.v2"
nO = null

[components.morphologizer.model.tok2vec]
@architectures = "spacy.Tok2VecListener.v1"
width = ${components.tok2vec.model.width}

[components.parser]
factory = "parser"

[components.parser.model]
@architectures = "spacy.TransitionBasedParser.v2"
state_type = "parser"
extra_state_tokens = false
hidden_width = 64
maxout_pieces = 2
use_upper = true
nO = null

[components.parser.model.tok2vec]
@architectures = "spacy.Tok2VecListener.v1"
width = ${components.tok2vec.model.width}

[corpora]

[corpora.train]
@readers = "spacy.Corpus.v1"
path = ${paths.train}

[corpora.train.augmenter]
@augmenters = "spacy.lower_case.v1"
level = 0.35

[corpora.dev]
@readers = "spacy.Corpus.v1"
path = ${paths.dev}

[training]
train_corpus = "corpora.train"
dev_corpus = "corpora.dev"
seed = ${system.seed}
gpu_allocator = null
dropout = 0.1
accumulate_gradient = 1
patience = 0
max_epochs = 10
max_steps = 0
eval_frequency = 300

[training.batcher]
@batchers = "spacy.batch_by_words.v1"
discard_oversize = false
tolerance = 0.2

[training.batcher.size]
@schedules = "compounding.v1"
start = 800
stop = 2400
compound = 1.002

[training.optimizer]
@optimizers = "Adam.v1"
learn_rate = 0.002

[training.score_weights]
tag_acc = 0.25
pos_acc = 0.25
dep_uas = 0.2
dep_las = 0.3
"""


def read_treebank(folder: Path, split: str) -> list[Doc]:
    """One Doc per sentence of `*-<split>.conllu` or `.conllu.gz`, morphological features left out.

    Raises FileNotFoundError unless exactly one file of the folder is that split.
    """
    paths = [path for path in sorted(folder.iterdir()) if f"-{split}.conllu" in path.name]
    if len(paths) != 1:
        raise FileNotFoundError(f"{folder}: expected one file *-{split}.conllu or *-{split}.conllu.gz, got {paths}")
    data = paths[0].read_bytes()
    text = (gzip.decompress(data) if paths[0].suffix == ".gz" else data).decode("utf-8")
    docs = list(conllu_to_docs(text, n_sents=1, no_print=True))
    for doc in docs:
        for token in doc:
            token.set_morph("")
    return docs


def without_final_punctuation(doc: Doc) -> Doc:
    """The sentence without its last token, where that is punctuation which nothing depends on."""
    last = doc[-1]
    if (
        len(doc) < 2
        or last.pos_ != "PUNCT"
        or last.head.i == last.i
        or any(token.head.i == last.i for token in doc[:-1])
    ):
        return doc
    kept = doc[:-1]
    return Doc(
        doc.vocab,
        words=[token.text for token in kept],
        spaces=[bool(token.whitespace_) for token in kept],
        tags=[token.tag_ for token in kept],
        pos=[token.pos_ for token in kept],
        heads=[token.head.i for token in kept],
        deps=[token.dep_ for token in kept],
    )


def as_captions(docs: list[Doc], rng: np.random.Generator) -> Iterator[Doc]:
    """Texts of one to three sentences in treebank order, a share of the sentences without final punctuation."""
    start = 0
    while start < len(docs):
        size = int(rng.choice(len(GROUP_SHARES), p=GROUP_SHARES)) + 1
        group = [
            without_final_punctuation(doc) if rng.random() < SHARE_WITHOUT_FINAL_PUNCTUATION else doc
            for doc in docs[start : start + size]
        ]
        yield Doc.from_docs(group, ensure_whitespace=True) if len(group) > 1 else group[0]
        start += size


def evaluate(folder: Path, gold: list[Doc]) -> dict[str, float]:
    """Accuracy on raw text (the pipeline splits tokens itself): TAG, POS, UAS, LAS, in [0, 1]."""
    nlp = spacy.load(folder)
    examples = [spacy.training.Example(nlp.make_doc(doc.text), doc) for doc in gold]
    scores = nlp.evaluate(examples)
    return {name: round(float(scores[name]), 4) for name in ("token_acc", "tag_acc", "pos_acc", "dep_uas", "dep_las")}


def run(setup: Setup, treebank: Path) -> dict[str, float]:
    """Trains, copies the best model to OUT/parser, notes recipe and test accuracy, and renews the manifest."""
    started = time.process_time()
    rng = setup.start("parser")
    data = {split: read_treebank(treebank, split) for split in SPLITS}
    corpora = {"train": list(as_captions(data["train"], rng)), "dev": data["dev"]}
    for split, docs in corpora.items():
        DocBin(docs=docs).to_disk(setup.work / f"{split}.spacy")
    base, config = setup.work / "base.cfg", setup.work / "config.cfg"
    base.write_text(CONFIG)
    fill_config(config, base, silent=True)
    epochs = max(1, round(EPOCHS * setup.scale))
    train(
        config,
        setup.work / "model",
        overrides={
            "paths.train": str(setup.work / "train.spacy"),
            "paths.dev": str(setup.work / "dev.spacy"),
            "training.max_epochs": epochs,
            "system.seed": setup.seed,
        },
    )
    folder = setup.out / "parser"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(setup.work / "model" / "model-best", folder)
    _forget_paths(folder)
    lowered = [_lowered(doc) for doc in data["test"]]
    accuracy = evaluate(folder, data["test"])
    note = {
        "recipe": {
            "treebank": "Universal Dependencies English EWT, CC BY-SA 4.0",
            "sentences": len(data["train"]),
            "epochs": epochs,
            "seed": setup.seed,
            "spacy": spacy.__version__,
            "cpu_seconds": round(time.process_time() - started, 1),
        },
        "test": accuracy,
        "test_lower_case": evaluate(folder, lowered),
    }
    (setup.work / "note_parser.json").write_text(json.dumps(note, indent=1))
    manifest.run(setup)
    print(json.dumps(note, indent=1))
    return accuracy


def _lowered(doc: Doc) -> Doc:
    return Doc(
        doc.vocab,
        words=[token.text.lower() for token in doc],
        spaces=[bool(token.whitespace_) for token in doc],
        tags=[token.tag_ for token in doc],
        pos=[token.pos_ for token in doc],
        heads=[token.head.i for token in doc],
        deps=[token.dep_ for token in doc],
    )


def _forget_paths(folder: Path) -> None:
    """The shipped config names no folder of the machine that trained it."""
    config = spacy.util.load_config(folder / "config.cfg")
    config["paths"].update({"train": None, "dev": None})
    config.to_disk(folder / "config.cfg")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m lab.parser", description=__doc__)
    parser.add_argument("--treebank", type=Path, required=True, help="folder with *-{train,dev,test}.conllu[.gz]")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights; writes OUT/parser")
    parser.add_argument("--work", type=Path, help="folder for intermediate files (default OUT/.work)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the epochs; .1 is a smoke run")
    parser.add_argument("--seed", type=int, default=1234)
    arguments = parser.parse_args()
    work = arguments.work or arguments.out / ".work"
    run(Setup(arguments.out, work, arguments.scale, threads=1, seed=arguments.seed), arguments.treebank)


if __name__ == "__main__":
    main()

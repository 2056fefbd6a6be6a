"""Trainers: what a training set is worth to a model trained on it. One file per trainer, named by its `TRAINER`.

A file here is all that a new one takes: its tables, its rows in the report and its budget follow. Model libraries are
imported inside functions, so that declaring tables loads none.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.numeric.metrics.retrieval import recalls_of_ranks, retrieval_ranks

#: Positions → RGB images, decoded when they are needed.
Load = Callable[[Sequence[int]], list[Image.Image]]


@dataclass(frozen=True)
class Examples:
    """Images with what is written about them. A sample listed m times is there m times."""

    captions: list[list[str]]  # (N,) one each in a training set, one or more in an evaluation set
    load: Load
    features: np.ndarray | None = None  # (N, T, D) frozen patch features, where the trainer reads them
    digest: str = ""  # of the images, so that no checkpoint of others is taken up

    def __len__(self) -> int:
        return len(self.captions)

    @property
    def texts(self) -> list[str]:
        """All captions, image by image."""
        return [caption for of_image in self.captions for caption in of_image]


@dataclass(frozen=True)
class Task:
    """One training: on what, measured on what, for how long."""

    training: Examples
    evaluation: Examples
    seed: int
    budget: Mapping[str, int]  # samples_seen, batch_size
    checkpoint: Path  # where the training saves itself, to be continued after a stop
    device: str
    write_tars: Callable[[Path], None]  # the training set as webdataset tars in a new folder
    progress: Callable[[int], None] | None = None  # called with the number of steps done

    @property
    def settings(self) -> dict[str, Any]:
        """Keyword arguments that all training functions take."""
        names = ("seed", "checkpoint", "device", "progress")
        return {name: getattr(self, name) for name in names} | {"samples_seen": self.budget["samples_seen"]}


@dataclass(frozen=True)
class Trainer:
    """A model that is trained on a training set under a fixed budget, and how it is measured."""

    name: str  # as its file; the tables are downstream/<name>_runs and downstream/<name>
    train: Callable[[Task], pl.DataFrame]  # what the model gave: a caption per evaluation image, or metrics
    gives: Literal["captions", "metrics"]  # columns caption (N rows, in order), or metric and value
    reads: Literal["features", "images"]
    budget: Mapping[str, int]  # default; the pool's option `downstream_budget` changes it
    shown_metrics: tuple[str, ...]  # those with a column of their own in the report, in its order
    measures: str  # in words: "recall@k both ways of a dual encoder"
    is_default: bool = True  # whether pools that name no trainers run it
    version: str = "1"  # bump when the numbers change


def metrics_frame(metrics: Mapping[str, float]) -> pl.DataFrame:
    """What a trainer that gives metrics returns. Columns: metric, value."""
    schema = {"metric": pl.String, "value": pl.Float64}
    return pl.DataFrame(list(metrics.items()), schema=schema, orient="row")


def recalls(images: np.ndarray, texts: np.ndarray, captions: Sequence[Sequence[str]]) -> dict[str, float]:
    """recall@1, 5 and 10 both ways. (I, D) unit vectors, (T, D) of all captions in the order of `captions`, I lists."""
    caption_image = np.repeat(np.arange(len(captions)), [len(of_image) for of_image in captions])
    return recalls_of_ranks(*retrieval_ranks(images, texts, caption_image))


@cache
def all_trainers() -> dict[str, Trainer]:
    """Every trainer of this package by name, sorted. Raises ValueError where file and trainer names differ."""
    trainers: dict[str, Trainer] = {}
    for module_info in pkgutil.iter_modules(__path__):
        trainer: Trainer = importlib.import_module(f"{__name__}.{module_info.name}").TRAINER
        if trainer.name != module_info.name:
            raise ValueError(f"trainers/{module_info.name}.py defines TRAINER named {trainer.name!r}; name both alike")
        trainers[trainer.name] = trainer
    return dict(sorted(trainers.items()))

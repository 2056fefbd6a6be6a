"""Trainers: what a subset is worth to a model trained on it. One file per trainer, found by its `TRAINER`.

A file here is all that a new one takes: the table `downstream/<name>`, its rows in the report and its budget follow.
Model libraries are imported inside the function, so that declaring tables loads none.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

#: Steps and batch sizes of the miniature captioner and dual encoder. Their results are stored under all four numbers.
MINIATURE_BUDGET = {"captioner_steps": 150, "captioner_batch": 48, "dual_encoder_steps": 100, "dual_encoder_batch": 96}


@dataclass(frozen=True)
class Task:
    """What a trainer is given: one subset, what to measure on, and how long to train."""

    features: np.ndarray  # (N, T, D) frozen vision features of the subset's images
    captions: list[str]  # (N,)
    evaluation: np.ndarray  # (M, T, D) features of held-out scenes
    references: list[list[str]]  # (M,) captions of each, at least one
    seed: int
    budget: Mapping[str, Any]


@dataclass(frozen=True)
class Trainer:
    """A small model that is trained on a subset under a fixed budget and measured on held-out scenes."""

    name: str  # as its file; the table is downstream/<name>
    train_and_measure: Callable[[Task], dict[str, float]]  # metrics; importable, since worker processes run it
    budget: Mapping[str, int]  # default of every setting; the pool's option `downstream_budget` changes them
    shown_metrics: tuple[str, ...]  # those with a picture in the report, in its order
    measures: str  # in words: "recall@k both ways of a dual encoder"
    version: str = "1"  # bump when the numbers change


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

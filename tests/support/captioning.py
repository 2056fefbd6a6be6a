"""The golden set of formulas.md §13.14, COCO's captions, and machines with and without Java."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pytest

from curation_assets.numeric.metrics.captioning import token_metrics, tokenise_caption
from tests.support.paths import shared

REFERENCES = [
    [
        "A red kite flies over the wet beach.",
        "Someone's kite is flying above a sandy beach",
        "the kite, bright red, hangs over the sea",
    ],
    ["Two mechanics repair a rusty tractor in a barn.", "A pair of mechanics is working on an old tractor"],
    [
        "A bowl of noodle soup (with an egg) on a table.",
        "Noodle soup with egg in a white bowl",
        "Hot soup - and chopsticks - on the table!",
    ],
    [
        "A tabby kitten sleeps inside a cardboard box.",
        "kitten curled up in a box",
        "A small kitten isn't awake yet; it's in a box.",
    ],
]
CANDIDATES = [
    "A red kite flying over a beach.",
    "two men fix a tractor",
    "A bowl of noodle soup with an egg on the table",
    "A cat sleeping in a cardboard box",
]
GOLDEN = {
    "bleu_1": 0.6822756275,
    "bleu_2": 0.5484383612,
    "bleu_3": 0.4473917996,
    "bleu_4": 0.3004281775,
    "meteor": 0.3034671777,
    "rouge_l": 0.6035783714,
    "cider": 1.6293662156,
}


def needs_java(test: Callable[..., None]) -> Callable[..., None]:
    """A test that starts Java; skipped where there is none."""
    return pytest.mark.infra(pytest.mark.skipif(shutil.which("java") is None, reason="needs Java on the PATH")(test))


def coco_captions() -> dict[int, list[str]]:
    """Image → its captions, of the 5,000 of COCO's val2017. Skips the test where the data is not at hand."""
    path = shared("captions/coco_val2017_captions.parquet")
    table = pl.read_parquet(path, columns=["image_id", "caption"])
    return dict(table.group_by("image_id", maintain_order=True).agg("caption").iter_rows())


def without_java(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder as PATH."""
    monkeypatch.setenv("PATH", str(folder))


def java_that(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH whose `java` is a shell script of its own, for what a real one does only on a broken machine."""
    path = folder / "java"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return path


def write_coco(folder: Path, references: list[list[str]], candidates: list[str]) -> tuple[Path, Path]:
    """(results, annotations) as COCO's evaluation reads them; image i has the id i + 1."""
    results = [{"image_id": i, "caption": caption} for i, caption in enumerate(candidates, start=1)]
    rows = [{"image_id": i, "caption": text} for i, texts in enumerate(references, start=1) for text in texts]
    images = [{"id": i, "file_name": f"{i:012d}.png"} for i in range(1, len(references) + 1)]
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "annotations.json").write_text(json.dumps({"images": images, "annotations": rows}))
    return folder / "results.json", folder / "annotations.json"


def captioning_metrics(references: Sequence[Sequence[str]], candidates: Sequence[str]) -> dict[str, float]:
    """`token_metrics` of plain captions, tokenised approximately."""
    tokenised = [[tokenise_caption(text) for text in texts] for texts in references]
    return token_metrics(tokenised, [tokenise_caption(text) for text in candidates])

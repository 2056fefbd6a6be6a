"""Kind `concept_coverage`: a greedy cover of concepts, and of bins of a signal, with falling returns (SDM-lite)."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from curation_assets.core.validation import Number, Switch, Whole, checked, setting
from curation_assets.numeric.concepts import Matches, concepts_of, nouns_of
from curation_assets.numeric.coverage import greedy_levels, level_of, levels_of_items
from curation_assets.numeric.identity import draw_keys
from curation_assets.selection.kinds import Kind, floats, missing_reason, scored
from curation_assets.stores.image_formats import IMAGE_SUFFIXES
from curation_assets.stores.images import ImageRejected, decode_image
from curation_assets.stores.text_tables import read_rows

BIN, ROWS = "\0bin ", "\0rows"  # begins the name of a bin among the items; the row of what was there


@checked("concept_coverage")
class KIND(Kind):
    """quality is the gain of a sample at its turn: any best share is a greedy choice (formulas.md §15.5).

    Raises ValueError for a folder of images as target without `objects`, and for weights that are not one per bin.
    """

    later: ClassVar[tuple[str, ...]] = ("target", "bin_weights")

    bins_by: str = setting(default="signals.clip_score", description="stage.table whose bins are filled from the top.")
    bins: Whole = setting(default=10, ge=1, description="Quantile bins of it.")
    concept_share: Number = setting(
        default=0.5, ge=0, le=1, description="λ: weight of concepts; 1 − λ is that of the bins."
    )
    target_power: Number = setting(
        default=0.5, ge=0, le=1, description="p_c is proportional to (captions with c)^power: 1 as the pool, 0 alike."
    )
    least: Whole = setting(default=5, ge=1, unit="samples", description="A concept of fewer is none.")
    objects: Switch = setting(default=False, description="Detected objects are concepts, besides nouns of the caption.")
    target: str | None = setting(
        default=None,
        description="What the set is for: a table with a column caption, or a folder of images (with objects: "
        "true); p_c is then by how many of these hold c, and other concepts are none.",
    )
    bin_weights: tuple[Number, ...] = setting(
        default=(), description="u_b of the bins, lowest first (0, 0.01, 0.99); their number is that of the bins."
    )

    def __post_init__(self) -> None:
        if self.bin_weights and (min(self.bin_weights) < 0 or not any(self.bin_weights)):
            raise ValueError(f"bin_weights must be 0 or more, one of them above, got {list(self.bin_weights)}")
        if self._target is not None and self._target.is_dir() and not self.objects:
            raise ValueError(
                f"target {self.target} is a folder of images, whose concepts are objects: set objects: true"
            )

    @property
    def _target(self) -> Path | None:
        return None if self.target is None else Path(self.target).expanduser()

    @property
    def files(self) -> tuple[Path, ...]:
        """The target: its texts, or each of its images. Raises ValueError where it holds none."""
        if self._target is None:
            return ()
        if not self._target.is_dir():
            return (self._target,)
        images = sorted(path for path in self._target.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
        if not images:
            raise ValueError(f"target {self.target} holds no images ({', '.join(IMAGE_SUFFIXES)})")
        return tuple(images)

    @property
    def signals(self) -> tuple[str, ...]:
        """What the bins are of."""
        return (self.bins_by,)

    @property
    def columns(self) -> tuple[str, ...]:
        """Captions, and objects where they count."""
        return ("caption", "detected_objects") if self.objects else ("caption",)

    @property
    def roles(self) -> tuple[str, ...]:
        """For the nouns, and the objects of target images."""
        is_folder = self._target is not None and self._target.is_dir()
        return ("wordnet", "object_detector") if is_folder else ("wordnet",)

    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """One row per concept or bin: weight, lower edge of a bin, and the gains at which its samples were taken."""
        nouns = nouns_of(engines["wordnet"].lemmas("n"))
        rows = pl.concat(list(shards)).unique("sample_id", keep="first").sort("sample_id")
        rows = rows.filter(pl.Series(np.isfinite(floats(rows, self.bins_by)))).drop_nulls("caption")
        if rows.is_empty():
            raise ValueError(f"no sample has a caption and a value of {self.bins_by}, so there is nothing to cover")
        found = self._found(rows, nouns)
        counted = Counter(name for names in found for name in names)
        aim = counted if self._target is None else self._concepts_of_target(nouns, engines)
        concepts = pl.DataFrame(
            [(name, aim[name]) for name in sorted(counted) if counted[name] >= self.least and aim[name]],
            schema={"item": pl.String, "count": pl.Int64},
            orient="row",
        )
        if concepts.is_empty() and self._target is not None:
            raise ValueError(f"no concept of target {self.target} is in {self.least} samples of the pool")
        powers = concepts["count"].to_numpy().astype(np.float64) ** self.target_power
        weights = self.concept_share * powers / max(powers.sum(), 1.0)
        values = floats(rows, self.bins_by)
        u = np.array(self.bin_weights or range(1, self.bins + 1), dtype=np.float64)  # the best bin counts most
        edges, first = np.unique(np.quantile(values, np.arange(len(u)) / len(u)), return_index=True)  # lower, ascending
        # of bins whose edges are one value the best one's weight counts
        worth = u[np.append(first[1:], len(u)) - 1] if self.bin_weights else u[: len(edges)]
        items = pl.DataFrame(
            {
                "item": [*concepts["item"], *(f"{BIN}{number}" for number in range(len(edges)))],
                "weight": np.concatenate([weights, (1 - self.concept_share) * worth / max(worth.sum(), 1e-300)]),
                "low_edge": [*[None] * concepts.height, *edges],
            },
            schema_overrides={"low_edge": pl.Float64},
        )
        matches = self._matches(found, values, items)
        level = greedy_levels(matches, items["weight"].to_numpy())
        levels, bounds = levels_of_items(matches, level, items.height)
        parts = [levels[start:end].tolist() for start, end in pairwise(bounds)]
        taken = pl.DataFrame(  # what was there: its level by a key that is hashed from the id, as a fit holds no sample
            {"item": [ROWS], "levels": [level.tolist()], "keys": [self._keys(rows["sample_id"]).tolist()]},
            schema={"item": pl.String, "levels": pl.List(pl.Float64), "keys": pl.List(pl.UInt64)},
        )
        return pl.concat(
            [items.with_columns(pl.Series("levels", parts, dtype=pl.List(pl.Float64))), taken], how="diagonal"
        )

    def _keys(self, ids: pl.Series) -> np.ndarray:
        return draw_keys(ids.to_list(), "concept_coverage")

    def _concepts_of_target(self, nouns: list[str], engines: Mapping[str, Any]) -> Counter[str]:
        """How many of the target's texts, or images, hold each concept. Images that cannot be decoded are left out."""
        assert self._target is not None
        objects: list[list[str]] = []
        captions: list[str] = []
        if self._target.is_dir():
            for path in self.files:
                with contextlib.suppress(ImageRejected):
                    found = engines["object_detector"].detect_objects([decode_image(path.read_bytes())])[0]
                    objects.append(sorted({one.label for one in found}))
            captions = [""] * len(objects)
        else:
            texts = read_rows(self._target)
            if "caption" not in texts.columns:
                raise ValueError(f"target {self.target}: expected a column caption, got {', '.join(texts.columns)}")
            captions = texts["caption"].cast(pl.String).drop_nulls().to_list()
        return Counter(name for names in concepts_of(captions, nouns, objects or None) for name in names)

    def _found(self, rows: pl.DataFrame, nouns: list[str]) -> list[list[str]]:
        objects = rows["detected_objects"].to_list() if self.objects else None
        return concepts_of(rows["caption"].fill_null("").to_list(), nouns, objects)

    def _matches(self, found: list[list[str]], values: np.ndarray, items: pl.DataFrame) -> Matches:
        """Pairs of a row and its concepts and bin."""
        number_of = {name: number for number, name in enumerate(items["item"])}
        edges = items["low_edge"].drop_nulls().to_numpy()
        first_bin = items.height - len(edges)
        bins = first_bin + np.maximum(np.searchsorted(edges, values, side="right") - 1, 0)  # the lowest is open below
        pairs = [
            [*(number_of[name] for name in names if name in number_of), bin_of]
            for names, bin_of in zip(found, bins.tolist(), strict=True)
        ]
        lengths = [len(one) for one in pairs]
        flat = np.array([number for one in pairs for number in one], dtype=np.int64)
        return Matches(np.repeat(np.arange(len(found)), lengths), flat, len(found))

    def score(self, rows: pl.DataFrame, fit: pl.DataFrame) -> pl.DataFrame:
        """The gain at which each row is taken; the concept of it that is fullest; how many concepts it holds."""
        taken, fit = fit.filter(pl.col("item") == ROWS), fit.filter(pl.col("item") != ROWS)
        items = fit.select("item", "weight", "low_edge")
        concepts = items.filter(pl.col("low_edge").is_null())["item"].to_list()
        found = self._found(rows, concepts)
        values = floats(rows, self.bins_by)
        matches = self._matches(found, np.nan_to_num(values), items)
        levels = fit["levels"].explode().drop_nulls().to_numpy()
        sizes = fit["levels"].list.len().to_numpy()
        bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        size_of = dict(zip(items["item"], sizes.tolist(), strict=True))
        fullest = [max((n for n in names if n in size_of), key=lambda n: size_of[n], default=None) for names in found]
        late = pl.Series("late", level_of(matches, items["weight"].to_numpy(), levels, bounds))
        known = taken.select("keys", "levels").explode("keys", "levels")
        keys = pl.DataFrame([pl.Series("keys", self._keys(rows["sample_id"]), dtype=pl.UInt64), late])
        level = keys.join(known, on="keys", how="left", maintain_order="left").select(pl.coalesce("levels", "late"))
        return scored(
            level.to_series().to_numpy(),
            missing_reason(rows, ["caption", self.bins_by]),
            ["no concept (margin)" if name is None else f"concept full (margin): {name}" for name in fullest],
            concept_count=[len(names) for names in found],
        )

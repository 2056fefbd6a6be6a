"""Kind `concept_coverage`: a greedy cover of concepts, and of bins of a signal, with falling returns (SDM-lite)."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.validation import Number, Switch, Whole, checked, setting
from curation_assets.numeric.concepts import EntryMatcher, Matches
from curation_assets.numeric.coverage import greedy_levels, level_of, levels_of_items
from curation_assets.numeric.identity import draw_keys
from curation_assets.selection.kinds import Kind, floats, missing_reason, scored

SHORTEST = 3  # letters of a noun: "a", "in" and "as" are nouns of WordNet, too
BIN, ROWS = "\0bin ", "\0rows"  # begins the name of a bin among the items; the row of what was there


@checked("concept_coverage")
class KIND(Kind):
    """quality is the gain of a sample at its turn: any best share is a greedy choice (formulas.md §15.5)."""

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
        """For the nouns."""
        return ("wordnet",)

    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """One row per concept or bin: weight, lower edge of a bin, and the gains at which its samples were taken."""
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        nouns = [
            word for word in engines["wordnet"].lemmas("n") if len(word) >= SHORTEST and word not in ENGLISH_STOP_WORDS
        ]
        rows = pl.concat(list(shards)).unique("sample_id", keep="first").sort("sample_id")
        rows = rows.filter(pl.Series(np.isfinite(floats(rows, self.bins_by)))).drop_nulls("caption")
        if rows.is_empty():
            raise ValueError(f"no sample has a caption and a value of {self.bins_by}, so there is nothing to cover")
        found = self._found(rows, nouns)
        counted = pl.Series("item", [name for names in found for name in names], dtype=pl.String).value_counts()
        concepts = counted.filter(pl.col("count") >= self.least).sort("item")
        powers = concepts["count"].to_numpy().astype(np.float64) ** self.target_power
        weights = self.concept_share * powers / max(powers.sum(), 1.0)
        values = floats(rows, self.bins_by)
        edges = np.unique(np.quantile(values, np.arange(self.bins) / self.bins))  # lower edges, ascending
        worth = np.arange(1, len(edges) + 1, dtype=np.float64)  # u_b: the best bin counts most
        items = pl.DataFrame(
            {
                "item": [*concepts["item"], *(f"{BIN}{number}" for number in range(len(edges)))],
                "weight": np.concatenate([weights, (1 - self.concept_share) * worth / worth.sum()]),
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

    def _found(self, rows: pl.DataFrame, nouns: list[str]) -> list[list[str]]:
        """Concepts of each row, each once and sorted."""
        matches = EntryMatcher(nouns).match(rows["caption"].fill_null("").to_list())
        found: list[set[str]] = [set() for _ in range(rows.height)]
        for row, item in zip(matches.row.tolist(), matches.item.tolist(), strict=True):
            found[row].add(nouns[item])
        if self.objects:
            for names, labels in zip(found, rows["detected_objects"].to_list(), strict=True):
                names.update(label.partition(",")[0].lower() for label in labels or [])
        return [sorted(names) for names in found]

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

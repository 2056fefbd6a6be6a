"""Kind `mix`: a training set of stated shares of sources, languages, kinds of images or licences."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.errors import few
from curation_assets.core.validation import Number, Whole, checked, setting
from curation_assets.methods import oriented
from curation_assets.numeric.identity import draw_keys
from curation_assets.numeric.mixture import edge_of, entries_of_groups, is_inside, weights_of_sizes
from curation_assets.selection.kinds import Kind, floats, missing_reason, no_reason, scored
from curation_assets.stores.web_addresses import canonical_host

SHOWN_GROUPS = 12  # in an error
#: Class of a licence → what its SPDX id in lower case matches. Of terms that meet the strictest counts, so it is first.
LICENCE_CLASSES = {
    "non_commercial": "-nc(-|$)",
    "no_derivatives": "-nd(-|$)",
    "share_alike": "-sa(-|$)|^(odbl|a?gpl|lgpl|cdla-sharing)",
    "public_domain": "^(cc0|cc-pddc|pddl|unlicense|0bsd|mit-0|publicdomain)",
    "attribution": "^(cc-by|odc-by|mit|apache|bsd|cdla-permissive|ogl|etalab)",
}


def licence_class(column: pl.Expr) -> pl.Expr:
    """One of LICENCE_CLASSES, or other; null of null."""
    found = [pl.when(column.str.contains(id)).then(pl.lit(name)) for name, id in LICENCE_CLASSES.items()]
    return pl.coalesce(*found, pl.when(column.is_not_null()).then(pl.lit("other")))


@checked("mix")
class KIND(Kind):
    """quality is a multiplicity: 0, 1, 2, … A policy over it has `repeats: true` and threshold 1 (formulas.md §15.13).

    n_s = w_s · N entries of group s; a group of fewer rows repeats them up to `max_epochs` times and leaves the rest to
    the others; of a group of more rows the best by `rank_by` are taken (DataComp-VLM, arXiv 2606.28551).
    Raises ValueError unless one of `shares` and `alpha`, and one of `samples` and `fraction`, is given.
    """

    by: str = setting(
        default="source",
        description="Column of groups: source, licence, licence_class, language, domain (raw/provenance), one of "
        "raw/samples, or stage.table.column, such as signals.image_kind.kind.",
    )
    shares: Mapping[str, Number] = setting(
        default_factory=dict, description="Group → weight; weights are divided by their sum, other groups get nothing."
    )
    alpha: Number | None = setting(
        default=None, ge=0, description="In place of shares: weights ∝ (rows of the group)^alpha; 0 all alike."
    )
    samples: Whole | None = setting(default=None, ge=1, unit="entries", description="N, repeats included.")
    fraction: Number | None = setting(
        default=None, gt=0, description="In place of samples: N as a share of the rows that may be chosen."
    )
    max_epochs: Whole = setting(default=4, ge=1, description="A row is at most so often in the set.")
    rank_by: str | None = setting(
        default=None, description="stage.table whose best rows a group takes first; null: any, by a hash."
    )
    floors: Mapping[str, Number] = setting(
        default_factory=dict, description="stage.table → value; worse rows are in no group, and do not count."
    )
    seed: Whole = setting(default=0, ge=0, description="Of the hash that decides between equals.")

    def __post_init__(self) -> None:
        if bool(self.shares) == (self.alpha is not None):
            raise ValueError(f"mix needs shares or alpha, one of them; got {dict(self.shares)} and {self.alpha}")
        if (self.samples is None) == (self.fraction is None):
            raise ValueError(f"mix needs samples or fraction, one of them; got {self.samples} and {self.fraction}")
        if self.shares and (min(self.shares.values()) < 0 or not any(self.shares.values())):
            raise ValueError(f"shares must be 0 or more, one of them above, got {dict(self.shares)}")
        if self.by == "domain":
            object.__setattr__(self, "shares", {canonical_host(name): share for name, share in self.shares.items()})

    @property
    def signals(self) -> tuple[str, ...]:
        """What ranks, and what has a floor."""
        return tuple(dict.fromkeys([*([self.rank_by] if self.rank_by else []), *self.floors]))

    @property
    def columns(self) -> tuple[str, ...]:
        """The column of groups."""
        return ("licence" if self.by == "licence_class" else self.by,)

    def _members(self, rows: pl.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(N,) group of each row, value that ranks it, key, and whether it has a value and is above the floors."""
        column = pl.col(self.columns[0])
        if rows.schema[self.columns[0]].is_nested():
            raise ValueError(f"mix by {self.by}: expected a column of texts or numbers, got {rows.schema[self.by]}")
        text = licence_class(column) if self.by == "licence_class" else column.cast(pl.String)
        group = rows.select(text.fill_null("unknown")).to_series().to_numpy()
        values = floats(rows, self.rank_by) if self.rank_by else np.zeros(rows.height)
        above = np.isfinite(values)
        for signal, least in self.floors.items():
            above &= floats(rows, signal) >= oriented(signal, float(least))
        return group, values, draw_keys(rows["sample_id"].to_list(), f"mix:{self.seed}"), above

    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """One row per group: weight, rows, entries, epochs, and the edge of those that get one entry more. Raises
        ValueError where no row can be chosen, and for a name in `shares` that no row has."""
        parts, known = [], set[str]()
        for rows in shards:
            group, values, keys, above = self._members(rows)
            known |= set(group)
            columns = {"sample_id": rows["sample_id"], "group": group, "value": values, "key": keys}
            parts.append(pl.DataFrame(columns, schema_overrides={"group": pl.String}).filter(pl.Series(above)))
        if absent := sorted(set(self.shares) - known):
            near = get_close_matches(absent[0], known, n=1)
            raise ValueError(
                f"shares names {absent[0]!r}, and no row has that {self.by}"
                + (f"; did you mean {near[0]!r}?" if near else ";")
                + f" {self.by} of the rows: {few(sorted(known), SHOWN_GROUPS) or 'none'}"
            )
        rows = pl.concat(parts).unique("sample_id", keep="first", maintain_order=True)
        if rows.is_empty():
            raise ValueError(f"no sample has a value of {', '.join(self.signals)} above its floor; nothing to mix")
        names, of_row = sorted({*rows["group"], *self.shares}), rows["group"].to_numpy()
        count = np.array([np.count_nonzero(of_row == name) for name in names], dtype=np.int64)
        given = np.array([float(self.shares.get(name, 0)) for name in names])
        weights = given / given.sum() if self.shares else weights_of_sizes(count, float(self.alpha or 0))
        total = self.samples or max(1, round(rows.height * float(self.fraction or 0)))
        entries = entries_of_groups(count, weights, total, self.max_epochs)
        whole, extra = entries // np.maximum(count, 1), entries % np.maximum(count, 1)
        edges = []
        for name, more in zip(names, extra.tolist(), strict=True):
            mine = rows.filter(pl.Series(of_row == name))
            edges.append(edge_of(mine["value"].to_numpy(), mine["key"].to_numpy(), more))
        return pl.DataFrame(
            {
                "group": names,
                "weight": weights,
                "rows": count,
                "entries": entries,
                "epochs": entries / np.maximum(count, 1),
                "whole_epochs": whole,
                "edge_value": [value for value, _ in edges],  # infinite where no row gets one entry more
                "edge_key": pl.Series([key for _, key in edges], dtype=pl.UInt64),
            }
        )

    def score(self, rows: pl.DataFrame, fit: pl.DataFrame) -> pl.DataFrame:
        """How often each row is in the set; its group."""
        group, values, keys, above = self._members(rows)
        times = np.zeros(rows.height)
        why = np.array([f"no share for {name}" for name in group] or [""], dtype=object)[: rows.height]
        for one in fit.iter_rows(named=True):
            mine = np.flatnonzero((group == one["group"]) & above)
            edge = one["edge_value"], one["edge_key"]
            times[mine] = one["whole_epochs"] + is_inside(values[mine], keys[mine], edge)
            if one["weight"] > 0:
                why[mine] = f"mixture:full: {one['group']}, {one['entries']:,} entries of {one['rows']:,} rows"
        why[~above] = "below a floor of the mixture"
        reason = missing_reason(rows, self.signals) if self.signals else no_reason(rows)
        return scored(times, reason, why, group=group)

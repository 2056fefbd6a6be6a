"""The section "Where it comes from": sources, licences, domains, languages and signals of the rows of a pool."""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from curation_assets.audit.ledger import ledger_policies, recorded_ledger
from curation_assets.core.table_names import PROVENANCE
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.mixtures import HAD, STATED, shares_of
from curation_assets.outputs.report import pictures
from curation_assets.outputs.report.image_texts import clamped
from curation_assets.outputs.summary.counts import counts

SHOWN_GROUPS = 12  # in a table and its plot
NAME_LETTERS = 60
UNKNOWN = "unknown"

#: (statement of dbt_like_sql/summary, its column of names, title, what one is). Rows of domains are kept ones.
_GROUPS = (
    ("sources", "source", "Sources", "source"),
    ("licences", "licence", "Licences", "licence"),
    ("domains", "domain", "Domains of kept rows", "domain"),
    ("languages", "language", "Languages of the captions", "language"),
    ("signals", "kind", "Signals of owners on training and licences", "kind"),
)


def origins_of(ctx: PoolContext) -> dict[str, Any] | None:
    """What the section shows; None before the pool has a ledger."""
    shards = ctx.store.partitions(PROVENANCE)
    recorded = ledger_policies(ctx.store)
    judged = [policy.name for policy in policies_of(ctx) if policy.name in recorded]
    if not shards or not judged:
        return None
    provenance = ctx.store.checked_paths(PROVENANCE, shards)
    names = {statement for statement, *_ in _GROUPS}
    by_policy = {name: counts(recorded_ledger(ctx.store, name).paths, provenance, names) for name in judged}
    return {"groups": [*(_group(by_policy, *group) for group in _GROUPS), *_mixtures(ctx)]}


def _mixtures(ctx: PoolContext) -> Iterator[dict[str, Any]]:
    """Groups of the mixtures that policies rank by: their shares as stated and as they are, the most entries first."""
    for policy in policies_of(ctx):
        shares = shares_of(ctx, policy)
        if shares is None:
            continue
        shown = [(clamped(name, NAME_LETTERS), *numbers) for name, *numbers in shares.iter_rows()]
        total = shares["entries"].sum()
        drawn = [(name, [round(stated * total), entries]) for name, stated, _, entries, _ in shown[:SHOWN_GROUPS]]
        said = (f"{name} {stated:.1%} stated, {had:.1%}" for name, stated, _, _, had in shown[:SHOWN_GROUPS])
        yield {
            "title": f"Mixture of policy {policy.name}: its shares as stated, and as they are",
            "one": "group",
            "columns": ["rows kept", "entries", STATED, HAD],
            "rows": [
                (name, [kept, entries, f"{stated:.1%}", f"{had:.1%}"])
                for name, stated, kept, entries, had in shown[:SHOWN_GROUPS]
            ],
            "more": max(0, len(shown) - SHOWN_GROUPS),
            "picture": _picture(drawn, ["entries at the stated shares", "entries"]),
            "text": f"Bars of the mixture of policy {policy.name}: {', '.join(said)}.",
        }


def _group(
    by_policy: Mapping[str, Mapping[str, pl.DataFrame]], statement: str, key: str, title: str, one: str
) -> dict[str, Any]:
    """One statement, of all policies side by side; the most rows first."""
    tables = {name: tables[statement] for name, tables in by_policy.items()}
    first = next(iter(tables.values()))
    has_pool = "kept" in first.columns
    of_pool = ["rows", *(["refused"] if "refused" in first.columns else [])] if has_pool else []
    wide = pl.concat([table.select(key) for table in tables.values()]).unique(maintain_order=True)
    wide = wide.join(first.select(key, *of_pool), on=key, how="left", nulls_equal=True)
    for name, table in tables.items():
        kept = table.select(key, pl.col("kept" if has_pool else "rows").alias(name))
        wide = wide.join(kept, on=key, how="left", nulls_equal=True)
    columns = [*of_pool, *by_policy]
    wide = wide.with_columns(pl.col(columns).fill_null(0))
    total = pl.sum_horizontal(columns)
    wide = wide.sort("rows" if has_pool else total, key, descending=[True, False], nulls_last=True)
    shown = [
        (clamped(name, NAME_LETTERS) if name is not None else UNKNOWN, list(numbers))
        for name, *numbers in wide.head(SHOWN_GROUPS).select(key, *columns).iter_rows()
    ]
    labels = {"rows": "rows of the pool", "refused": "refused"}
    return {
        "title": title,
        "one": one,
        "columns": [labels.get(name, name) for name in columns],
        "rows": shown,
        "more": wide.height - len(shown),
        "picture": _picture(shown, columns) if len(shown) > 1 else None,
        "text": f"Bars of {title.lower()}: {_sentence(shown, columns)}.",
    }


def _picture(shown: list[tuple[str, list[int]]], columns: list[str]) -> str:
    series = {name: [numbers[place] for _, numbers in shown] for place, name in enumerate(columns)}
    return pictures.data_uri(pictures.counts_figure([name for name, _ in shown], series))


def _sentence(shown: list[tuple[str, list[int]]], columns: list[str]) -> str:
    parts = (f"{name} {numbers[0]:,}" for name, numbers in shown)
    return f"{', '.join(parts)} ({'rows of the pool' if columns[0] == 'rows' else f'kept by {columns[0]}'})"

"""The HTML report of a pool: one self-contained page."""

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from curation_assets.audit.cost import table_costs
from curation_assets.audit.origin import lineage_of, lineage_svg
from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import (
    AGREEMENT,
    LENGTH_DEPENDENCE,
    LENGTH_EVIDENCE,
    METHOD_QUALITY,
    NEAR_DUPLICATES,
    OVERLAPS,
    SAMPLES,
    SEPARATION,
    TARGETS,
    TEXT_IN_IMAGES,
)
from curation_assets.core.version import __version__
from curation_assets.flow.composition import composition_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import (
    known_limit,
    labelled_table,
    left_out,
    made_for,
    policies_of,
    read_weights,
    teacher_names,
    web_worths_of,
    worths_of,
)
from curation_assets.flow.frozen import frozen_notes
from curation_assets.flow.graph import tables_of
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.worth import ANY_KIND, ENGLISH, WEB, group_name
from curation_assets.methods import oriented
from curation_assets.numeric.metrics.separation import KINDS, in_order
from curation_assets.outputs.pages import page_of
from curation_assets.outputs.report import image_texts, pictures
from curation_assets.outputs.report.contamination import contamination_section
from curation_assets.outputs.report.origins import origins_of
from curation_assets.outputs.thumbnails import thumbnail_uri
from curation_assets.selection.judging import reason_kind
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import looked_up
from curation_assets.stores.manifest import Manifest

GALLERY_SIZE = 8  # samples on each side of a cut
AT_ENDS = 4  # best and worst samples
SHARDS_AT_ONCE = 50  # whose rows a gallery is chosen from
THUMBNAIL_PX = 112
DRAWN_ROWS = 2_000_000  # of a larger pool, about so many rows are drawn


@dataclass(frozen=True)
class Card:
    """One sample of a gallery."""

    picture: str | None  # data URI; None where the sample has no image that may be shown
    caption: str
    note: str
    text: str  # stands for the picture where it is not seen
    id: str  # of the sample, for `curate why`


def write_report(ctx: PoolContext, path: Path, downstream: Markup) -> None:
    """Write the page to `path`. Every input table of `downstream/report` must be materialised.

    `downstream`: the section on models trained on the subsets, of id `downstream`; empty: none.
    """
    samples = ctx.store.scan(SAMPLES).select("status", "reason")
    counts = _counts(samples)
    thinned = Thinned(ctx, counts["input rows"])
    methods, (sections, without_values) = _method_sections(ctx, thinned), _policy_sections(ctx, thinned)
    page = page_of(
        Path(__file__).with_name("report.html.jinja"),
        pool=ctx.pool,
        version=__version__,
        profile=ctx.profile,
        counts=counts,
        states_picture=pictures.states_bar(samples) if len([one for one in counts.values() if one]) > 2 else None,
        states_text=image_texts.states_text(samples),
        holdings=_holdings_section(ctx),
        domain="web pairs" if ctx.pool.image_domain == WEB else ctx.pool.image_domain,
        methods=methods,
        drawn_of=thinned.every,
        teachers=_teacher_section(ctx) if ctx.distils else None,
        quality=_quality_section(ctx),
        separation=_separation_section(ctx),
        text_in_images=_text_section(ctx),
        duplicates=_duplicates_section(ctx),
        contamination=contamination_section(ctx),
        origins=origins_of(ctx),
        policies=sections,
        without_values=without_values,
        words=_words(methods, sections, ctx.pool.image_domain == WEB),
        left_out=left_out(ctx),
        frozen_notes=frozen_notes(ctx),
        overlaps=_overlap_picture(ctx, [section["policy"].name for section in sections]),
        downstream=downstream,
        lineages=_lineages(ctx),
        costs=_costs(ctx),
        catalog=repr(str(ctx.settings.catalog.resolve())),
    )
    path.write_text(page, encoding="utf-8")


@dataclass(frozen=True)
class Thinned:
    """What the pictures of a large pool are drawn of: rows of about one id in `every`, the same of all tables."""

    ctx: PoolContext
    rows: int  # of the pool

    @property
    def every(self) -> int:
        """1: all rows are drawn."""
        return max(1, self.rows // DRAWN_ROWS)

    def read(self, asset: str, *columns: str) -> pl.DataFrame:
        """Columns of a table with sample_id."""
        table = self.ctx.store.scan(asset)
        if self.every > 1:  # ids are hashes
            table = table.filter(pl.col("sample_id") < f"{2**32 // self.every:08x}")
        return table.select(columns).collect(engine="streaming")


def _counts(samples: pl.LazyFrame) -> dict[str, int]:
    counted: Mapping[str, int] = dict(samples.group_by("status").len().collect(engine="streaming").iter_rows())
    return {
        "input rows": sum(counted.values()),
        **{state: counted.get(state, 0) for state in ("kept", "dropped", "failed")},
    }


def _holdings_section(ctx: PoolContext) -> dict[str, Any] | None:
    """Shares of kinds of images and of languages, and for these what the signals are worth; None where no table tells,
    and for other pools than of web pairs."""
    composition = composition_of(ctx) if ctx.pool.image_domain == WEB else None
    if composition is None:
        return None
    references = {reference for policy in policies_of(ctx) for reference in policy.references if reference != RANDOM}
    references |= {f"signals.{method.name}" for method in ctx.methods("signals")}
    worths = web_worths_of(ctx, sorted(references), composition)
    measured = [worth for worth in worths if worth.is_measured and not worth.reads_text_alone]
    cells = {(worth.reference, part[:2]): part[3] for worth in measured for part in worth.parts}
    groups = [part[:3] for part in measured[0].parts] if measured else []
    shown = [group for group in groups if any(cells[worth.reference, group[:2]] for worth in measured)]
    return {
        "rows": composition.n,
        "kinds": [(kind, share) for kind, share in composition.kinds() if kind != ANY_KIND],
        "languages": [
            ("English" if language == ENGLISH else "not English", share) for language, share in composition.languages()
        ],
        "signals": [worth.reference for worth in measured],
        "groups": [
            (group_name(kind, language), share, [cells[worth.reference, (kind, language)] for worth in measured])
            for kind, language, share in shown
        ],
        "others": sum(share or 0.0 for kind, language, share in groups if (kind, language, share) not in shown),
        "of_texts": [(worth.reference, str(worth)) for worth in worths if worth.reads_text_alone],
        "not_measured": [worth.reference for worth in worths if not worth.is_measured],
    }


def _method_sections(ctx: PoolContext, thinned: Thinned) -> list[dict[str, Any]]:
    sections = []
    worths = worths_of(ctx, [f"signals.{method.name}" for method in ctx.methods("signals")])
    for method in ctx.methods("signals"):
        table = ctx.store.scan(f"signals/{method.name}")
        count = table.select(pl.col("value").count()).collect(engine="streaming").item()
        missing = table.filter(pl.col("reason").is_not_null()).group_by("reason").len().collect(engine="streaming")
        valued = thinned.read(f"signals/{method.name}", "value")["value"].drop_nulls()
        sections.append(
            {
                "method": method,
                "worth": worths.get(f"signals.{method.name}"),
                "valued": count,
                "missing": list(missing.sort("len", "reason", descending=[True, False]).iter_rows()),
                "picture": pictures.data_uri(pictures.histogram_figure({method.name: valued}, method.unit))
                if valued.len()
                else None,
                "text": image_texts.distribution_text(method.name, valued) if valued.len() else "",
            }
        )
    return sections


def _teacher_section(ctx: PoolContext) -> dict[str, Any]:
    names = teacher_names(ctx)
    weights = read_weights(ctx)
    plane, plane_text = None, ""
    if len(names) == 2 and ctx.ratings is not None:
        labelled = ctx.store.read(labelled_table(ctx)).drop_nulls(names)
        first, second = weights.weights
        plane_text = image_texts.plane_text(labelled.select(names), labelled["rating"].to_numpy(), ctx.ratings)
        plane = pictures.data_uri(
            pictures.plane_figure(
                labelled.select(names), labelled["rating"].to_numpy(), (first, second, weights.intercept), ctx.ratings
            )
        )
    dependence = ctx.store.read(LENGTH_DEPENDENCE)
    evidence = _read_if_made(ctx, LENGTH_EVIDENCE)
    agreement = _read_if_made(ctx, AGREEMENT)
    return {
        "weights": weights,
        "fuse_on": FlowOptions.of(ctx).fuse_on,
        "names": names,
        "plane": plane,
        "plane_text": plane_text,
        "dependence": dependence.drop("warning").to_dicts(),
        "ratings": ctx.ratings,
        "student": ctx.profile.address("student"),
        "evidence": [] if evidence is None else evidence.drop("warning").to_dicts(),
        "agreement": [] if agreement is None else agreement.to_dicts(),
        "agreement_picture": None if agreement is None else pictures.data_uri(pictures.agreement_figure(agreement)),
        "agreement_text": "" if agreement is None else image_texts.agreement_text(agreement),
        "warnings": [
            warning
            for table in (dependence, evidence)
            if table is not None
            for warning in table["warning"].drop_nulls()
        ],
        "reconstructions": _reconstructions(ctx),
    }


def _read_if_made(ctx: PoolContext, table: str) -> pl.DataFrame | None:
    return None if ctx.store.manifest(table) is None else ctx.store.read(table)


def _reconstructions(ctx: PoolContext) -> list[dict[str, Any]]:
    """A few captions with what each teacher made of them, from the most to the least concrete target."""
    targets = ctx.store.scan(TARGETS).select("sample_id", "caption", "value").collect()
    targets = targets.drop_nulls("value").sort("value", "sample_id", descending=[True, False])
    chosen = targets[[int(index) for index in np.linspace(0, targets.height - 1, 8)]] if targets.height else targets
    for teacher in teacher_names(ctx):
        made = ctx.store.scan(f"teachers/{teacher}").select(
            "sample_id",
            pl.col("best_reconstruction").alias(teacher),
            pl.col("value").alias(f"{teacher}_value"),
        )
        chosen = chosen.join(made.collect(), on="sample_id", how="left", maintain_order="left")
    texts = ["caption", *teacher_names(ctx)]
    return [{**row, **{name: image_texts.clamped(row[name]) for name in texts}} for row in chosen.to_dicts()]


def _quality_section(ctx: PoolContext) -> list[dict[str, Any]] | None:
    if ctx.store.manifest(METHOD_QUALITY) is None:
        return None
    quality = ctx.store.read(METHOD_QUALITY)
    wide = quality.pivot(on="metric", index=["target", "method", "n"], values="value", maintain_order=True)
    return wide.to_dicts()


def _separation_section(ctx: PoolContext) -> dict[str, Any] | None:
    if ctx.store.manifest(SEPARATION) is None:
        return None
    table = ctx.store.read(SEPARATION)
    kinds = in_order(table["kind"].to_list())
    counts = dict(table.group_by("kind").agg((pl.col("n") + pl.col("without_value")).max()).iter_rows())
    rows = [{**row, "colour": pictures.auc_colour(row["auc"])} for row in table.to_dicts()]
    cells = {(row["method"], row["kind"]): row for row in rows}
    methods = table["method"].unique(maintain_order=True).to_list()
    kinds_of, shown, run = made_for(ctx), set(kinds), [*ctx.methods("signals"), *ctx.methods("teachers")]
    return {
        "kinds": [(kind, KINDS.get(kind, "")) for kind in kinds],
        "counts": counts,
        "every": rows,
        "n_clean": int(table["n_clean"].max() or 0),  # type: ignore[arg-type]
        "rows": [(method, [cells.get((method, kind)) for kind in kinds]) for method in methods],
        "made_for": [(name, [kind for kind in kinds_of.get(name, ()) if kind in shown]) for name in methods],
        "no_kind": {method.name: method.no_planted_kind for method in run if method.no_planted_kind},
        "failing": [
            {**row, "why": known_limit(row["method"], row["kind"])} for row in rows if row["verdict"] == "does not"
        ],
        "gaps": [row for row in rows if row["is_made_for"] and row["auc"] is None],
    }


def _text_section(ctx: PoolContext) -> list[dict[str, Any]] | None:
    name = TEXT_IN_IMAGES
    return None if ctx.store.manifest(name) is None else ctx.store.read(name).to_dicts()


def _duplicates_section(ctx: PoolContext) -> dict[str, Any] | None:
    """Counts, and for a few groups captions of the kept sample and of one that it stands for."""
    if FlowOptions.of(ctx).duplicates is None or ctx.store.manifest(NEAR_DUPLICATES) is None:
        return None
    duplicates = ctx.store.scan(NEAR_DUPLICATES)
    dropped = duplicates.filter(pl.col("quality") == 0)
    kinds, groups = (
        dropped.group_by(name).len().sort("len", name, descending=[True, False]) for name in ("kind", "representative")
    )
    compared = duplicates.select(pl.col("quality").count())
    found = [one.collect(engine="streaming") for one in (compared, kinds, groups.head(GALLERY_SIZE))]
    return {"compared": found[0].item(), "kinds": list(found[1].iter_rows()), "groups": list(found[2].iter_rows())}


def _policy_sections(ctx: PoolContext, thinned: Thinned) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A section per policy; and of those that had no value to judge by, which have none, the commonest reason."""
    sections, without_values, policies = [], {}, policies_of(ctx)
    # once for all policies: the kinds and languages of the whole pool are counted for it
    worths = worths_of(ctx, {reference for policy in policies for reference in policy.references})
    for policy in policies:
        table = ctx.store.scan(f"filtered/{policy.name}")
        facts = table.select(
            valued=pl.col("value").count(), threshold=pl.col("threshold").filter(verdict="kept").drop_nulls().first()
        ).collect(engine="streaming")
        if not facts["valued"].item():
            without_values[policy.name] = next((reason for reason, _ in _counted(table, pl.col("reason"))), "no rows")
            continue
        states = dict(_counted(table, pl.col("verdict")))
        kept = pl.col("verdict") == "kept"
        ranked_out = pl.col("value").is_not_null() & (pl.col("verdict") == "dropped")
        gallery = partial(_gallery, ctx, policy)
        drawn = thinned.read(f"filtered/{policy.name}", "verdict", "value", "threshold")
        sections.append(
            {
                "policy": policy,
                "worths": {reference: worths[reference] for reference in policy.references if reference in worths},
                **{state: states.get(state, 0) for state in ("kept", "dropped", "failed")},
                "reasons": _counted(table, reason_kind(pl.col("reason"))),
                "threshold": facts["threshold"].item(),
                "picture": pictures.verdicts_histogram(drawn) if policy.rank_by != "random" else None,
                "text": image_texts.verdicts_text(policy.name, drawn),
                "galleries": _galleries(
                    gallery(kept, is_last=True), gallery(ranked_out), gallery(kept), gallery(ranked_out, is_last=True)
                ),
            }
        )
    return sections, without_values


#: Reasons of verdicts as they begin → what they say, for the page's reader.
REASON_WORDS = {
    "below_cut:": "below_cut:SIGNAL – the value of the signal is worse than the policy's last cut, its threshold",
    "prefilter:": "prefilter:SIGNAL – an earlier cut of the policy, by this signal, dropped the row",
    "benchmark:": "benchmark:NAME – left out before the first cut: its image or caption is in this benchmark",
    "licence:": "licence:ID – left out before the first cut: the policy does not list its licence",
    "no_value:": "no_value:REASON – the signal has no value of the row, for this reason",
}
AUC_WORDS = (
    "AUC KIND .90 [.85, .95], n 500 – the chance that a clean sample has the better value than one with this kind of "
    "noise, its 95 % interval, and how many such samples it was measured on; 1 separates perfectly, .5 is chance"
)


WEB_AUC_WORDS = (
    "AUC KIND .87 [.83, .90], n 215 – of images of this kind from other web sites: the chance that the own text has a "
    "higher value than the text of another site, its 95 % interval over sites, and how many pairs it was measured on; "
    ".5 is chance. Of rows of kinds or languages that were not measured it says nothing"
)


def _words(
    methods: Sequence[Mapping[str, Any]], sections: Sequence[Mapping[str, Any]], is_web: bool = False
) -> list[str]:
    """Lines that explain the terms of the sections on policies and signals, for those that occur there."""
    reasons = {reason for section in sections for reason, _ in section["reasons"]}
    lines = [words for start, words in REASON_WORDS.items() if any(one.startswith(start) for one in reasons)]
    measured = [item["worth"] for item in methods if "AUC " in (item["worth"] or "")]
    if is_web:
        return [*lines, *([WEB_AUC_WORDS] if measured else [])]
    kinds = [kind for kind in KINDS if any(re.search(rf"\b{kind} [.\d]", worth) for worth in measured)]
    return [*lines, *([AUC_WORDS] if measured else []), *(f"{kind} – {KINDS[kind]}" for kind in kinds)]


def _counted(table: pl.LazyFrame, column: pl.Expr) -> list[tuple[str, int]]:
    """Values of a column that are not null and how many rows have each, the commonest first."""
    values = table.select(column.cast(pl.String).alias("value")).drop_nulls()
    counted = values.group_by("value").len().collect(engine="streaming")
    return list(counted.sort("len", "value", descending=[True, False]).iter_rows())


def _galleries(
    above: list[Card], below: list[Card], best: list[Card], worst: list[Card]
) -> list[tuple[str, list[Card]]]:
    """Title and cards; in a small pool no sample is shown twice."""
    shown = {card.id for card in (*above, *below)}
    return [
        ("kept, just above the cut", above),
        ("dropped, just below the cut", below),
        ("best kept", [card for card in best if card.id not in shown][:AT_ENDS]),
        ("worst dropped", [card for card in worst if card.id not in shown][-AT_ENDS:]),
    ]


def _gallery(ctx: PoolContext, policy: Policy, chosen: pl.Expr, *, is_last: bool = False) -> list[Card]:
    return _cards(ctx, _ranked(ctx, _parts(ctx, policy, chosen), policy, is_last=is_last))


def _parts(ctx: PoolContext, policy: Policy, chosen: pl.Expr) -> Iterator[pl.LazyFrame]:
    """Chosen verdicts of some shards at a time: polars holds all rows of what it sorts, also for the first few."""
    table = f"filtered/{policy.name}"
    shards = ctx.store.partitions(table)
    for start in range(0, len(shards), SHARDS_AT_ONCE):
        yield ctx.store.scan(table, shards[start : start + SHARDS_AT_ONCE]).filter(chosen)


def _ranked(ctx: PoolContext, parts: Iterable[pl.LazyFrame], policy: Policy, *, is_last: bool = False) -> pl.DataFrame:
    """The first (or last) rows of a gallery, with what shows them: those that got furthest come first, of one cut by
    value, of one value by sample_id."""
    position = {step.rank_by: number for number, step in enumerate(policy.steps)}
    decided = pl.col("decided_by").cast(pl.String)
    better = pl.coalesce(pl.when(decided == by).then(oriented(by, pl.col("value"))) for by in position)
    order = [decided.replace_strict(position, return_dtype=pl.Int64), better, "sample_id"]
    is_descending = [is_first != is_last for is_first in (True, True, False)]
    first = list[pl.DataFrame]()
    for part in parts:
        columns = part.select(
            pl.col("shard").cast(pl.String), "source_row", "sample_id", "value", "decided_by", "reason"
        )
        found = columns.sort(order, descending=is_descending).head(GALLERY_SIZE).collect()
        first = [pl.concat([*first, found]).sort(order, descending=is_descending).head(GALLERY_SIZE)]
    (rows,) = first
    shown = looked_up(ctx.store, rows, SAMPLES, "caption", "tar", "member")
    return shown.reverse() if is_last else shown


def _cards(ctx: PoolContext, rows: pl.DataFrame) -> list[Card]:
    load_image = ctx.image_loader(few=True)
    cards = []
    for row in rows.to_dicts():
        note = "" if row.get("value") is None else f"{row['value']:.3f}"
        note += f" · {row['reason']}" if row.get("reason") else ""
        picture, why = thumbnail_uri(load_image, row, THUMBNAIL_PX) if row["member"] else (None, "")
        note = f"{note} ({why})".strip() if why else note
        shown = image_texts.clamped(row["caption"])
        cards.append(Card(picture, shown, note, image_texts.caption_text(row["caption"]), row["sample_id"]))
    return cards


def _overlap_picture(ctx: PoolContext, names: Sequence[str]) -> tuple[str, str] | None:
    """The picture of these policies and its text; None where there is none."""
    overlaps = ctx.store.read(OVERLAPS)
    values = {(row["policy"], row["other"]): row["iou"] or 0.0 for row in overlaps.to_dicts()}
    matrix = np.array([[values[left, right] for right in names] for left in names])
    if not names:
        return None
    return pictures.data_uri(pictures.overlap_figure(names, matrix)), image_texts.overlaps_text(names, matrix)


def _lineages(ctx: PoolContext) -> list[tuple[str, Markup]]:
    """Per policy, the graph of what its subset was made from."""
    position_of = {stage: position for position, stage in enumerate(STAGES)}
    known: dict[tuple[str, str | None], Manifest] = {}
    return [
        (policy.name, Markup(lineage_svg(lineage_of(ctx.store, f"filtered/{policy.name}", known=known), position_of)))
        for policy in policies_of(ctx)
    ]


def _costs(ctx: PoolContext) -> list[dict[str, Any]]:
    """Cost and rows per table (a reused table keeps the cost of when it was made)."""
    rows = []
    declared = tables_of(ctx)
    for cost in table_costs(ctx.store, declared).to_dicts():
        keys: Sequence[str | None] = [*ctx.store.partitions(cost["table"])] or [None]
        manifests = [manifest for key in keys if (manifest := ctx.store.manifest(cost["table"], key)) is not None]
        models = {_model_name(model) for manifest in manifests for model in manifest.models}
        counted = sum(manifest.row_count for manifest in manifests)
        rows.append(
            {**cost, "table": declared[cost["table"]].title, "rows": counted, "models": ", ".join(sorted(models))}
        )
    return rows


def _model_name(model: Any) -> str:
    address = model["address"] if isinstance(model, Mapping) else model.address
    return html.escape(str(address))

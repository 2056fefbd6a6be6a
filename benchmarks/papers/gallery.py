"""python -m benchmarks.papers gallery: images of a pool by a method's value, with the teachers' reconstructions."""

from html import escape
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer

from benchmarks.papers.tables import lacks_values
from curation_assets.cli.common import HomeOption, notice, settings_from
from curation_assets.core.table_names import SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import teacher_names
from curation_assets.methods import get_method
from curation_assets.outputs.thumbnails import thumbnail_uri
from curation_assets.stores.atomic import check_new, writing_new

SIDE_PX = 220
STYLE = (
    "body{font:15px/1.4 system-ui,sans-serif;margin:24px;color:#1f2933}section{display:flex;flex-wrap:wrap;gap:14px}"
    "figure{margin:0;width:230px}img{max-width:220px;max-height:220px;border-radius:6px}small{color:#616e7c}"
)


def gallery(
    pool: Annotated[str, typer.Argument(help="A pool whose signals have run.")],
    out: Annotated[Path, typer.Option("--out", help="A new .html file.")],
    method: Annotated[str, typer.Option(help="The method whose values order the pool.")] = "icc",
    count: Annotated[int, typer.Option(help="Samples of the best, the middle and the worst.", min=1)] = 12,
    home: HomeOption = None,
) -> None:
    """Write a page of images and captions with the highest, the middle and the lowest values of a method.

    Where the pool has teachers, their best reconstructions and similarities stand below (ICC, Figures 9 and 10).
    """
    ctx = PoolContext.open(settings_from(home), pool)
    table = f"signals/{method}"
    lower_is_better = get_method(method).direction == "lower"
    if not ctx.store.partitions(table):
        raise ValueError(lacks_values(ctx, f"signals.{method}", ()))
    check_new(out)
    parts = chosen_rows(ctx, table, count, lower_is_better=lower_is_better)
    with writing_new(out) as temporary:
        temporary.write_text(page_of(ctx, method, parts), encoding="utf-8")
    notice(f"{sum(rows.height for rows in parts.values())} samples in {out}")


def chosen_rows(ctx: PoolContext, table: str, count: int, *, lower_is_better: bool) -> dict[str, pl.DataFrame]:
    """Best, middle and worst → rows of raw/samples with `value`, best first; no row stands in two of them."""
    values = pl.concat(
        ctx.store.read(table, shard, ["source_row", "value"]).with_columns(shard=pl.lit(shard))
        for shard in ctx.store.partitions(table)
    )
    ordered = values.drop_nulls("value").sort(
        "value", "shard", "source_row", descending=[not lower_is_better, False, False]
    )
    if ordered.is_empty():
        raise ValueError(f"pool {ctx.pool.name}: {table} has no value; nothing can be shown")
    best, left = ordered.head(count), ordered.slice(count)
    worst = left.tail(count)
    left = left.head(left.height - worst.height)
    middle = left.slice(max(0, (left.height - count) // 2), count)
    return {name: _with_samples(ctx, rows) for name, rows in (("best", best), ("middle", middle), ("worst", worst))}


def _with_samples(ctx: PoolContext, rows: pl.DataFrame) -> pl.DataFrame:
    parts = [
        of_shard.join(ctx.store.read(SAMPLES, shard), on="source_row", how="inner", suffix="_of_sample")
        for (shard,), of_shard in rows.partition_by("shard", as_dict=True).items()
    ]
    order = rows.select("shard", "source_row")
    return (
        order.join(pl.concat(parts), on=["shard", "source_row"], how="left", maintain_order="left") if parts else rows
    )


def page_of(ctx: PoolContext, method: str, parts: dict[str, pl.DataFrame]) -> str:
    """The page."""
    taught = _reconstructions(ctx)
    load = ctx.image_loader(few=True)
    blocks = []
    for name, rows in parts.items():
        figures = "".join(
            _figure(row, load, taught.get((row["shard"], row["source_row"]), [])) for row in rows.to_dicts()
        )
        blocks.append(f"<h2>{name}</h2><section>{figures}</section>")
    title = escape(f"{ctx.pool.name} by {method}")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style></head><body><h1>{title}</h1>{''.join(blocks)}</body></html>\n"
    )


def _figure(row: dict[str, Any], load: Any, taught: list[str]) -> str:
    uri, why = thumbnail_uri(load, row, SIDE_PX)
    picture = f'<img src="{uri}" alt="">' if uri else f"<small>no image: {escape(why)}</small>"
    lines = "".join(f"<br><small>{escape(line)}</small>" for line in taught)
    caption = escape(str(row["caption"]))
    return f"<figure>{picture}<figcaption><b>{row['value']:.3f}</b> {caption}{lines}</figcaption></figure>"


def _reconstructions(ctx: PoolContext) -> dict[tuple[str, int], list[str]]:
    """(shard, row) → a line per teacher: its best reconstruction and its similarity. Empty without teachers."""
    lines: dict[tuple[str, int], list[str]] = {}
    columns = ["source_row", "best_reconstruction", "value"]
    for name in teacher_names(ctx) if ctx.distils else ():
        for shard in ctx.store.partitions(f"teachers/{name}"):
            for row, text, value in ctx.store.read(f"teachers/{name}", shard, columns).drop_nulls().iter_rows():
                lines.setdefault((shard, row), []).append(f"{name} {value:.2f}: {text}")
    return lines

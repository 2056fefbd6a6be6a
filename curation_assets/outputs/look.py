"""A first look at a file or folder: a sample of its rows goes through the tables of a pool that does not last."""

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.own_modules import FOLDERS
from curation_assets.core.progress import ProgressReporter
from curation_assets.core.settings import PHOTO_PROFILE, Settings, load_settings, shard_key
from curation_assets.core.table_names import NEAR_DUPLICATES, REGISTERED_SHARDS, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.graph import tables_of, with_upstream
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.flow.table import Table, Tables
from curation_assets.methods import Method, method_names, named_method
from curation_assets.numeric.identity import draw_keys
from curation_assets.selection.policy import Policy
from curation_assets.sources.declaration import DUCKDB_NAMES, Pool, add_pool, save_pool
from curation_assets.sources.download.fetch_shard import MAX_ROWS
from curation_assets.sources.shards import discover_shards, register_shard
from curation_assets.stores.samples import end_without_image

ROWS = 2_000
#: Rows that the dear signals are of: clip_score takes some .05 s of CPU an image (benchmarks/results/look.md).
DEAR_ROWS = 1_000
REGISTERED_ROWS = 50_000  # of a folder of tars no more are opened than hold so many
POOL = "look"

#: What a page shows → the methods that measure it.
SHOWN: Mapping[str, tuple[str, ...]] = {
    "Concreteness": ("icc",),
    "Alignment of image and text": ("clip_score",),
    "Quality of the image": ("image_blur", "image_dark", "image_light", "image_entropy", "image_aspect"),
    "Language": ("english",),
}
CHEAP = frozenset({"icc", "english", *SHOWN["Quality of the image"]})
NO_DEFAULT = (*SHOWN["Quality of the image"], "english")  # a pool runs them where its option `methods` names them


@dataclass
class Sampled(PoolContext):
    """A pool of some rows of its source, which `rows` has by shard."""

    rows: Mapping[str, pl.DataFrame] = field(default_factory=dict)

    def shards(self) -> list[str]:
        """The shards whose rows are given."""
        return sorted(self.rows)


@dataclass(frozen=True)
class Look:
    """What was found of a source."""

    ctx: Sampled
    total: int  # rows of the source
    is_estimate: bool
    judged: int  # rows that the dear signals and the policies are of
    samples: pl.DataFrame  # raw/samples of all rows looked at
    methods: tuple[Method, ...]
    values: Mapping[str, pl.DataFrame]  # method → its table
    policies: tuple[Policy, ...]
    verdicts: Mapping[str, pl.DataFrame]  # policy → its table
    duplicates: pl.DataFrame | None  # fused/duplicates; None for captions only
    urls_left: bool  # its images are addresses of servers, and none was asked

    @property
    def rows(self) -> int:
        """Rows looked at."""
        return self.samples.height


def look_at(
    source: Path,
    home: Path,
    *,
    rows: int = ROWS,
    dear_rows: int = DEAR_ROWS,
    seed: int = 0,
    methods: Sequence[str] = (),
    columns: Mapping[str, str | None] | None = None,
    header: bool = True,
    progress: ProgressReporter,
) -> Look:
    """Run what is quick over at most `rows` rows of a source, drawn by the hash of their ids.

    `home`: an empty folder that may go once the page is written. `dear_rows`: of how many of the rows clip_score,
    `methods` (further ones) and the policies are. Nothing is downloaded. Raises ValueError for a source that no pool
    can be made of, an unknown method, and where not one row can be used.
    """
    settings = replace(load_settings(home), workers=1, devices=(), ray=None, openlineage_url=None)
    further = [named_method(name).name for name in methods]
    if teaching := [name for name in further if named_method(name).stage != "signals"]:
        raise ValueError(
            f"--with takes methods that score samples, got the teacher {teaching[0]}; see `curate methods`"
        )
    declared, pool = _declared(settings, source, columns or {}, header, further)
    drawn, total, is_estimate = _drawn(declared, settings, rows, seed, progress)
    keys = [shard_key(POOL, number) for number in range(2)]
    is_dear = pool.has_images or bool(further)
    judged = min(dear_rows, drawn.height) if is_dear else drawn.height
    parts = {key: part.with_columns(shard=pl.lit(key)) for key, part in
             zip(keys, (drawn[:judged], drawn[judged:]), strict=True) if part.height}  # fmt: skip
    opened = PoolContext.open(settings, POOL)
    # the policies see the first rows alone; what is quick goes on with the others
    first = {keys[0]: parts[keys[0]]}
    ctx = Sampled(opened.settings, opened.pool, opened.store, progress=progress, rows=first)
    tables = _tables(ctx)
    run = [method for method in ctx.methods("signals") if method.name in {*CHEAP, "clip_score", *further}]
    names = {f"signals/{method.name}" for method in run}
    run_with_upstream(ctx, SAMPLES, tables=tables)
    policies = _judging(ctx, tables, names) if (ctx.store.read(SAMPLES, keys[0])["status"] == "kept").any() else []
    if policies:
        run_with_upstream(ctx, *names, *(f"filtered/{policy.name}" for policy in policies), tables=tables)
    ctx = replace(ctx, rows=parts)
    quick = [SAMPLES, *(name for name in names if name.removeprefix("signals/") in CHEAP)]
    quick += [NEAR_DUPLICATES] if NEAR_DUPLICATES in tables else []
    run_with_upstream(ctx, *quick, tables=_tables(ctx))
    stored = {method.name: ctx.store.partitions(f"signals/{method.name}") for method in run}
    return Look(
        ctx,
        total,
        is_estimate,
        judged,
        ctx.store.scan(SAMPLES).collect().sort("shard", "source_row"),
        tuple(method for method in run if stored[method.name]),
        {name: ctx.store.scan(f"signals/{name}").collect() for name, there in stored.items() if there},
        tuple(policies),
        {policy.name: ctx.store.scan(f"filtered/{policy.name}").collect() for policy in policies},
        ctx.store.read(NEAR_DUPLICATES) if NEAR_DUPLICATES in tables else None,
        declared.opens_urls,
    )


def _declared(
    settings: Settings, source: Path, columns: Mapping[str, str | None], header: bool, further: Sequence[str]
) -> tuple[Pool, Pool]:
    """The pool of a source, whose rows and ids are shown; and the one that is run: of addresses the captions alone."""
    declared: dict[str, Any] = {"header": header, "profile": PHOTO_PROFILE, "shard_size": MAX_ROWS}
    pool = of_source = add_pool(settings, POOL, source, columns=columns, **declared)
    if pool.opens_urls:
        pool = replace(pool, columns={**pool.columns, "url": None})
    methods = sorted({*(NO_DEFAULT if pool.has_images else ("english",)), *further})
    options: Any = {"methods": methods, "min_success_rate": 0, "duplicates": pool.has_images}
    pool = replace(pool, options=options)
    save_pool(settings, pool)
    return of_source, pool


def _drawn(
    pool: Pool, settings: Settings, count: int, seed: int, progress: ProgressReporter
) -> tuple[pl.DataFrame, int, bool]:
    """Registered rows of the lowest hashes, numbered anew; all rows of the source, and whether that is an estimate."""
    shards = discover_shards(pool, settings)
    order = [shards[place] for place in np.random.default_rng(seed).permutation(len(shards))]
    frames: list[pl.DataFrame] = []
    with progress.task(f"reading {Path(pool.source).name}", len(order)) as advance:
        for shard in order:
            if sum(frame.height for frame in frames) >= max(count, REGISTERED_ROWS):
                break
            frames.append(register_shard(pool, shard, settings))
            advance(1)
    found = pl.concat(frames) if frames else pl.DataFrame()
    if not found.height:
        raise ValueError(f"{pool.source} holds no rows; expected images with captions, or captions")
    if not any(end_without_image(row) == (None, None) for row in found.iter_rows(named=True)):
        reasons = found["source_reason"].fill_null("empty_caption").value_counts(sort=True).head(5).iter_rows()
        listed = ", ".join(f"{reason} {number:,}" for reason, number in reasons)
        raise ValueError(f"{pool.source}: none of its {found.height:,} rows can be used ({listed}); repair it, or "
                         "look at another file")  # fmt: skip
    hashes = pl.Series("hash", draw_keys(found["sample_id"].to_list(), f"look-{seed}"))
    drawn = found.with_columns(hashes).sort("hash", maintain_order=True).head(count).drop("hash")
    drawn = drawn.with_columns(source_row=pl.int_range(drawn.height, dtype=pl.Int64))
    is_whole = len(frames) == len(order)
    return (
        drawn,
        found.height if is_whole else pool.expected_rows(settings),
        not is_whole and pool.source_kind.has_own_tars,
    )


def _tables(ctx: Sampled) -> dict[str, Table]:
    """The pool's tables, of which the first has the rows that were drawn."""
    tables = tables_of(ctx)
    rows, numbers = ctx.rows, {key: part.height for key, part in ctx.rows.items()}
    drawn = replace(
        tables[REGISTERED_SHARDS],
        compute=lambda ctx, shard: rows[shard],
        config_by_key=lambda ctx, shard: {"drawn": numbers[str(shard)]},
    )
    return {**tables, REGISTERED_SHARDS: drawn}


def _judging(ctx: PoolContext, tables: Tables, signals: Collection[str]) -> list[Policy]:
    """Policies of the pool that rest on no other method than these."""
    methods = {f"signals/{name}" for name in method_names()}
    return [
        policy
        for policy in policies_of(ctx)
        if methods.intersection(with_upstream(tables, [f"filtered/{policy.name}"])) <= set(signals)
    ]


def pool_commands(
    source: Path, columns: Mapping[str, str | None], *, header: bool = True, has_images: bool = True
) -> tuple[list[str], str]:
    """The two commands that make a pool of a source; and the one between them that adds what a pool does not run."""
    name = re.sub(r"[^a-z0-9_]+", "_", source.name.partition(".")[0].lower()).strip("_") or "pool"
    name = f"{name}_pool" if name in {*DUCKDB_NAMES, *FOLDERS} else name
    given = [f"--{ours}-column {shlex.quote(theirs or 'none')}" for ours, theirs in columns.items()]
    path = shlex.quote(str(source.absolute()))
    added = ["curate pool add", name, path, *given, *([] if header else ["--no-header"])]
    options = [f"methods=[{', '.join(NO_DEFAULT if has_images else ('english',))}]"]
    options += ["duplicates=true"] if has_images else []
    more = " ".join(["curate pool set", name, *map(shlex.quote, options)])
    return [" ".join(added), f"curate run {name}"], more

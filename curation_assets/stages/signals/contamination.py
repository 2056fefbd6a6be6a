"""signals/contamination: rows whose image or caption is in a benchmark that the pool's option `decontaminate` names.

Policies leave them out before their first cut (selection/left_out.py). docs/decisions/0073.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from curation_assets.core.table_names import BENCHMARKS, CONTAMINATION, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.table import Needs, Shown, Table
from curation_assets.numeric.near_duplicates import nearest_hashes
from curation_assets.numeric.ngrams import ngram_hashes
from curation_assets.scoring.benchmark_files import (
    benchmark_hashes,
    benchmark_paths,
    bytes_digest,
    pdq_words,
    read_benchmark,
    view_of,
)
from curation_assets.scoring.derived import vectors_of
from curation_assets.scoring.upstream import upstream_reason
from curation_assets.selection.left_out import BENCHMARK
from curation_assets.selection.rows import DROP_REASON
from curation_assets.stores.hash_lists import PDQ_DISTANCE

COPY_ROLE, COPY_COLUMN, PDQ_COLUMN = "copy_descriptor", "copy_descriptor", "pdq_hash"
NEAR_PDQ = 47  # of 256 bits: up to it a person should look
COPY_COSINE, NEAR_COSINE = 0.75, 0.6  # .75: Pizzi et al. 2022, as DuplicateSettings.copy_cosine
PDQ_DIGITS = 64  # fewer: an image too flat for a hash
ROWS_AT_ONCE = 1024

#: How a row was found, the surest first. The unit of `distance` differs.
BYTES, PDQ, COPY, CAPTION = METHODS = ("bytes", "pdq", "copy", "caption")

#: Grain: one row per row of raw/samples.
CONTAMINATION_SCHEMA = pl.Schema(
    {
        "sample_id": pl.String(),
        "source_row": pl.Int64(),
        "value": pl.Float64(),  # 1 where no benchmark has it, 0 where one has; null: not compared, with a reason
        "reason": pl.String(),
        "compared_by": pl.String(),  # pdq, copy, caption: by what some item could be compared with it; '' by nothing
        "benchmark": pl.String(),  # the nearest, of rows that are dropped or near
        "item": pl.String(),
        "method": pl.String(),  # bytes, pdq, copy or caption
        "distance": pl.Float64(),  # bytes: 0; pdq: bits; copy: 1 − cosine; caption: share of its runs not shared
        "view": pl.String(),  # pdq, copy: how the benchmark's image is nearest, a word of `view_of`
        DROP_REASON: pl.String(),  # benchmark:NAME of rows that policies leave out; null for others, near ones too
    }
)


def tables(ctx: PoolContext) -> Iterator[Table]:
    """The benchmarks' items, and per row whether it is one of them, in pools whose option `decontaminate` names any."""
    options = FlowOptions.of(ctx)
    if not options.decontaminate:
        return
    columns = compared_columns(ctx)
    roles = (COPY_ROLE,) if COPY_COLUMN in columns else ()
    yield Table(
        name=BENCHMARKS,
        grain="pool",
        inputs=(),
        version="1",
        description="One row per item (image, row of an array, text) of the benchmarks that the option `decontaminate` "
        "names: hashes and vectors that rows are compared with, nothing that shows or quotes it.",
        compute=lambda ctx: read_benchmarks(ctx, options.decontaminate),
        needs=Needs(roles=roles),
        config=lambda ctx: {
            "benchmarks": benchmark_hashes(options.decontaminate),
            "words": options.decontaminate_words,
            "crops": options.decontaminate_crops,
        },
    )
    yield Table(
        name=CONTAMINATION,
        grain="shard",
        inputs=(SAMPLES, BENCHMARKS, *(f"signals/{name}" for name in columns)),
        version="2",
        description=f"One row per sample: value 0 and the benchmark where its image has the bytes of a benchmark's, a "
        f"PDQ hash within {PDQ_DISTANCE} of 256 bits, an SSCD cosine of at least {COPY_COSINE}, or its caption shares "
        f"a run of words; near ones (up to {NEAR_PDQ} bits, from {NEAR_COSINE}) are named and not dropped.",
        compute=lambda ctx, shard: _of_shard(ctx, shard, options.decontaminate_words),
        config=lambda ctx: {"limits": [PDQ_DISTANCE, NEAR_PDQ, COPY_COSINE, NEAR_COSINE],
                                   "words": options.decontaminate_words},
        continues=SAMPLES,
        shown=Shown(label="in a benchmark"),
    )  # fmt: skip


def compared_columns(ctx: PoolContext) -> list[str]:
    """Columns made of the pool's images that benchmarks are compared by: SSCD where its role is filled."""
    if not FlowOptions.of(ctx).decontaminate or not ctx.pool.has_images:
        return []
    return [PDQ_COLUMN, *([COPY_COLUMN] if COPY_ROLE in ctx.profile.roles else [])]


def read_benchmarks(ctx: PoolContext, given: Sequence[str]) -> pl.DataFrame:
    """The items of benchmarks (`benchmark_files.ITEM_SCHEMA`). Raises as `read_benchmark`, and ValueError for one of
    which this pool has nothing to compare."""
    options = FlowOptions.of(ctx)
    has_descriptor = ctx.pool.has_images and COPY_ROLE in ctx.profile.roles
    descriptor = ctx.engines([COPY_ROLE])[COPY_ROLE] if has_descriptor else None
    parts = []
    for name, path in benchmark_paths(given).items():
        with ctx.progress.task(f"benchmark {name}", 1) as advance:
            items = read_benchmark(
                name,
                path,
                words=options.decontaminate_words,
                with_crops=options.decontaminate_crops,
                descriptor=descriptor,
            )
            advance(1)
        if not ctx.pool.has_images and items["ngrams"].drop_nulls().list.len().sum() == 0:
            raise ValueError(
                f"decontaminate: {path} holds images alone, and pool {ctx.pool.name!r} captions only; take it out"
            )
        parts.append(items)
    return pl.concat(parts)


def _of_shard(ctx: PoolContext, shard: str, words: int) -> pl.DataFrame:
    rows = ctx.store.read(SAMPLES, shard)
    for name in compared_columns(ctx):
        made = ctx.store.read(f"signals/{name}", shard)
        rows = rows.with_columns(made[name], made["reason"].alias(f"{name}_reason"))  # row for row
    return find_in_benchmarks(rows, ctx.store.read(BENCHMARKS), words)


def find_in_benchmarks(rows: pl.DataFrame, items: pl.DataFrame, words: int) -> pl.DataFrame:
    """Where rows are in benchmarks (CONTAMINATION_SCHEMA), in their order.

    `rows`: sample_id, source_row, status, reason, caption, image_sha256, original_sha256, and pdq_hash, copy_descriptor
    where images are compared by them. `items`: as `read_benchmark` has them. A row that is found in several ways has
    the surest one (METHODS); by each way the nearest item counts, the first of equally near ones.
    """
    kept = np.flatnonzero((rows["status"] == "kept").to_numpy())
    of = rows[kept]
    found: dict[int, Match] = {}
    has_texts = items["ngrams"].list.len().sum() > 0
    ngrams = [ngram_hashes(caption or "", words) for caption in of["caption"]] if has_texts else []
    ways = (_by_bytes(of, items), _by_pdq(of, items), _by_vectors(of, items), _by_captions(ngrams, items))
    for drops in (True, False):  # near ones last, where nothing drops the row
        for way in ways:
            found = {row: match for row, match in way.items() if match.drops == drops} | found
    matches = pl.DataFrame(
        [(kept[row], *match) for row, match in sorted(found.items())],
        schema={"row": pl.UInt32, **_MATCH_SCHEMA},
        orient="row",
    )
    names = items.select(pl.int_range(pl.len()).alias("position"), "benchmark", "item")
    compared = _compared_by(of, items, ngrams).with_columns(pl.Series("row", kept, dtype=pl.UInt32))
    return (
        rows.select("sample_id", "source_row", upstream_reason().alias("upstream"))
        .with_row_index("row")
        .join(compared, on="row", how="left", maintain_order="left")
        .join(matches, on="row", how="left", maintain_order="left")
        .join(names, on="position", how="left", maintain_order="left")
        .with_columns(
            pl.when("drops").then(0.0).when(pl.col("compared_by") != "").then(1.0).alias("value"),
            pl.when("drops").then(pl.concat_str(pl.lit(BENCHMARK), "benchmark")).alias(DROP_REASON),
        )
        .with_columns(
            pl.when(pl.col("value").is_null())
            .then(pl.coalesce("upstream", pl.lit("not_applicable:nothing_to_compare")))
            .alias("reason")
        )
        .select(CONTAMINATION_SCHEMA.names())
        .cast(CONTAMINATION_SCHEMA)  # type: ignore[arg-type]
    )


class Match(NamedTuple):
    """How a row is in a benchmark, or near to it."""

    position: int  # of the item
    method: str
    distance: float
    view: str | None
    drops: bool


_MATCH_SCHEMA = {
    "position": pl.Int64, "method": pl.String, "distance": pl.Float64, "view": pl.String, "drops": pl.Boolean,
}  # fmt: skip


def _by_bytes(rows: pl.DataFrame, items: pl.DataFrame) -> dict[int, Match]:
    known: dict[str, int] = {}
    for position, digest in enumerate(items["bytes_digest"]):
        if digest is not None:
            known.setdefault(digest, position)
    matches: dict[int, Match] = {}
    for row, both in enumerate(rows.select("image_sha256", "original_sha256").iter_rows() if known else ()):
        hits = [known[digest] for sha256 in both if sha256 is not None and (digest := bytes_digest(sha256)) in known]
        if hits:
            matches[row] = Match(min(hits), BYTES, 0.0, None, True)
    return matches


def _by_pdq(rows: pl.DataFrame, items: pl.DataFrame) -> dict[int, Match]:
    known = items.select(pl.int_range(pl.len()).alias("position"), "pdq_hashes").drop_nulls().explode("pdq_hashes")
    if PDQ_COLUMN not in rows.columns or known.is_empty():
        return {}
    there = np.flatnonzero((rows[PDQ_COLUMN].str.len_chars() == PDQ_DIGITS).fill_null(False).to_numpy())
    if not len(there):
        return {}
    hashes, of_items = pdq_words(rows[PDQ_COLUMN].gather(there).to_list()), pdq_words(known["pdq_hashes"].to_list())
    nearest, bits = nearest_hashes(hashes, of_items, NEAR_PDQ)
    positions = known["position"].to_numpy()
    numbers = _numbers(positions)
    return {
        int(there[row]): Match(
            int(positions[nearest[row]]),
            PDQ,
            float(bits[row]),
            view_of(int(numbers[nearest[row]])),
            bool(bits[row] <= PDQ_DISTANCE),
        )
        for row in np.flatnonzero(nearest >= 0)
    }


def _numbers(positions: np.ndarray) -> np.ndarray:
    """(M,) sorted positions of items → (M,) which hash or vector of its item each is."""
    first = np.flatnonzero(np.diff(positions, prepend=-1) != 0)
    return np.arange(len(positions)) - np.repeat(first, np.diff(first, append=len(positions)))


def _by_vectors(rows: pl.DataFrame, items: pl.DataFrame) -> dict[int, Match]:
    known = items.select(pl.int_range(pl.len()).alias("position"), "copy_descriptors").drop_nulls()
    known = known.explode("copy_descriptors")
    if COPY_COLUMN not in rows.columns or known.is_empty():
        return {}
    there = np.flatnonzero(rows[COPY_COLUMN].is_not_null().to_numpy())
    vectors, of_items = vectors_of(rows[COPY_COLUMN].gather(there)), vectors_of(known["copy_descriptors"])
    positions = known["position"].to_numpy()
    numbers = _numbers(positions)
    matches: dict[int, Match] = {}
    for start in range(0, len(there), ROWS_AT_ONCE):
        cosines = vectors[start : start + ROWS_AT_ONCE] @ of_items.T  # (n, M)
        best = cosines.argmax(axis=1)
        for row in np.flatnonzero(cosines.max(axis=1) >= NEAR_COSINE):
            cosine, at = float(cosines[row, best[row]]), best[row]
            distance = max(0.0, 1.0 - cosine)
            is_copy = cosine >= COPY_COSINE
            matches[int(there[start + row])] = Match(
                int(positions[at]), COPY, distance, view_of(int(numbers[at])), is_copy
            )
    return matches


def _by_captions(ngrams: Sequence[np.ndarray], items: pl.DataFrame) -> dict[int, Match]:
    """`ngrams`: of each row's caption; none where no item has any."""
    known = (
        items.select(pl.int_range(pl.len()).alias("position"), "ngrams").explode("ngrams").drop_nulls().sort("ngrams")
    )
    of_items, positions = known["ngrams"].to_numpy(), known["position"].to_numpy()
    matches: dict[int, Match] = {}
    for row, own in enumerate(ngrams):
        if not len(own):
            continue
        at = np.minimum(np.searchsorted(of_items, own), len(of_items) - 1)
        shared = of_items[at] == own
        if shared.any():
            matches[row] = Match(int(positions[at[shared]].min()), CAPTION, float(1 - shared.mean()), None, True)
    return matches


def _compared_by(rows: pl.DataFrame, items: pl.DataFrame, ngrams: Sequence[np.ndarray]) -> pl.DataFrame:
    """(N,) compared_by: the ways in which a row and some item have what is compared. The same bytes are no way of their
    own: they find nothing but the very file."""
    no = pl.lit(False)
    has_hash = pl.col(PDQ_COLUMN).str.len_chars() == PDQ_DIGITS if PDQ_COLUMN in rows.columns else no
    has_vector = pl.col(COPY_COLUMN).is_not_null() if COPY_COLUMN in rows.columns else no
    there = {
        PDQ: has_hash if items["pdq_hashes"].count() else no,
        COPY: has_vector if items["copy_descriptors"].count() else no,
        CAPTION: pl.lit(pl.Series([len(own) > 0 for own in ngrams], dtype=pl.Boolean)) if ngrams else no,
    }
    ways = [pl.when(is_there).then(pl.lit(way)) for way, is_there in there.items()]
    return rows.select("source_row", pl.concat_str(*ways, separator=" ", ignore_nulls=True).alias("compared_by")).drop(
        "source_row"
    )


# -- what a release states --------------------------------------------------------------------------------------------


def decontamination_facts(ctx: PoolContext) -> list[dict[str, Any]] | None:
    """What the pool was compared with, an entry per benchmark, and how; None where it names none.

    methods: those that some item of the benchmark has what is needed for. Which rows were compared stands in a column
    of signals/contamination, and of a release's provenance.
    """
    options = FlowOptions.of(ctx)
    if not options.decontaminate:
        return None
    columns = compared_columns(ctx)
    ways = {
        BYTES: ("same bytes", pl.col("bytes_digest").is_not_null() & bool(columns)),
        PDQ: (
            f"PDQ within {PDQ_DISTANCE} of 256 bits",
            pl.col("pdq_hashes").is_not_null() & (PDQ_COLUMN in columns),
        ),
        COPY: (
            f"SSCD cosine of at least {COPY_COSINE}",
            pl.col("copy_descriptors").is_not_null() & (COPY_COLUMN in columns),
        ),
        CAPTION: (f"{options.decontaminate_words} words of the caption in a row", pl.col("ngrams").list.len() > 0),
    }
    has_way = {method: has.fill_null(False).alias(method) for method, (_, has) in ways.items()}
    reason = pl.coalesce("reason", pl.lit("no_image_in_the_pool")).alias("reason")
    items = ctx.store.read(BENCHMARKS).select("benchmark", "benchmark_sha256", reason, *has_way.values())
    facts = []
    for (name,), part in sorted(items.partition_by("benchmark", as_dict=True).items()):
        not_compared = part.filter(~pl.any_horizontal(PDQ, COPY, CAPTION))["reason"].value_counts().sort("reason")
        facts.append(
            {
                "benchmark": name,
                "sha256": part["benchmark_sha256"][0],
                "items": part.height,
                "items_not_compared": dict(not_compared.iter_rows()),
                "methods": {method: limit for method, (limit, _) in ways.items() if part[method].any()},
            }
        )
    return facts

"""What to export: the samples of a subset with their positions, and why those that cannot be exported cannot."""

import hashlib
import itertools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.ledger import Ledger, ledger_parts, ledger_path, read_ledger, recorded_columns, signal_column
from curation_assets.core.table_names import CHOSEN_CAPTION, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import holds_in_words, worths_of
from curation_assets.flow.mixtures import mixture_in_words, stated_mixture
from curation_assets.flow.worth import domain_in_words
from curation_assets.methods import get_method, method_names
from curation_assets.numeric.identity import pack_uids
from curation_assets.numeric.selection import random_ranking
from curation_assets.numeric.spread import spread
from curation_assets.outputs.exports.credits import PROVENANCE_COLUMNS, known_provenance, with_provenance
from curation_assets.outputs.options import OutputsOptions
from curation_assets.selection.judging import reason_kind
from curation_assets.selection.policy import Policy, policy_content
from curation_assets.selection.rows import ROW_KEY, UID, uid_columns
from curation_assets.stores.columns import uid_texts
from curation_assets.stores.denylist import TAKEDOWN, Denylist
from curation_assets.stores.external_sort import RUN_BYTES, ExternalSort, key_ranges, sorted_stretches
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.frame_file import PART_ROWS, FrameFile, in_batches
from curation_assets.stores.parquet import parquet_schema, read_parquet, scan_parquet
from curation_assets.stores.releases import Release
from curation_assets.stores.samples import OWN_ID
from curation_assets.stores.subsets import ID_SUFFIXES, counted_ids, listed_stretches
from curation_assets.stores.web_addresses import hosts_of

#: Columns of raw/samples that exports carry along.
SAMPLE_COLUMNS = (
    "sample_id", "shard", "source_row", "url", "caption", "tar", "member", "width", "height", "original_width",
    "original_height", "image_bytes", "image_sha256", "original_sha256",
)  # fmt: skip
#: Columns of `rows` where captions were chosen; `caption` is the chosen one then.
CHOICE_COLUMNS = ("caption_source", "caption_original")
_NO_SIGNALS = (*SAMPLE_COLUMNS, OWN_ID, *PROVENANCE_COLUMNS, "multiplicity", *CHOICE_COLUMNS)
MISSING_SCHEMA = {"sample_id": pl.String, "multiplicity": pl.Int64, "reason": pl.String}
NOTHING_MISSING = FrameFile([pl.DataFrame(schema=MISSING_SCHEMA)])
NOT_IN_POOL = pl.lit("not_in_pool")  # a reason of it
LOW_BITS = 26  # of ids, by which rows are looked for: 64 MiB
SORT_BYTES = RUN_BYTES // 4  # of each of four orders of samples that are looked for
WANTED_ROWS = 1 << 18  # of samples that are looked for, at once
QUANTILES = (0.05, 0.5, 0.95)
TOP_DOMAINS = 10


@dataclass(frozen=True)
class Subset:
    """A subset of a pool. requested = rows + missing, in samples and in entries alike."""

    ctx: PoolContext
    name: str
    rows: FrameFile  # one row per sample, in source order: SAMPLE_COLUMNS, own_id where the pool has such, what
    # is known of PROVENANCE_COLUMNS, multiplicity (≥ 1), then signals
    missing: FrameFile  # MISSING_SCHEMA, sorted
    source: Path  # the ledger or the file that lists the samples
    source_sha256: str
    ledger: Ledger | None = None  # where a policy chose
    part: str = "train"  # or validation
    split: Mapping[str, int] | None = None  # how it was split, where it was
    release: Release | None = None  # where the ledger is a release's

    @property
    def columns(self) -> list[str]:
        """Of `rows`."""
        return list(self.rows.schema)

    @property
    def signals(self) -> list[str]:
        """Columns of `rows` that hold values of signals."""
        return [name for name in self.columns if name not in _NO_SIGNALS]

    @property
    def provenance(self) -> list[str]:
        """Columns of `rows` on where samples come from."""
        return [name for name in PROVENANCE_COLUMNS if name in self.columns]

    @property
    def entries(self) -> int:
        """Samples, each repeated by its multiplicity."""
        return sum(int(part["multiplicity"].sum()) for part in self.rows.only(["multiplicity"]).parts())

    @property
    def sample_ids(self) -> list[str]:
        """Sorted ids, each repeated by its multiplicity: what DataComp's `.npy` lists. All are in memory."""
        rows = self.rows.only(["sample_id", "multiplicity"]).frame()
        return rows.select(pl.col("sample_id").repeat_by("multiplicity").explode())["sample_id"].sort().to_list()


def find_subset(ctx: PoolContext, name: str) -> Subset:
    """A policy's subset from its ledger, or the samples that a file lists (`stores/subsets.py::read_subset`).

    An id listed m times has multiplicity m.
    Raises ValueError for an empty subset or a malformed file, MissingTableError for a policy without a ledger.
    """
    path = Path(name).expanduser()
    if path.suffix.lower() in ID_SUFFIXES or path.is_file():
        with tempfile.TemporaryDirectory(prefix="ids-", ignore_cleanup_errors=True) as scratch:
            listed = _without_places(listed_stretches(path, Path(scratch)))
            return _located(ctx, path.stem, listed, path, file_sha256(path))
    return _of_ledger(ctx, name, ledger_path(ctx.store, name))


def subset_of_release(ctx: PoolContext, release: Release) -> Subset:
    """The samples of a release that the pool still has. Raises as `find_subset`, ValueError for another pool's
    release, MissingReleaseError for a withdrawn one.
    """
    if release.pool != ctx.pool.name:
        raise ValueError(f"release {release.name!r} is of pool {release.pool!r}, not of {ctx.pool.name!r}")
    return replace(_of_ledger(ctx, release.name, release.ledger), release=release)


def with_chosen_captions(subset: Subset) -> Subset:
    """The subset with the captions of the pool's table of chosen captions (option `caption_choice`).

    A sample without a choice keeps its own. Raises ValueError where the pool has made no choice.
    """
    return replace(subset, rows=FrameFile(choose_captions(subset.ctx, part) for part in subset.rows.parts()))


def choose_captions(ctx: PoolContext, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows (shard, source_row, caption …) with the chosen caption as `caption`, and CHOICE_COLUMNS.

    Raises as `with_chosen_captions`.
    """
    there = ctx.store.partitions(CHOSEN_CAPTION)
    if not there:
        name = ctx.pool.name
        raise ValueError(f"pool {name!r} has chosen no captions; set its option caption_choice: true and run it")
    shards = sorted(set(rows["shard"].unique()) & set(there))
    columns = ["shard", "source_row", "chosen_caption", "caption_source"]
    chosen = ctx.store.scan(CHOSEN_CAPTION, shards or there[:1]).select(columns).collect()
    joined = rows.join(chosen, on=["shard", "source_row"], how="left", maintain_order="left").with_columns(
        pl.coalesce("chosen_caption", "caption").alias("caption"),
        pl.col("caption_source").fill_null("raw"),
        pl.col("caption").alias("caption_original"),
    )
    return joined.select(*rows.columns, *CHOICE_COLUMNS)


def _of_ledger(ctx: PoolContext, name: str, path: Path) -> Subset:
    names = recorded_columns(parquet_schema(path))

    def kept() -> Iterator[pl.DataFrame]:
        for part in ledger_parts(path, [*UID, "shard", "source_row", "verdict", "rank", *names]):
            ledger = replace(part, frame=part.frame.filter(pl.Series(part.is_kept)))
            frame, multiplicity = ledger.frame, pl.Series("multiplicity", ledger.multiplicity)
            yield frame.select(*UID, pl.col("shard").cast(pl.String), "source_row", multiplicity, "rank", *names)

    with tempfile.TemporaryDirectory(prefix="places-", ignore_cleanup_errors=True) as scratch:
        stretches = sorted_stretches(kept(), ROW_KEY, Path(scratch))
        places = (part.select(uid_texts(part["uid_high"], part["uid_low"]), pl.exclude(UID)) for part in stretches)
        ledger = read_ledger(path, ["verdict"], slice(0, 0))
        return _located(ctx, name, places, path, file_sha256(path), ledger)


def subset_of_ids(ctx: PoolContext, sample_ids: Sequence[str], name: str) -> Subset:
    """The subset called `name` of the ids given, each as often as it is listed: a training set, for its tars.

    Its source is named as the `.npy` of these ids would be. Raises ValueError for no ids and for malformed ones.
    """
    packed = pack_uids(sample_ids)
    source = Path(f"{name}.npy")
    return _located(ctx, name, _without_places([packed]), source, hashlib.sha256(packed.tobytes()).hexdigest())


def _without_places(stretches: Iterable[np.ndarray]) -> Iterator[pl.DataFrame]:
    """Sorted u8,u8 with repeats → one row per id with its multiplicity, for `_located`."""
    nowhere = (pl.lit(None, pl.String).alias("shard"), pl.lit(None, pl.Int64).alias("source_row"))
    return (part.select("sample_id", *nowhere, "multiplicity") for part in counted_ids(stretches))


def _located(
    ctx: PoolContext,
    name: str,
    places: Iterable[pl.DataFrame],
    source: Path,
    source_sha256: str,
    ledger: Ledger | None = None,
) -> Subset:
    """Find each sample where it is said to be, else where raw keeps it first; what it does not keep is missing, with
    raw's word for it. What is on the denylist is missing, too, whether it has been purged yet or not: a sample of which
    it has any row, in whatever shard.

    `places`: samples in source order, with shard, source_row (null where they are not known), multiplicity, and their
    signals.
    """
    denied, count = _denied_ids(ctx), 0
    with tempfile.TemporaryDirectory(prefix="rows-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        lost, missing, elsewhere = (
            ExternalSort(by, folder, SORT_BYTES) for by in (["sample_id"], ["sample_id"], ROW_KEY)
        )

        def removed_meanwhile(part: pl.DataFrame) -> None:
            missing.add(part.select("sample_id", "multiplicity", reason=NOT_IN_POOL))

        rows = FrameFile(_found(ctx, denied, places, lost.add))
        wanted = FrameFile(lost.stretches())
        if not rows.height + wanted.height:
            raise ValueError(f"subset {name!r} ({source}) is empty; there is nothing to export")
        for there, absent in _looked_for(ctx, denied, wanted, folder) if wanted.height else ():
            elsewhere.add(there)
            count += there.height
            missing.add(absent)
        if count:
            more = _found(ctx, denied, elsewhere.stretches(), removed_meanwhile)
            both = sorted_stretches(itertools.chain(rows.parts(), more), ROW_KEY, folder)
            rows = FrameFile(both if rows.height else more)
        in_order = FrameFile(itertools.chain(NOTHING_MISSING.parts(), missing.stretches()))
    named = known_provenance(ctx, rows)
    rows = rows.only(column for column in rows.schema if column not in PROVENANCE_COLUMNS or column in named)
    return Subset(ctx, name, rows, in_order, source, source_sha256, ledger)


def _denied_ids(ctx: PoolContext) -> pl.Series:
    """sample_ids of all rows of a pool that the home's denylist has."""
    denylist, ids = Denylist.load(ctx.settings.home), [pl.Series("sample_id", [], pl.String)]
    for shard in ctx.store.partitions(SAMPLES) if denylist else ():
        rows = ctx.store.read(SAMPLES, shard, ["sample_id", "url", "image_sha256", "original_sha256"])
        ids.append(rows.filter(denylist.denied(rows))["sample_id"])
    return pl.concat(ids).unique()


def _found(
    ctx: PoolContext, denied: pl.Series, places: Iterable[pl.DataFrame], lack: Callable[[pl.DataFrame], None]
) -> Iterator[pl.DataFrame]:
    """Rows of samples that raw keeps where they are said to be, part by part, one at least; `lack` takes the others."""
    there = ctx.store.partitions(SAMPLES)
    for number, requested in enumerate(in_batches(places, PART_ROWS)):
        shards = sorted(set(requested["shard"].drop_nulls()) & set(there))
        if number and not shards:
            lack(requested.drop(ROW_KEY))
            continue
        by = [*ROW_KEY, "sample_id"]
        scan = ctx.store.scan(SAMPLES, shards or there[:1])
        matching = scan.join(requested.lazy().select(by), on=by, how="semi") if shards else scan.limit(0)
        samples = matching.sort(ROW_KEY).collect()
        kept = samples.filter(pl.col("status") == "kept", ~pl.col("sample_id").is_in(denied.implode()))
        carried = [*SAMPLE_COLUMNS, *([OWN_ID] if OWN_ID in kept.columns else [])]
        yield with_provenance(ctx, kept.select(carried)).join(
            requested.drop(ROW_KEY), on="sample_id", how="inner", maintain_order="left"
        )
        lack(requested.join(kept, on="sample_id", how="anti").drop(ROW_KEY))


def _looked_for(
    ctx: PoolContext, denied: pl.Series, wanted: FrameFile, folder: Path
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """(samples with the first place where raw keeps them; those that it does not, as MISSING_SCHEMA), part by part.

    `wanted`: samples by id. The pool's rows that may be theirs are sorted by id in `folder`.
    """
    is_wanted, low_half = np.zeros(1 << LOW_BITS, dtype=bool), uid_columns()[1] & ((1 << LOW_BITS) - 1)
    for part in wanted.only(["sample_id"]).parts():
        is_wanted[part.select(low_half).to_series().to_numpy()] = True
    is_denied = pl.col("sample_id").is_in(denied.implode())
    why = pl.when(is_denied).then(pl.lit(f"dropped:{TAKEDOWN}")).otherwise(pl.format("{}:{}", "status", "reason"))
    is_kept = (pl.col("status") == "kept") & ~is_denied
    rows = ExternalSort(["sample_id"], folder, SORT_BYTES)
    for shard in ctx.store.partitions(SAMPLES):
        of_shard = ctx.store.read(SAMPLES, shard, ["sample_id", "source_row", "status", "reason"])
        mine = of_shard.filter(is_wanted[of_shard.select(low_half).to_series().to_numpy()])
        mine = mine.select("sample_id", pl.lit(shard).alias("shard"), "source_row", why.alias("why"), is_kept=is_kept)
        rows.add(mine)
    streams = (in_batches(wanted.parts(), WANTED_ROWS), itertools.chain([mine.clear()], rows.stretches()))
    for samples, theirs in key_ranges(streams, ["sample_id"]):
        ordered = theirs.sort("sample_id", *ROW_KEY)
        first = ordered.unique("sample_id", keep="first", maintain_order=True).select("sample_id", "why")
        kept = ordered.filter("is_kept").unique("sample_id", keep="first", maintain_order=True)
        absent = samples.join(kept, on="sample_id", how="anti").join(first, on="sample_id", how="left")
        there = samples.join(kept.select("sample_id", *ROW_KEY), on="sample_id")
        yield there, absent.select("sample_id", "multiplicity", reason=pl.coalesce("why", NOT_IN_POOL))


def split_subset(subset: Subset, validation: int, seed: int = 0) -> tuple[Subset, Subset]:
    """(To train on, to validate with): exactly `validation` samples are for the second. Rao et al.: 15,000 of 2.015 M.

    Samples of one image stay on one side. Images come in an order that follows from their hash and `seed` alone, and go
    to validation while their samples fit. What is missing is listed with the part to train on. Raises ValueError unless
    both parts get a sample, and where images of many samples leave no way to the count.
    """
    n = subset.rows.height
    if not 0 < validation < n:
        raise ValueError(
            f"validation must be at least 1 and below the {n} samples of {subset.name!r}, got {validation}"
        )
    image = pl.coalesce(pl.col("image_sha256").str.head(32), "sample_id").alias("image")
    chosen, left = list[str](), validation
    with tempfile.TemporaryDirectory(prefix="images-", ignore_cleanup_errors=True) as scratch:
        images = ExternalSort(["rank", "image"], Path(scratch))
        for part in subset.rows.only(["image_sha256", "sample_id"]).parts():
            names = part.select(image)
            images.add(names.with_columns(rank=random_ranking(names["image"].to_list(), seed)))
        counts = (stretch.group_by("image", maintain_order=True).len() for stretch in images.stretches())
        for name, count in itertools.chain.from_iterable(part.iter_rows() for part in counts):
            if count <= left:
                chosen.append(name)
                left -= count
            if not left:
                break
    if left:
        raise ValueError(
            f"the nearest to {validation} samples that whole images of {subset.name!r} give are {validation - left}"
        )
    is_validation = image.is_in(pl.Series(chosen).implode())
    how = {"validation": validation, "train": n - validation, "seed": seed}
    train, validate = (
        FrameFile(part.filter(is_mine) for part in subset.rows.parts()) for is_mine in (~is_validation, is_validation)
    )
    return (
        replace(subset, rows=train, split=how),
        replace(subset, rows=validate, missing=NOTHING_MISSING, part="validation", split=how),
    )


# -- facts ------------------------------------------------------------------------------------------------------------


def subset_facts(subset: Subset) -> dict[str, Any]:
    """All that manifests, cards and Croissant state about a subset, as plain values for JSON."""
    facts: dict[str, Any] = {
        "name": subset.name,
        "pool": subset.ctx.pool.name,
        "pool_kind": subset.ctx.pool.kind,
        "release": subset.release.name if subset.release else None,
        **facts_of_rows(subset.rows),
        "entries": subset.entries,
        "part": subset.part,
        "split": subset.split,
        "missing": missing_counts(subset.missing),
        "chosen_by": {"kind": "file", "path": subset.source.name, "sha256": subset.source_sha256},
        "shards": _shard_versions(subset),
        "signals": [],
        "image_domain": subset.ctx.pool.image_domain,
        "worths": {},
        "worths_on": domain_in_words(subset.ctx.pool.image_domain),
        "holds": holds_in_words(subset.ctx),
        "verdicts": [],
        "models": [],
        "code": [],
    }
    if (feed := OutputsOptions.of(subset.ctx).takedown_feed) is not None:
        facts["takedown_feed"] = feed
    if subset.ledger is not None:
        ledger = subset.ledger
        facts |= policy_facts(ledger, subset.source, subset.source_sha256)
        facts["mixture"] = _mixture_of(subset, ledger.policy)
        if ledger.profile == subset.ctx.profile.name:  # the measured models are those of the verdicts
            facts["worths"] = worths_of(subset.ctx, ledger.policy.references)
    return facts


def _mixture_of(subset: Subset, policy: Policy) -> str:
    """The mixture that the policy ranks by, in words; '' where it ranks by none, or the release did not record it."""
    release = subset.release
    stated = stated_mixture(subset.ctx, policy) if release is None else release.about.get("mixture")
    return mixture_in_words(stated) if stated else ""


def facts_of_rows(rows: FrameFile) -> dict[str, Any]:
    """Those of `subset_facts` that follow from the rows alone: samples, domains, captions. `rows`: url, caption."""
    return {
        "samples": rows.height,
        "domains": _domains(rows),
        "caption_sources": _caption_sources(rows),
        "caption_words": _spread(rows, pl.col("caption").fill_null("").str.count_matches(r"\S+")),
    }


def policy_facts(ledger: Ledger, source: Path, source_sha256: str) -> dict[str, Any]:
    """What the ledger at `source`, with its version tables beside it, states of a subset. Reads column after column."""
    state = (pl.col("verdict").cast(pl.String), reason_kind(pl.col("reason")).alias("reason"))
    counted = scan_parquet(source).group_by(*state).len("rows").collect(engine="streaming")
    return {
        "chosen_by": {
            "kind": "policy",
            "policy": policy_content(ledger.policy),
            "policy_version": ledger.policy.version,
            "profile": ledger.profile,
            "ledger_sha256": source_sha256,
            **{key: value for key, value in ledger.cut.to_dict().items() if key not in ("policy", "policy_version")},
        },
        "signals": [_signal_facts(source, name) for name in recorded_columns(parquet_schema(source))],
        "verdicts": counted.sort("rows", "verdict", "reason", descending=[True, False, False]).to_dicts(),
        **_made_by(source),
    }


def missing_counts(missing: FrameFile) -> dict[str, int]:
    """Reason → samples."""
    counted = missing.only(["reason"]).lazy().group_by("reason").len().collect(engine="streaming").sort("reason")
    return dict(counted.iter_rows())


def _shard_versions(subset: Subset) -> list[dict[str, Any]]:
    """Shards that the subset draws from, with their data versions."""
    counts = subset.rows.only(["shard"]).lazy().group_by("shard").len().collect(engine="streaming")
    counted = dict(counts.sort("shard").iter_rows())
    versions = []
    for shard, count in counted.items():
        manifest = subset.ctx.store.manifest(SAMPLES, shard)
        assert manifest is not None, shard
        versions.append({"shard": shard, "samples": count, "content_sha256": manifest.content_sha256})
    return versions


def _made_by(source: Path) -> dict[str, Any]:
    """Code versions and models of every table upstream of the verdicts, from the ledger's version tables."""
    versions = read_parquet(source.parent / "versions" / "versions.parquet")
    of_rows = scan_parquet(source).select(pl.col("version_id").unique()).collect(engine="streaming").to_series()
    mine = versions.filter(pl.col("version_id").is_in(of_rows.to_list()))
    code = mine.select("table", "code_version", "config_hash").unique().sort("table", "code_version", "config_hash")
    models = (
        mine.select("table", "models")
        .explode("models")
        .drop_nulls("models")
        .unnest("models")
        .unique()
        .sort("table", "address", "weights_sha256")
    )
    return {"code": code.to_dicts(), "models": models.to_dicts()}


def _signal_facts(source: Path, column: str) -> dict[str, Any]:
    """Spread of a signal over the subset and over all judged samples, with its unit where a method declares one."""
    known = {signal_column(f"signals.{name}"): name for name in method_names()}
    method = get_method(known[column]) if column in known else None
    parts = ledger_parts(source, ["verdict", column])
    values = FrameFile(part.frame.select(column, is_kept=part.is_kept) for part in parts)
    return {
        "signal": column,
        "unit": method.unit if method else None,
        "direction": method.direction if method else "higher",
        "source": method.source if method else None,
        "subset": _spread(values, pl.col(column).filter("is_kept")),
        "pool": _spread(values, pl.col(column)),
    }


def _spread(rows: FrameFile, of: pl.Expr) -> dict[str, Any]:
    """Count, mean and QUANTILES of what is not null."""
    value = of.drop_nulls().drop_nans().cast(pl.Float64).alias("value")
    valued = FrameFile(part.select(value) for part in rows.parts())
    if not valued.height:
        return {"count": 0}
    mean, quantiles = spread(lambda: (part["value"].to_numpy() for part in valued.parts()), valued.height, QUANTILES)
    named = {f"p{round(q * 100)}": value for q, value in zip(QUANTILES, quantiles, strict=True)}
    return {"count": valued.height, "mean": mean, **named}


def _caption_sources(rows: FrameFile) -> dict[str, int] | None:
    """Source of the caption → samples; None where nothing was chosen."""
    if "caption_source" not in rows.schema:
        return None
    counted = rows.only(["caption_source"]).lazy().group_by("caption_source").len().collect(engine="streaming")
    return dict(counted.sort("caption_source").iter_rows())


def _domains(rows: FrameFile) -> list[dict[str, Any]]:
    hosts = rows.only(["url"]).lazy().select(hosts_of(pl.col("url")).alias("domain")).drop_nulls()
    counted = hosts.group_by("domain").len("samples").collect(engine="streaming")
    return counted.sort("samples", "domain", descending=[True, False]).head(TOP_DOMAINS).to_dicts()

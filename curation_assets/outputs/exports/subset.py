"""What to export: the samples of a subset with their positions, and why those that cannot be exported cannot."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.ledger import Ledger, recorded_ledger, signal_column
from curation_assets.audit.origin import lineage_of
from curation_assets.audit.release_ledger import release_ledger
from curation_assets.core.table_names import CHOSEN_CAPTION, REGISTERED_SHARDS, SAMPLES
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
from curation_assets.selection.rows import ROW_KEY, UID, looked_up, uid_columns
from curation_assets.stores.denied import denied_rows
from curation_assets.stores.denylist import TAKEDOWN
from curation_assets.stores.file_hash import file_sha256
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.mapped_rows import mapped_rows, slices
from curation_assets.stores.pool_queries import open_whole_pool
from curation_assets.stores.releases import MANIFESTS, Release
from curation_assets.stores.samples import OWN_ID
from curation_assets.stores.subsets import ID_SUFFIXES, counted_ids, listed_samples
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
NOTHING_MISSING = pl.DataFrame(schema=MISSING_SCHEMA)
NOT_IN_POOL = "not_in_pool"  # a reason of it
QUANTILES = (0.05, 0.5, 0.95)
ROWS_AT_ONCE = 1 << 14  # whose texts are read together
TOP_DOMAINS = 10
_MODEL = ("address", "revision", "weights_sha256")
#: Each sample of `wanted` with the row of raw/samples that it is: one that raw kept before one that it did not, the one
#: that a ledger names before another, else the first.
PLACED = f"""
create temp table placed as
select
    wanted.* exclude (named_shard, named_row),
    samples.shard,
    samples.source_row,
    coalesce(samples.status = 'kept', false) and denied.sample_id is null as is_kept,
    case
        when samples.status is null then '{NOT_IN_POOL}'
        when denied.sample_id is not null then 'dropped:{TAKEDOWN}'
        else coalesce(samples.status || ':' || samples.reason, '{NOT_IN_POOL}')
    end as reason
from wanted
left join raw.samples as samples on samples.sample_id = wanted.sample_id
left join denied on denied.sample_id = wanted.sample_id
qualify row_number() over (
    partition by wanted.sample_id
    order by
        samples.status is not distinct from 'kept' desc,
        samples.shard is not distinct from named_shard and samples.source_row is not distinct from named_row desc,
        samples.shard,
        samples.source_row
) = 1
"""


@dataclass(frozen=True)
class Subset:
    """A subset of a pool. requested = rows + missing, in samples and in entries alike."""

    ctx: PoolContext
    name: str
    rows: pl.DataFrame  # one row per sample, in source order: SAMPLE_COLUMNS, own_id where the pool has such, what
    # is known of PROVENANCE_COLUMNS, multiplicity (≥ 1), then signals; may be more than memory holds (`mapped_rows`)
    missing: pl.DataFrame  # MISSING_SCHEMA
    source: Path  # the folder of the ledger or the file that lists the samples
    source_sha256: str
    ledger: Ledger | None = None  # where a policy chose
    manifests: tuple[Manifest, ...] = ()  # of everything behind the ledger
    part: str = "train"  # or validation
    split: Mapping[str, int] | None = None  # how it was split, where it was
    release: Release | None = None  # where the ledger is a release's

    @property
    def signals(self) -> list[str]:
        """Columns of `rows` that hold values of signals."""
        return [name for name in self.rows.columns if name not in _NO_SIGNALS]

    @property
    def provenance(self) -> list[str]:
        """Columns of `rows` on where samples come from."""
        return [name for name in PROVENANCE_COLUMNS if name in self.rows.columns]

    @property
    def entries(self) -> int:
        """Samples, each repeated by its multiplicity."""
        return int(self.rows["multiplicity"].sum())

    @property
    def sample_ids(self) -> list[str]:
        """Sorted ids, each repeated by its multiplicity: what DataComp's `.npy` lists. All are in memory."""
        return self.rows.select(pl.col("sample_id").repeat_by("multiplicity").explode())["sample_id"].sort().to_list()


def find_subset(ctx: PoolContext, name: str) -> Subset:
    """A policy's subset from its ledger, or the samples that a file lists (`stores/subsets.py::packed_ids`).

    An id listed m times has multiplicity m.
    Raises ValueError for an empty subset or a malformed file, MissingTableError for a policy without a ledger.
    """
    path = Path(name).expanduser()
    if path.suffix.lower() in ID_SUFFIXES or path.is_file():
        return _located(ctx, path.stem, _without_places(listed_samples(path)), path, file_sha256(path))
    known: dict[tuple[str, str | None], Manifest] = {}
    ledger = recorded_ledger(ctx.store, name)
    lineage_of(ctx.store, f"filtered/{name}", known=known)
    return _of_ledger(ctx, name, ledger, known.values())


def subset_of_release(ctx: PoolContext, release: Release) -> Subset:
    """The samples of a release that the pool still has. Raises as `find_subset`, ValueError for another pool's
    release, MissingReleaseError for a withdrawn one.
    """
    if release.pool != ctx.pool.name:
        raise ValueError(f"release {release.name!r} is of pool {release.pool!r}, not of {ctx.pool.name!r}")
    ledger = release_ledger(release)
    lines = (release.folder / MANIFESTS).read_text(encoding="utf-8").splitlines()
    return replace(_of_ledger(ctx, release.name, ledger, map(Manifest.from_json, lines)), release=release)


def with_chosen_captions(subset: Subset) -> Subset:
    """The subset with the captions of the pool's table of chosen captions (option `caption_choice`).

    A sample without a choice keeps its own. Raises ValueError where the pool has made no choice.
    """
    return replace(subset, rows=mapped_rows(choose_captions(subset.ctx, part) for part in slices(subset.rows)))


def choose_captions(ctx: PoolContext, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows (shard, source_row, caption …) with the chosen caption as `caption`, and CHOICE_COLUMNS.

    Raises as `with_chosen_captions`.
    """
    if not ctx.store.partitions(CHOSEN_CAPTION):
        name = ctx.pool.name
        raise ValueError(f"pool {name!r} has chosen no captions; set its option caption_choice: true and run it")
    joined = looked_up(ctx.store, rows, CHOSEN_CAPTION, "chosen_caption", "caption_source").with_columns(
        pl.coalesce("chosen_caption", "caption").alias("caption"),
        pl.col("caption_source").fill_null("raw"),
        pl.col("caption").alias("caption_original"),
    )
    return joined.select(*rows.columns, *CHOICE_COLUMNS)


def _of_ledger(ctx: PoolContext, name: str, ledger: Ledger, manifests: Iterable[Manifest]) -> Subset:
    places = (part.select("sample_id", *ROW_KEY, "multiplicity", *ledger.signals)
              for part in ledger.kept(["sample_id", *ROW_KEY, *ledger.signals]))  # fmt: skip
    subset = _located(ctx, name, places, ledger.paths[0].parent, ledger.sha256)
    return replace(subset, ledger=ledger, manifests=tuple(manifests))


def subset_of_ids(ctx: PoolContext, sample_ids: Sequence[str], name: str) -> Subset:
    """The subset called `name` of the ids given, each as often as it is listed: a training set, for its tars.

    Its source is named as the `.npy` of these ids would be. Raises ValueError for no ids and for malformed ones.
    """
    packed = pack_uids(sample_ids)
    source = Path(f"{name}.npy")
    return _located(
        ctx, name, _without_places(counted_ids(packed)), source, hashlib.sha256(packed.tobytes()).hexdigest()
    )


def _without_places(samples: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Samples with their multiplicity, for `_located`."""
    nowhere = (pl.lit(None, pl.String).alias("shard"), pl.lit(None, pl.Int64).alias("source_row"))
    return (part.with_columns(nowhere) for part in samples)


def _located(ctx: PoolContext, name: str, places: Iterable[pl.DataFrame], source: Path, source_sha256: str) -> Subset:
    """Find each sample where it is said to be, else where raw keeps it first; what it does not keep is missing, with
    raw's word for it. What is on the denylist is missing, too, whether it has been purged yet or not: a sample of which
    it has any row, in whatever shard.

    `places`: samples with shard, source_row (null where they are not known), multiplicity, and their signals.
    """
    removed = [NOTHING_MISSING]
    with open_whole_pool(ctx.store, [SAMPLES]) as connection:
        connection.register("denied", _denied_ids(ctx).to_arrow())
        for number, part in enumerate(places):
            named = part.rename({"shard": "named_shard", "source_row": "named_row"})
            connection.register("part", named.to_arrow())
            connection.execute("insert into wanted from part" if number else "create temp table wanted as from part")
        connection.execute(PLACED)

        def placed(columns: str) -> Iterator[pl.DataFrame]:
            rows = connection.sql(f"select {columns}")
            yield pl.DataFrame(rows.limit(0).to_arrow_table())
            yield from map(pl.DataFrame, rows.to_arrow_reader(ROWS_AT_ONCE))

        ordered = placed("* exclude (is_kept, reason) from placed where is_kept order by shard, source_row")
        rows = mapped_rows(_with_samples(ctx, ordered, removed))
        absent = placed(f"{', '.join(MISSING_SCHEMA)} from placed where not is_kept order by sample_id")
        missing = pl.concat([*absent, *removed])
    if not rows.height + missing.height:
        raise ValueError(f"subset {name!r} ({source}) is empty; there is nothing to export")
    known = known_provenance(ctx, rows)
    return Subset(ctx, name, rows.drop({*PROVENANCE_COLUMNS} - known, strict=False), missing, source, source_sha256)


def _denied_ids(ctx: PoolContext) -> pl.DataFrame:
    """sample_ids of all rows of a pool that the home's denylist has."""
    return denied_rows(ctx.store, ctx.denylist).select("sample_id").unique()


def _with_samples(
    ctx: PoolContext, places: Iterable[pl.DataFrame], removed: list[pl.DataFrame]
) -> Iterator[pl.DataFrame]:
    """Rows of samples at their places, part by part; those that were removed since are added to `removed`."""
    there = ctx.store.partitions(SAMPLES)
    for wanted in places:
        shards = sorted(set(wanted["shard"]) & set(there))
        by = [*ROW_KEY, "sample_id"]
        is_kept = pl.col("status") == "kept"
        scan = (
            ctx.store.scan(SAMPLES, shards or there[:1])
            .filter(is_kept)
            .join(wanted.lazy().select(by), on=by, how="semi")
        )
        rows = scan.sort(ROW_KEY).collect()
        carried = [*SAMPLE_COLUMNS, *([OWN_ID] if OWN_ID in rows.columns else [])]
        more = wanted.drop(ROW_KEY)
        removed.append(
            more.join(rows, on="sample_id", how="anti").select("sample_id", "multiplicity", reason=pl.lit(NOT_IN_POOL))
        )
        yield with_provenance(ctx, rows.select(carried)).join(more, on="sample_id", how="inner", maintain_order="left")


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
    images = pl.concat(_ranked_images(part.select(image), seed) for part in slices(subset.rows))
    for high, low, _, count in images.group_by(UID).agg(pl.first("rank"), pl.len()).sort("rank", *UID).iter_rows():
        if count <= left:
            chosen.append(f"{high:016x}{low:016x}")
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
        mapped_rows(part.filter(is_mine) for part in slices(subset.rows)) for is_mine in (~is_validation, is_validation)
    )
    return (
        replace(subset, rows=train, split=how),
        replace(subset, rows=validate, missing=NOTHING_MISSING, part="validation", split=how),
    )


def _ranked_images(names: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Halves of names of images, `image`, and the rank that each is drawn by."""
    return names.select(uid_columns("image")).with_columns(rank=random_ranking(names["image"].to_list(), seed))


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
        facts |= policy_facts(ledger, subset.manifests)
        facts["mixture"] = _mixture_of(subset, ledger.policy)
        if ledger.profile == subset.ctx.profile.name:  # the measured models are those of the verdicts
            facts["worths"] = worths_of(subset.ctx, ledger.policy.references)
    return facts


def _mixture_of(subset: Subset, policy: Policy) -> str:
    """The mixture that the policy ranks by, in words; '' where it ranks by none, or the release did not record it."""
    release = subset.release
    stated = stated_mixture(subset.ctx, policy) if release is None else release.about.get("mixture")
    return mixture_in_words(stated) if stated else ""


def facts_of_rows(rows: pl.DataFrame) -> dict[str, Any]:
    """The `subset_facts` that follow from rows alone: samples, domains, captions. `rows`: url, caption."""
    domains = [(-count, name) for name, count in _counted(rows, hosts_of(pl.col("url"))).items() if name is not None]
    return {
        "samples": rows.height,
        "domains": [{"domain": name, "samples": -less} for less, name in sorted(domains)[:TOP_DOMAINS]],
        "caption_sources": _counted(rows, pl.col("caption_source")) if "caption_source" in rows.columns else None,
        "caption_words": _spread(rows, pl.col("caption").fill_null("").str.count_matches(r"\S+")),
    }


def policy_facts(ledger: Ledger, manifests: Sequence[Manifest]) -> dict[str, Any]:
    """What a ledger states of a subset. `manifests`: of everything behind it, and perhaps of more."""
    state = (pl.col("verdict").cast(pl.String), reason_kind(pl.col("reason")).alias("reason"))
    is_kept = pl.col("verdict").cast(pl.String) == "kept"
    values = mapped_rows(part.select(*ledger.signals, is_kept=is_kept) for part in ledger.parts(ledger.signals))
    return {
        "chosen_by": {
            "kind": "policy",
            "policy": policy_content(ledger.policy),
            "policy_version": ledger.policy.version,
            "profile": ledger.profile,
            "ledger_sha256": ledger.sha256,
            **{key: value for key, value in ledger.cut.to_dict().items() if key not in ("policy", "policy_version")},
        },
        "signals": [_signal_facts(values, name) for name in ledger.signals],
        "verdicts": ledger.counted(*state, of=["verdict", "reason"]).to_dicts(),
        **_made_by([SAMPLES, *ledger.policy.tables], manifests),
    }


def missing_counts(missing: pl.DataFrame) -> dict[str, int]:
    """Reason → samples."""
    return _counted(missing, pl.col("reason"))


def _counted(rows: pl.DataFrame, by: pl.Expr) -> dict[str, int]:
    """Value → rows that have it, sorted."""
    counted = rows.lazy().group_by(by.alias("value")).len().collect(engine="streaming")
    return dict(counted.sort("value").iter_rows())


def _shard_versions(subset: Subset) -> list[dict[str, Any]]:
    """Shards that the subset draws from, with their data versions."""
    versions = []
    for shard, count in _counted(subset.rows, pl.col("shard")).items():
        manifest = subset.ctx.store.manifest(SAMPLES, shard)
        assert manifest is not None, shard
        versions.append({"shard": shard, "samples": count, "content_sha256": manifest.content_sha256})
    return versions


def _made_by(assets: Sequence[str], manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Code versions and models of some tables and of every table upstream of them."""
    inputs: dict[str, set[str]] = {}
    for manifest in manifests:
        inputs.setdefault(manifest.asset, set()).update(read.asset for read in manifest.inputs)
    waiting, behind = list(assets), set[str]()
    while waiting:
        behind.add(name := waiting.pop())
        waiting += inputs.get(name, set()) - behind
    mine = [manifest for manifest in manifests if manifest.asset in behind]
    code = {
        (one.asset, one.code_version, "" if one.asset == REGISTERED_SHARDS else one.config_hash)  # a shard's own
        for one in mine
    }
    models = {(one.asset, *map(model.get, _MODEL)) for one in mine for model in one.models}
    return {
        "code": [dict(zip(("table", "code_version", "config_hash"), one, strict=True)) for one in sorted(code)],
        "models": [dict(zip(("table", *_MODEL), one, strict=True)) for one in sorted(models, key=str)],
    }


def _signal_facts(values: pl.DataFrame, column: str) -> dict[str, Any]:
    """Spread of a signal over the subset and over all judged samples, with its unit where a method declares one.

    `values`: the column, and is_kept."""
    known = {signal_column(f"signals.{name}"): name for name in method_names()}
    method = get_method(known[column]) if column in known else None
    return {
        "signal": column,
        "unit": method.unit if method else None,
        "direction": method.direction if method else "higher",
        "source": method.source if method else None,
        "subset": _spread(values, pl.col(column).filter("is_kept")),
        "pool": _spread(values, pl.col(column)),
    }


def _spread(rows: pl.DataFrame, of: pl.Expr) -> dict[str, Any]:
    """Count, mean and QUANTILES of what is not null."""
    value = of.drop_nulls().drop_nans().cast(pl.Float64).alias("value")
    valued = mapped_rows(part.select(value) for part in slices(rows))
    if not valued.height:
        return {"count": 0}

    def parts() -> Iterator[np.ndarray]:
        return (part["value"].to_numpy() for part in slices(valued))

    mean, quantiles = spread(parts, valued.height, QUANTILES)
    named = {f"p{round(q * 100)}": value for q, value in zip(QUANTILES, quantiles, strict=True)}
    return {"count": valued.height, "mean": mean, **named}

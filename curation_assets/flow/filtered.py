"""filtered: policies applied. One verdict per sample and policy, and the subsets as files that trainers read."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from curation_assets.flow import PoolContext, Table
from curation_assets.flow.duplicates import TABLE as DUPLICATES
from curation_assets.flow.duplicates import duplicate_settings
from curation_assets.flow.fused import recipes
from curation_assets.lineage.ledger import (
    LEDGER,
    check_against_verdicts,
    recorded_signals,
    write_ledger,
    write_versions,
)
from curation_assets.lineage.rows import PoolRows
from curation_assets.lineage.versions import VersionBook
from curation_assets.policies import RANDOM, Policy, apply_policy, load_policies
from curation_assets.stores.atomic import write_text_atomically
from curation_assets.stores.subsets import write_key_list, write_subset_npy, write_subset_parquet


def tables(ctx: PoolContext) -> Iterator[Table]:
    """One verdict table per policy, and the overlap of all."""
    policies = policies_of(ctx)
    for policy in policies:
        yield _policy_table(policy)
    yield Table(
        name="filtered/subsets",
        grain="pool",
        inputs=("raw/samples", *(f"filtered/{policy.name}" for policy in policies)),
        version="1",
        compute_folder=_subsets,
        description=(
            "Per policy: `<policy>.npy` (DataComp's sorted u8,u8 ids), `<policy>.parquet`, and `<policy>.keys.tsv` "
            "(tar and key of every kept sample, to train on the tars as they are)."
        ),
        kinds=("numpy", "parquet"),
    )
    yield Table(
        name="filtered/overlaps",
        grain="pool",
        inputs=tuple(f"filtered/{policy.name}" for policy in policies),
        version="1",
        compute=_overlaps,
        description="One row per pair of policies: kept by each, by both, intersection over union.",
    )
    signals = {one for policy in policies for one in recorded_signals(policy, recipes_of()) if one != RANDOM}
    yield Table(
        name=LEDGER,
        grain="pool",
        inputs=(
            "raw/samples",
            *(f"filtered/{policy.name}" for policy in policies),
            *sorted(reference.replace(".", "/") for reference in signals),
        ),
        version="1",
        compute_folder=_ledger,
        config=lambda ctx, shard: {"profile": ctx.profile.name},
        description=(
            "Per policy one row per sample: every signal, rank, threshold, margin, verdict, reason and the versions "
            "behind them. `curate why` reads it; replaying it gives the subset's `.npy`."
        ),
        kinds=("parquet",),
    )


def recipes_of() -> dict[str, tuple[str, ...]]:
    """Recipe of the fused stage → references of its SQL."""
    return {name: model.references for name, model in recipes().items()}


def policies_of(ctx: PoolContext) -> list[Policy]:
    """The shipped policies with the pool's fraction where its declaration names one, then those saved for the pool.

    A shipped policy that reads a signal which the pool does not run waits until it does, unless the pool names it.
    """
    policies = load_policies()
    saved = load_policies(policies_folder(ctx))
    wanted = ctx.option("policies", None)
    if wanted is not None:
        unknown = sorted(set(wanted) - set(policies) - set(saved))
        if unknown:
            raise ValueError(
                f"pool {ctx.pool.name!r} names unknown policies {unknown}; known: {sorted({*policies, *saved})}"
            )
        policies = {name: policies[name] for name in wanted if name in policies}
    else:
        policies = {name: policy for name, policy in policies.items() if not _waits_for(ctx, policy)}
    fraction = ctx.option("fraction", None)
    shipped = [policy if fraction is None else _with_pool_fraction(policy, fraction) for policy in policies.values()]
    return [*shipped, *(policy for name, policy in saved.items() if name not in policies)]


def _waits_for(ctx: PoolContext, policy: Policy) -> set[str]:
    """Signals (and the duplicates) that the policy reads and the pool does not run."""
    run = {f"signals.{method.name}" for method in ctx.methods("signals")}
    duplicates = DUPLICATES.replace("/", ".")
    optional = {one for one in policy.references if one.startswith("signals.") or one == duplicates}
    return optional - run - ({duplicates} if duplicate_settings(ctx) is not None else set())


def _with_pool_fraction(policy: Policy, fraction: float) -> Policy:
    """A cut by threshold stays one: it is an intersection, and the prefilters before it take the pool's fraction."""
    if policy.fraction is not None:
        return policy.with_fraction(fraction)
    return replace(policy, prefilters=tuple(replace(one, fraction=fraction) for one in policy.prefilters))


def policies_folder(ctx: PoolContext) -> Path:
    """Where `curate diff --save` puts policies of this pool alone: pools/<pool>/, beside the pool's declaration."""
    return ctx.settings.pools_root / ctx.pool.name


def _policy_table(policy: Policy) -> Table:
    inputs = ("raw/samples", *(reference.replace(".", "/") for reference in policy.references))

    def compute(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
        samples = unique_samples(ctx)
        values = {reference: ctx.store.scan(reference.replace(".", "/")).collect() for reference in policy.references}
        result = apply_policy(policy, samples, values)
        # The frozen cut: enough to judge a late shard without moving any other verdict.
        cut_path = ctx.store.root / "cuts" / f"{policy.name}.json"
        cut_path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(cut_path, json.dumps(result.cut.to_dict(), indent=1))
        return result.verdicts

    return Table(
        name=f"filtered/{policy.name}",
        grain="pool",
        inputs=inputs,
        version=policy.version,
        compute=compute,
        continues="raw/samples",
        description=f"One row per sample: kept, dropped or failed by policy {policy.name}. {policy.description}",
    )


def unique_samples(ctx: PoolContext) -> pl.DataFrame:
    """Every row of raw/samples; of a sample that several shards bring, the first row counts and the others are dropped.

    Tables of URLs are searched for duplicates when they are registered, tars can only be once all are read.
    """
    samples = (
        ctx.store.scan("raw/samples")
        .select("sample_id", "shard", "source_row", "caption", "status", "reason")
        .sort("shard", "source_row")
        .collect()
    )
    kept = pl.col("status") == "kept"
    is_repeated = kept & (kept.cast(pl.Int64).cum_sum().over("sample_id") > 1)
    return samples.with_columns(
        pl.when(is_repeated).then(pl.lit("dropped")).otherwise(pl.col("status")).alias("status"),
        pl.when(is_repeated).then(pl.lit("duplicate_across_shards")).otherwise(pl.col("reason")).alias("reason"),
    )


def kept_ids(ctx: PoolContext, policy_name: str) -> list[str]:
    """sample_ids that a policy keeps, sorted."""
    verdicts = ctx.store.read(f"filtered/{policy_name}", columns=["sample_id", "verdict"])
    return verdicts.filter(pl.col("verdict") == "kept")["sample_id"].sort().to_list()


def _subsets(ctx: PoolContext, folder: Path) -> None:
    samples = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()
    samples = samples.sort("shard", "source_row").unique("sample_id", keep="first", maintain_order=True)
    places = {row["sample_id"]: (row["tar"], row["member"]) for row in samples.iter_rows(named=True)}
    for policy in policies_of(ctx):
        kept = kept_ids(ctx, policy.name)
        write_subset_npy(folder / f"{policy.name}.npy", kept)
        write_subset_parquet(folder / f"{policy.name}.parquet", kept)
        keys_by_tar: dict[str, list[str]] = defaultdict(list)
        for sample_id in kept:
            tar, member = places[sample_id]
            if tar is not None:
                keys_by_tar[tar].append(Path(member).stem)
        write_key_list(folder / f"{policy.name}.keys.tsv", keys_by_tar)


def _ledger(ctx: PoolContext, folder: Path) -> None:
    rows, book = PoolRows.read(ctx.store), VersionBook(ctx.store, ctx.profile.name)
    for policy in policies_of(ctx):
        judged = write_ledger(
            rows, policy, folder / f"{policy.name}.parquet", book, recipes=recipes_of(), run_id=ctx.run_id
        )
        check_against_verdicts(judged, rows, ctx.store.read(f"filtered/{policy.name}"))
    write_versions(book, folder)


def _overlaps(ctx: PoolContext, shard: str | None) -> pl.DataFrame:
    kept = {policy.name: set(kept_ids(ctx, policy.name)) for policy in policies_of(ctx)}
    rows = []
    for left, left_ids in kept.items():
        for right, right_ids in kept.items():
            both, either = len(left_ids & right_ids), len(left_ids | right_ids)
            rows.append(
                {
                    "policy": left,
                    "other": right,
                    "kept": len(left_ids),
                    "other_kept": len(right_ids),
                    "both": both,
                    "iou": both / either if either else None,
                }
            )
    return pl.DataFrame(rows, schema_overrides={"iou": pl.Float64})

"""Mixtures: the shares that a recipe of kind mix states for its groups, and those that a policy's set has now."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import fitted_recipes
from curation_assets.selection.fitted import FittedRecipe
from curation_assets.selection.judging import multiplicity
from curation_assets.selection.policy import Policy

STATED, HAD = "stated share", "share"


def mixture_behind(ctx: PoolContext, policy: Policy) -> FittedRecipe | None:
    """The mixture that a policy ranks by, where rows have been judged by it; else None."""
    recipe = next((one for one in fitted_recipes(ctx).values() if one.key == policy.rank_by), None)
    is_mixture = recipe is not None and recipe.kind == "mix" and ctx.store.partitions(f"filtered/{policy.name}")
    return recipe if is_mixture else None


def entries_of_shard(ctx: PoolContext, policy: Policy, recipe: FittedRecipe, shard: str) -> pl.DataFrame:
    """Grain: one row per row of raw/samples: source_row, group, entries (how often it is in the policy's set)."""
    verdicts = ctx.store.read(f"filtered/{policy.name}", shard, ["source_row", "verdict", "value"])
    times = multiplicity(policy, verdicts)
    groups = ctx.store.read(f"fused/{recipe.name}", shard, ["source_row", "group"])
    return verdicts.select("source_row", entries=pl.Series(times)).join(
        groups, on="source_row", how="left", maintain_order="left"
    )


def shares_of(ctx: PoolContext, policy: Policy) -> pl.DataFrame | None:
    """Grain: one row per group of the policy's mixture, the most entries first: group, kept (rows), entries, and both
    shares, STATED (weight of the frozen fit) and HAD (of the entries). None where it ranks by no mixture.

    Rows that came after the fit have no part in what it decided, so that the two may differ; so they do where a group
    has too few rows for its share.
    """
    recipe = mixture_behind(ctx, policy)
    if recipe is None:
        return None
    counted = pl.concat(
        entries_of_shard(ctx, policy, recipe, shard)
        .filter(pl.col("entries") > 0)
        .group_by("group")
        .agg(kept=pl.len(), entries=pl.col("entries").sum())
        for shard in ctx.store.partitions(f"filtered/{policy.name}")
    )
    now = counted.group_by("group").agg(pl.col("kept", "entries").sum())
    fit = ctx.store.read(f"fused/{recipe.name}_fit").select("group", pl.col("weight").alias(STATED))
    shares = fit.join(now, on="group", how="full", coalesce=True).with_columns(
        pl.col("kept", "entries", STATED).fill_null(0)
    )
    return shares.with_columns((pl.col("entries") / pl.col("entries").sum().clip(1)).alias(HAD)).sort(
        "entries", "group", descending=[True, False]
    )


def stated_mixture(ctx: PoolContext, policy: Policy) -> dict[str, Any] | None:
    """As declared, the mixture behind a policy: recipe, by, shares (of sum 1) or alpha, max_epochs; else None."""
    recipe = mixture_behind(ctx, policy)
    if recipe is None:
        return None
    settings: Any = recipe.settings  # of kind mix
    total = sum(settings.shares.values())
    shares = {name: share / total for name, share in settings.shares.items()}
    return {"recipe": recipe.key, "by": settings.by, "shares": shares, "alpha": settings.alpha,
            "max_epochs": settings.max_epochs}  # fmt: skip


def mixture_in_words(stated: Mapping[str, Any]) -> str:
    """A `stated_mixture` as 'a mixture by source, stated shares books 50.0%, web 50.0%, each sample
    at most 4 times'."""
    shares = ", ".join(f"{name} {share:.1%}" for name, share in sorted(stated["shares"].items()))
    weights = f"stated shares {shares}" if shares else f"shares ∝ (rows of the group)^{stated['alpha']}"
    return f"a mixture by {stated['by']}, {weights}, each sample at most {stated['max_epochs']} times"

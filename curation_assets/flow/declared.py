"""What several stages need to know of each other's tables."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from curation_assets.core.table_names import (
    FUSION_WEIGHTS,
    LABELLED_SCORES,
    LABELLED_STUDENT_SCORES,
    NEAR_DUPLICATES,
    reference_of,
)
from curation_assets.core.validation import check_known
from curation_assets.flow.composition import composition_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.sql import SqlModel, recipes
from curation_assets.flow.worth import WEB, Composition, WebWorth, Worth, web_worth_of, worth_of
from curation_assets.methods import all_methods, teachers
from curation_assets.numeric.fusion import FusionWeights
from curation_assets.selection.fitted import FittedRecipe, load_recipes
from curation_assets.selection.policy import Policy, load_policies, shipped_policies
from curation_assets.sources.options import SourceOptions


def teacher_names(ctx: PoolContext) -> tuple[str, ...]:
    """Teachers that the pool runs, in the order of their columns and of the fusion's weights."""
    run = {method.name for method in ctx.methods("teachers")}
    return tuple(method.name for method in teachers() if method.name in run)


def missing_signals(ctx: PoolContext, references: Iterable[str]) -> list[str]:
    """Methods of 'signals.name' references that this pool does not run, those of recipes included."""
    return _missing_signals(references, _signals_run(ctx), fitted_recipes(ctx))


def why_not_run(ctx: PoolContext, references: Iterable[str]) -> str | None:
    """Which signals of `missing_signals` there are, why, and what to do; None for none."""
    missing = missing_signals(ctx, references)
    if not missing:
        return None
    if any(ctx.lacking(all_methods()[name].columns, name) for name in missing):
        return f"{', '.join(missing)}, and the pool has captions only; bring values along (option given_signals)"
    return f"{', '.join(missing)}, which the pool does not run; add it to the pool's option methods"


def _signals_run(ctx: PoolContext) -> set[str]:
    return {method.name for method in ctx.methods("signals")}


def _missing_signals(references: Iterable[str], run: set[str], fitted: Mapping[str, FittedRecipe]) -> list[str]:
    """As `missing_signals`, of a pool that runs these signals and these recipes with a frozen fit."""
    reached = set(references)
    for reference in references:
        reached |= set(recipes()[reference].references) if reference in recipes() else set()
        name = reference.removeprefix("fused.")
        reached |= set(fitted[name].settings.signals) if name in fitted else set()
    names = {referenced.removeprefix("signals.") for referenced in reached if referenced.startswith("signals.")}
    return sorted((names & set(all_methods())) - run)


def fitted_recipes(ctx: PoolContext) -> dict[str, FittedRecipe]:
    """Recipes with a frozen fit that this pool runs, by name.

    A shipped one where the pool's option `recipes` names it (with settings, or {}), or a policy reads it that its
    option `policies` names or that was saved for the pool, or, of default ones, where their signals run; and those in
    the pool's own folder. Raises ValueError for a setting that a recipe lacks.
    """
    options = FlowOptions.of(ctx)
    shipped, own = load_recipes(), load_recipes(policies_folder(ctx) / "recipes")
    saved, named = load_policies(policies_folder(ctx)), options.policies or ()
    applied = [*saved.values(), *(policy for name, policy in shipped_policies().items() if name in named)]
    read = {reference for policy in applied for reference in policy.references}
    valued = _signals_run(ctx) - {method.name for method in ctx.methods_without_values()}
    run = {
        name: recipe
        for name, recipe in shipped.items()
        if name in options.recipes
        or recipe.key in read
        or (recipe.default and not _missing_signals([recipe.key], valued, shipped))
    } | own
    where = f"pool {ctx.pool.name!r}: option recipes"
    return {
        name: recipe.with_settings(given, f"{where}: {name}") if (given := options.recipes.get(name)) else recipe
        for name, recipe in sorted(run.items())
    }


def sql_recipes(ctx: PoolContext) -> list[SqlModel]:
    """Recipes in SQL whose signals this pool runs."""
    run, fitted = _signals_run(ctx), fitted_recipes(ctx)  # once for all: both read the pool's files
    return [recipe for recipe in recipes().values() if not _missing_signals(recipe.references, run, fitted)]


def shown_name(recipe: SqlModel) -> str:
    """A recipe's name beside methods: 'fused NAME' where a method has the same name."""
    return f"fused {recipe.name}" if recipe.name in all_methods() else recipe.name


def made_for() -> dict[str, tuple[str, ...]]:
    """Shown name of every method and recipe → planted kinds of noise that it should tell from clean samples."""
    of_methods = {name: method.made_for for name, method in all_methods().items()}
    return of_methods | {shown_name(recipe): recipe.made_for for recipe in recipes().values()}


def known_limit(name: str, kind: str) -> str | None:
    """Why a method cannot do well here on a kind that it was made for; None where nothing is known to prevent it."""
    return all_methods()[name].known_limits.get(kind) if name in all_methods() else None


def labelled_table(ctx: PoolContext) -> str:
    """The table of rated captions that the fusion weights are fitted on."""
    return LABELLED_SCORES if FlowOptions.of(ctx).fuse_on == "teacher" else LABELLED_STUDENT_SCORES


def read_weights(ctx: PoolContext) -> FusionWeights:
    """The persisted fusion weights."""
    return FusionWeights.from_dict(ctx.store.read(FUSION_WEIGHTS).row(0, named=True))


def policies_of(ctx: PoolContext) -> list[Policy]:
    """The shipped policies, then those saved for the pool. A shipped policy keeps the pool's fraction where its
    declaration names one, else the profile's for that policy, else its own.

    A shipped policy that reads a signal which the pool does not run waits until it does; one that reads a signal which
    means nothing on the pool's images (`left_out`) must be named. Raises ValueError for a policy that the pool names,
    or that was saved for it, and that reads a signal which it does not run.
    """
    options = FlowOptions.of(ctx)
    policies: Mapping[str, Policy] = shipped_policies()
    saved = load_policies(policies_folder(ctx))
    requested = options.policies
    if requested is not None:
        check_known(f"pool {ctx.pool.name!r}: option policies", "policy", requested, {*policies, *saved})
        policies = {name: policies[name] for name in requested if name in policies}
    else:
        policies = {name: policy for name, policy in _applicable(ctx).items() if not _meaningless(ctx, policy)}
    asked_for = [*(saved.values()), *(policies.values() if requested is not None else ())]
    for policy in asked_for:
        if why := why_not_run(ctx, policy.references):
            raise ValueError(f"pool {ctx.pool.name!r}: policy {policy.name!r} reads {why}, or leave the policy out")
    check_known(f"profile {ctx.profile.name!r}: fractions", "policy", ctx.profile.fractions, shipped_policies())
    shipped = []
    for policy in policies.values():
        fraction = options.fraction or ctx.profile.fractions.get(policy.name)
        shipped.append(policy if fraction is None else _with_fraction(policy, fraction))
    return [*shipped, *(policy for name, policy in saved.items() if name not in policies)]


def left_out(ctx: PoolContext) -> list[str]:
    """What a pool like this one runs and this one does not, or in vain, and why: a sentence each.

    Methods that read images, in a pool of captions only, and shipped policies over them; shipped policies over a signal
    that means nothing on the pool's images. Nothing of policies for a pool that names its own.
    """
    notes = []
    by_default = FlowOptions.of(ctx).policies is None
    run, without_values = _signals_run(ctx), {method.name: method for method in ctx.methods_without_values()}
    notes += [
        f"Method {name} gives every row a reason instead of a value: it reads "
        f"{', '.join(ctx.lacking(method.columns, name))}, and the pool has captions only; the option methods names it"
        for name, method in without_values.items()
        if name in run
    ]
    if methods := [name for name in without_values if name not in run]:
        valued = _applicable(ctx)
        policies = [name for name in _applicable(ctx, {*run, *methods}) if name not in valued] if by_default else []
        also = f"; policies {', '.join(policies)}" if policies else ""
        notes.append(
            f"The pool has captions only, so what reads images is left out: methods {', '.join(methods)}{also}"
        )
    for name, policy in (_applicable(ctx) if by_default else {}).items():
        if worths := _meaningless(ctx, policy):
            reasons = "; ".join(f"{worth.reference} is {worth}" for worth in worths)
            again = "A pool's option policies, or another profile, brings it back"
            notes.append(f"Policy {name} is left out: {reasons}. {again}")
    return notes


def worths_of(ctx: PoolContext, references: Iterable[str]) -> dict[str, str]:
    """What each signal is worth on the pool's rows, in words; empty for captions only and for the scene world.

    A world knows its planted truth: `downstream/separation` has the AUCs of its own samples.
    """
    domain = ctx.pool.image_domain
    if domain is None or ctx.pool.is_planted:
        return {}
    if domain == WEB:
        return {worth.reference: str(worth) for worth in web_worths_of(ctx, references)}
    if domain != "photographs":
        return dict.fromkeys(references, "not measured on such images")
    return {reference: str(_worth(ctx, reference)) for reference in references}


def holds_in_words(ctx: PoolContext) -> str | None:
    """Which kinds of images and languages a pool of web pairs holds; None where no table tells, and for other pools."""
    composition = composition_of(ctx) if ctx.pool.image_domain == WEB else None
    return None if composition is None else str(composition)


def web_worths_of(
    ctx: PoolContext, references: Iterable[str], composition: Composition | None = None
) -> list[WebWorth]:
    """What each signal is worth for the kinds of images and the languages of the pool (its tables', unless given); none
    where it is no pool of web pairs."""
    if ctx.pool.image_domain != WEB:
        return []
    composition = composition or composition_of(ctx)
    return [web_worth_of(reference, ctx.profile, composition, _given(ctx)) for reference in references]


def _worth(ctx: PoolContext, reference: str) -> Worth:
    return worth_of(reference, ctx.profile, _given(ctx))


def _given(ctx: PoolContext) -> set[str]:
    return {*FlowOptions.of(ctx).given, *SourceOptions.of(ctx).given_signals}


def _meaningless(ctx: PoolContext, policy: Policy) -> list[Worth]:
    """What the policy reads and is at chance on photographs, where the pool may hold some."""
    if ctx.pool.image_domain not in (WEB, "photographs"):
        return []
    worths = (_worth(ctx, reference) for reference in policy.references)
    return [worth for worth in worths if worth.is_meaningful is False]


def _applicable(ctx: PoolContext, signals: set[str] | None = None) -> dict[str, Policy]:
    """Shipped policies of which the pool runs all that they read: signals with values, fitted recipes, the duplicates.

    `signals`: as if those with values were these.
    """
    run, fitted = signals, fitted_recipes(ctx)
    if run is None:
        run = _signals_run(ctx) - {method.name for method in ctx.methods_without_values()}
    left = {recipe.key for name, recipe in load_recipes().items() if name not in fitted}
    if FlowOptions.of(ctx).duplicates is None:
        left.add(reference_of(NEAR_DUPLICATES))
    return {
        name: policy
        for name, policy in shipped_policies().items()
        if left.isdisjoint(policy.references) and not _missing_signals(policy.references, run, fitted)
    }


def _with_fraction(policy: Policy, fraction: float) -> Policy:
    """A cut by threshold stays one: it is an intersection, and the prefilters before it take the fraction."""
    if policy.fraction is not None:
        return policy.with_fraction(fraction)
    prefilters = (
        prefilter if prefilter.fraction is None else replace(prefilter, fraction=fraction)
        for prefilter in policy.prefilters
    )
    return replace(policy, prefilters=tuple(prefilters))


def policies_folder(ctx: PoolContext) -> Path:
    """Where `curate diff A --save NAME` puts policies of this pool alone: pools/<pool>/, beside its declaration."""
    return ctx.settings.pools_root / ctx.pool.name

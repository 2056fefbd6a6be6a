"""What several stages need to know of each other's tables."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from curation_assets.core.errors import EXPECTED_ERRORS
from curation_assets.core.settings import Settings
from curation_assets.core.table_names import (
    CONTAMINATION,
    FUSION_WEIGHTS,
    LABELLED_SCORES,
    LABELLED_STUDENT_SCORES,
    NEAR_DUPLICATES,
    SAMPLES,
    reference_of,
)
from curation_assets.core.validation import check_known
from curation_assets.flow.composition import composition_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.own_declared import (
    home_fitted,
    home_policies,
    home_recipes,
    pool_fitted,
    pool_recipes,
    saved_policies,
)
from curation_assets.flow.sql import SqlModel, recipes
from curation_assets.flow.worth import (
    WEB,
    Composition,
    WebWorth,
    Worth,
    signals_behind,
    web_worth_of,
    worth_of,
)
from curation_assets.methods import all_methods, get_method, method_names
from curation_assets.numeric.fusion import FusionWeights
from curation_assets.selection.fitted import FittedRecipe, load_recipes
from curation_assets.selection.policy import Policy, shipped_policies
from curation_assets.sources.options import SourceOptions


def teacher_names(ctx: PoolContext) -> tuple[str, ...]:
    """Teachers that the pool runs, in the order of their columns and of the fusion's weights."""
    run = sorted(ctx.methods("teachers"), key=lambda method: (method.teacher_order, method.name))
    return tuple(method.name for method in run)


def missing_signals(ctx: PoolContext, references: Iterable[str]) -> list[str]:
    """Methods of 'signals.name' references that this pool does not run, those of recipes included."""
    return _missing_signals(references, _signals_run(ctx), fitted_recipes(ctx), recipe_models(ctx))


def why_not_run(ctx: PoolContext, references: Iterable[str]) -> str | None:
    """Which signals of `missing_signals` there are, why, and what to do; None for none."""
    missing = missing_signals(ctx, references)
    if not missing:
        return None
    if any(ctx.lacking(get_method(name).columns, name) for name in missing):
        return f"{', '.join(missing)}, and the pool has captions only; bring values along (option given_signals)"
    return f"{', '.join(missing)}, which the pool does not run; add it to the pool's option methods"


def _signals_run(ctx: PoolContext) -> set[str]:
    return {method.name for method in ctx.methods("signals")}


def _signals_valued(ctx: PoolContext) -> set[str]:
    return _signals_run(ctx) - {method.name for method in ctx.methods_without_values()}


def _missing_signals(
    references: Iterable[str], run: set[str], fitted: Mapping[str, FittedRecipe], models: Mapping[str, SqlModel]
) -> list[str]:
    """As `missing_signals`, of a pool that runs these signals, these recipes with a frozen fit, and these in SQL."""
    reached, waiting = set[str](), list(references)
    while waiting:
        reference = waiting.pop()
        if reference in reached:
            continue
        reached.add(reference)
        waiting += models[reference].references if reference in models else ()
        name = reference.removeprefix("fused.")
        waiting += fitted[name].settings.signals if name in fitted else ()
    names = {referenced.removeprefix("signals.") for referenced in reached if referenced.startswith("signals.")}
    return sorted((names & method_names()) - run)


def recipe_models(ctx: PoolContext) -> dict[str, SqlModel]:
    """All recipes in SQL that there are for the pool, by 'fused.name': of the package, of the home, of the pool."""
    own = {**home_recipes(ctx).sound, **pool_recipes(ctx)}
    return {**recipes(), **{model.key: model for model in own.values()}}


def fitted_recipes(ctx: PoolContext) -> dict[str, FittedRecipe]:
    """Recipes with a frozen fit that this pool runs, by name.

    A shipped one, or one of the home, where the pool's option `recipes` names it (with settings, or {}), or a policy
    reads it that its option `policies` names or that was saved for the pool, or, of default ones and of the home's,
    where their signals run; and those in the pool's own folder. Raises ValueError for a setting that a recipe lacks.
    """
    options = FlowOptions.of(ctx)
    shipped, home, own = load_recipes(), home_fitted(ctx), pool_fitted(ctx)
    for of_home in (home, home_recipes(ctx)):
        of_home.check(options.recipes)
    named, known = options.policies or (), {**home_policies(ctx).sound, **shipped_policies()}
    applied = [*saved_policies(ctx).values(), *(policy for name, policy in known.items() if name in named)]
    read = {reference for policy in applied for reference in policy.references}
    valued = _signals_valued(ctx)
    run = {
        name: recipe
        for name, recipe in {**shipped, **home.sound}.items()
        if name in options.recipes
        or recipe.key in read
        or (recipe.default and not _missing_signals([recipe.key], valued, shipped, recipes()))
        or (name in home.sound and not _lacks(ctx, recipe, valued))
    } | own
    where = f"pool {ctx.pool.name!r}: option recipes"
    return {
        name: recipe.with_settings(given, f"{where}: {name}") if (given := options.recipes.get(name)) else recipe
        for name, recipe in sorted(run.items())
    }


def _lacks(ctx: PoolContext, recipe: FittedRecipe, valued: set[str]) -> list[str]:
    """What a recipe of the home needs and the pool has not: signals, columns, models."""
    signals = sorted(set(recipe.settings.signals) - {f"signals.{name}" for name in valued})
    roles = sorted(set(recipe.settings.roles) - set(ctx.profile.roles))
    return [*signals, *ctx.lacking(recipe.settings.columns), *(f"role {role}" for role in roles)]


def sql_recipes(ctx: PoolContext) -> list[SqlModel]:
    """Recipes in SQL whose signals this pool runs; one of the home whose every table it has, or that its option
    `recipes` names; one of the package that a policy or another recipe reads, or that the option names (all of them
    where samples are planted: `downstream/separation` measures them).

    Raises ValueError for a recipe of the pool's own that reads a signal which it does not run.
    """
    run, fitted, models = _signals_run(ctx), fitted_recipes(ctx), recipe_models(ctx)  # once: all read the pool's files
    home, named = home_recipes(ctx), FlowOptions.of(ctx).recipes
    asked_for = [*pool_recipes(ctx).values(), *(recipe for name, recipe in home.sound.items() if name in named)]
    for recipe in asked_for:
        if why := why_not_run(ctx, recipe.references):
            raise ValueError(f"pool {ctx.pool.name!r}: recipe {recipe.name!r} reads {why}, or leave the recipe out")
    shipped = [model for model in recipes().values() if not _missing_signals(model.references, run, fitted, models)]
    if not ctx.pool.is_planted:
        policies = {**shipped_policies(), **home_policies(ctx).sound, **saved_policies(ctx)}
        read = {reference for policy in policies.values() for reference in policy.references}
        read |= {reference for model in models.values() for reference in model.references}
        shipped = [model for model in shipped if model.key in read or model.name in named]
    available = [*shipped, *asked_for]
    waiting = [recipe for name, recipe in home.sound.items() if name not in named]
    while more := [one for one in waiting if not _not_made(ctx, one.references, run, fitted, available)]:
        available += more
        waiting = [recipe for recipe in waiting if recipe not in more]
    return available


def _not_made(
    ctx: PoolContext, references: Iterable[str], run: set[str], fitted: Iterable[str], models: Iterable[SqlModel]
) -> list[str]:
    """Tables that the pool may lack: none of these signals or recipes, nor the samples or their duplicates."""
    signals = {f"signals.{name}" for name in run} | {f"fused.{name}_range" for name in run}
    made = {reference_of(SAMPLES), *signals, *(f"fused.{name}" for name in fitted), *(model.key for model in models)}
    made |= set() if FlowOptions.of(ctx).duplicates is None else {reference_of(NEAR_DUPLICATES)}
    return sorted(set(references) - made)


def shown_name(recipe: SqlModel) -> str:
    """A recipe's name beside methods: 'fused NAME' where a method has the same name."""
    return f"fused {recipe.name}" if recipe.name in method_names() else recipe.name


def made_for(ctx: PoolContext) -> dict[str, tuple[str, ...]]:
    """Shown name of every method and recipe → planted kinds of noise that it should tell from clean samples."""
    run = (method for stage in ("signals", "teachers") for method in ctx.methods(stage))
    of_methods = {method.name: method.made_for for method in (*all_methods().values(), *run)}
    return of_methods | {shown_name(recipe): recipe.made_for for recipe in recipe_models(ctx).values()}


def known_limit(name: str, kind: str) -> str | None:
    """Why a method cannot do well here on a kind that it was made for; None where nothing is known to prevent it."""
    return get_method(name).known_limits.get(kind) if name in method_names() else None


def labelled_table(ctx: PoolContext) -> str:
    """The table of rated captions that the fusion weights are fitted on."""
    return LABELLED_SCORES if FlowOptions.of(ctx).fuse_on == "teacher" else LABELLED_STUDENT_SCORES


def read_weights(ctx: PoolContext) -> FusionWeights:
    """The persisted fusion weights."""
    return FusionWeights.from_dict(ctx.store.read(FUSION_WEIGHTS).row(0, named=True))


def policy_names(settings: Settings, pool: str) -> set[str] | None:
    """Policies that a pool has now; None where its declaration cannot be understood, which a run says."""
    try:
        return {policy.name for policy in policies_of(PoolContext.open(settings, pool))}
    except EXPECTED_ERRORS:
        return None


def policies_of(ctx: PoolContext) -> list[Policy]:
    """The shipped policies, those of the home, then those saved for the pool. A shipped one keeps the pool's fraction
    where its declaration names one, else the profile's for that policy, else its own.

    A policy of the package or the home that reads what the pool does not make waits until it does; a shipped one that
    reads a signal which means nothing on the pool's images (`left_out`) must be named. Raises ValueError for a policy
    that the pool names, or that was saved for it, and that reads a signal which it does not run.
    """
    options = FlowOptions.of(ctx)
    shipped, home, saved = shipped_policies(), home_policies(ctx), saved_policies(ctx)
    requested = options.policies
    if requested is not None:
        home.check(requested)
        where = f"pool {ctx.pool.name!r}: option policies"
        check_known(where, "policy", requested, {*shipped, *home.sound, *saved})
        run = {name: shipped[name] for name in requested if name in shipped}
        of_home = [home.sound[name] for name in requested if name in home.sound]
    else:
        run = {name: policy for name, policy in _applicable(ctx).items() if not _meaningless(ctx, policy)}
        waiting = _waiting(ctx, home.sound)
        of_home = [policy for name, policy in home.sound.items() if not waiting[name]]
    asked_for = [*saved.values(), *((*run.values(), *of_home) if requested is not None else ())]
    for policy in asked_for:
        if why := why_not_run(ctx, policy.references):
            raise ValueError(f"pool {ctx.pool.name!r}: policy {policy.name!r} reads {why}, or leave the policy out")
    check_known(f"profile {ctx.profile.name!r}: fractions", "policy", ctx.profile.fractions, shipped)
    cut = []
    for policy in run.values():
        fraction = options.fraction or ctx.profile.fractions.get(policy.name)
        cut.append(policy if fraction is None else _with_fraction(policy, fraction))
    chosen = [*cut, *of_home, *(policy for name, policy in saved.items() if name not in run)]
    if options.decontaminate:
        return [replace(policy, decontaminate=True) for policy in chosen]
    if unmet := [policy.name for policy in chosen if policy.decontaminate]:
        raise ValueError(
            f"pool {ctx.pool.name!r}: policy {unmet[0]!r} leaves out rows of benchmarks, and the pool names none: set "
            "its option decontaminate"
        )
    return chosen


def _waiting(ctx: PoolContext, policies: Mapping[str, Policy]) -> dict[str, list[str]]:
    """What each policy of the home reads and the pool does not make."""
    if not policies:
        return {}
    valued, fitted, models = _signals_valued(ctx), fitted_recipes(ctx), sql_recipes(ctx)
    decontaminates = bool(FlowOptions.of(ctx).decontaminate)
    return {
        name: [CONTAMINATION]
        if policy.decontaminate and not decontaminates
        else _not_made(ctx, policy.references, valued, fitted, models)
        for name, policy in policies.items()
    }


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
    return [*notes, *_left_out_of_home(ctx)]


def _left_out_of_home(ctx: PoolContext) -> Iterator[str]:
    """Files of the home that cannot be read, and those that wait for what the pool does not make."""
    policies, models, fitted = home_policies(ctx), home_recipes(ctx), home_fitted(ctx)
    for fault in (*policies.faults.values(), *models.faults.values(), *fitted.faults.values()):
        yield f"Left out: {fault}".replace(f"{ctx.settings.home}/", "")
    run_fitted, available = fitted_recipes(ctx), sql_recipes(ctx)
    waits = {
        f"Recipe {name}": _not_made(ctx, model.references, _signals_run(ctx), run_fitted, available)
        for name, model in models.sound.items()
        if model not in available
    }
    for name, recipe in fitted.sound.items():
        waits[f"Recipe {name}"] = [] if name in run_fitted else _lacks(ctx, recipe, _signals_valued(ctx))
    of_policies = _waiting(ctx, policies.sound) if FlowOptions.of(ctx).policies is None else {}
    waits |= {f"Policy {name}": lacking for name, lacking in of_policies.items()}
    for what, lacking in waits.items():
        if lacking:
            yield f"{what} of the home waits: the pool does not make {', '.join(lacking)}"


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
    """What each signal, and beside a recipe what it reads, is worth for the kinds of images and the languages of the
    pool (its tables', unless given); none where it is no pool of web pairs."""
    if ctx.pool.image_domain != WEB:
        return []
    composition = composition or composition_of(ctx)
    shown = dict.fromkeys(one for reference in references for one in (reference, *signals_behind(reference)))
    return [web_worth_of(reference, ctx.profile, composition, _given(ctx)) for reference in shown]


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
        run = _signals_valued(ctx)
    left = {recipe.key for name, recipe in load_recipes().items() if name not in fitted}
    if FlowOptions.of(ctx).duplicates is None:
        left.add(reference_of(NEAR_DUPLICATES))
    return {
        name: policy
        for name, policy in shipped_policies().items()
        if left.isdisjoint(policy.references) and not _missing_signals(policy.references, run, fitted, recipes())
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

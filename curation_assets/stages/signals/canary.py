"""signals/canary and signals/drift: every build of every method scores one frozen set of samples.

Only in pools whose declaration has the option `canary` (path of the set, see `curate drift freeze`; relative to the
home folder). Option `canary_methods`: only these; else every method that reads nothing but caption, image and sizes.
"""

from collections.abc import Iterator
from pathlib import Path

import polars as pl

from curation_assets.core.table_names import CANARY, DRIFT
from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.table import Needs, Shown, Table, TableCheck
from curation_assets.methods import Method
from curation_assets.scoring.canary import (
    CANARY_COLUMNS,
    CANARY_SCORES_SCHEMA,
    Canary,
    build_of,
    drift_table,
    read_accepted,
    score_canary,
)
from curation_assets.stages.signals.options import SignalsOptions
from curation_assets.stores.shard_store import CorruptTableError

CAPTIONER = "captioner"  # writes the captions that methods with generated_captions compare


def tables(ctx: PoolContext) -> Iterator[Table]:
    """Scores of the canary, and their drift from the reference builds; none in pools without one."""
    if not SignalsOptions.of(ctx).canary:
        return
    methods = _methods(ctx)
    yield Table(
        name=CANARY,
        grain="pool",
        inputs=tuple(sorted({student for method in methods for student in ctx.distilled(method.roles)})),
        version="1",
        description=(
            "One row per method, build and canary sample: the frozen set scored by every build so far. A build is "
            "the method's version, settings and models; earlier builds are carried over."
        ),
        compute=_scores,
        needs=Needs(roles=tuple(sorted({role for method in methods for role in _roles(method)})), core=True),
        config=lambda ctx: {
            "canary": _path(ctx),
            "methods": {method.name: [method.version, ctx.method_config(method.name)] for method in _methods(ctx)},
        },
        shown=Shown(kinds=("torch", "polars")),
    )
    yield Table(
        name=DRIFT,
        grain="pool",
        inputs=(CANARY,),
        version="1",
        description=(
            "One row per method and statistic: build in force against reference build (PSI, KS, rank correlation, "
            "keep rate, length slope, share with a value), with bootstrap limits."
        ),
        compute=lambda ctx: drift_table(ctx.store.read(CANARY), read_accepted(ctx.store), fraction=_fraction(ctx)),
        config=lambda ctx: {"accepted": read_accepted(ctx.store), "fraction": _fraction(ctx)},
        shown=Shown(
            checks=(
                TableCheck(
                    "canary_within_limits",
                    "The build in force scores the canary as the reference build does, within bootstrap limits.",
                    violations,
                ),
            )
        ),
    )


def violations(ctx: PoolContext) -> list[str]:
    """What drifted, one sentence each."""
    return drifted(ctx, ctx.store.read(DRIFT))


def drifted(ctx: PoolContext, drift: pl.DataFrame) -> list[str]:
    """Statistics of a drift table that are outside their limits, one sentence each."""
    return [
        f"{row['method']}: {row['statistic']} is {row['value']:.4g}, outside [{row['low']:.4g}, {row['high']:.4g}] "
        f"(build {row['build']} against {row['reference_build']}); if that is intended: "
        f"`curate drift accept {ctx.pool.name} {row['method']}`"
        for row in drift.filter(~pl.col("is_within")).iter_rows(named=True)
    ]


def drift_now(ctx: PoolContext) -> pl.DataFrame:
    """The canary scored anew by the models in force, on this machine and its libraries, against the reference builds.

    What is stored stays as it is. Columns as signals/drift; the build is named '<build>, scored now'.
    """
    canary = Canary.read(_path(ctx))
    now = (_scored(ctx, canary, method, f"{_build(ctx, method)}, scored now") for method in _methods(ctx))
    return drift_table(pl.concat([_earlier(ctx, canary), *now]), read_accepted(ctx.store), fraction=_fraction(ctx))


def _fraction(ctx: PoolContext) -> float:
    options = FlowOptions.of(ctx)
    return 0.25 if options.fraction is None else options.fraction


def _path(ctx: PoolContext) -> Path:
    path = ctx.settings.home / (SignalsOptions.of(ctx).canary or "")
    if not path.is_file():
        raise ValueError(
            f"pool {ctx.pool.name!r}: its option canary names {path}, which is not there; "
            f"`curate drift freeze {ctx.pool.name} --out {path}` makes one"
        )
    return path


def _methods(ctx: PoolContext) -> list[Method]:
    named = SignalsOptions.of(ctx).canary_methods
    known = ctx.methods("signals")
    unknown = sorted(set(named or ()) - {method.name for method in known})
    if unknown:
        raise ValueError(f"pool {ctx.pool.name!r}: canary_methods names {unknown}, which the pool does not run")
    able = [method for method in known if set(method.columns) <= CANARY_COLUMNS]
    unable = sorted({method.name for method in known} & set(named or ()) - {method.name for method in able})
    if unable:
        raise ValueError(f"pool {ctx.pool.name!r}: {unable} read columns that a canary does not have")
    return [method for method in able if named is None or method.name in named]


def _roles(method: Method) -> list[str]:
    return [*method.roles, *([CAPTIONER] if "generated_captions" in method.columns else [])]


def _scores(ctx: PoolContext) -> pl.DataFrame:
    canary = Canary.read(_path(ctx))
    scores = _earlier(ctx, canary)
    for method in _methods(ctx):
        build = _build(ctx, method)
        is_it = (pl.col("method") == method.name) & (pl.col("build") == build)
        if scores.filter(is_it).height:
            scores = scores.with_columns(pl.when(is_it).then(True).otherwise("is_current").alias("is_current"))
        else:
            scores = pl.concat([scores, _scored(ctx, canary, method, build)])
    return scores


def _build(ctx: PoolContext, method: Method) -> str:
    return build_of(method, ctx.identities(_roles(method)), ctx.method_config(method.name))


def _scored(ctx: PoolContext, canary: Canary, method: Method, build: str) -> pl.DataFrame:
    roles = _roles(method)
    return score_canary(canary, method, ctx.engines(roles), build, ctx.identities(roles), ctx.batch_size(roles))


def _earlier(ctx: PoolContext, canary: Canary) -> pl.DataFrame:
    """Scores of earlier builds on this canary, none of them current. Another canary starts a new history."""
    try:
        if ctx.store.manifest(CANARY) is not None:
            stored = ctx.store.read(CANARY)
            return stored.filter(canary_sha256=canary.sha256).with_columns(is_current=pl.lit(False))
    except CorruptTableError:
        pass
    return pl.DataFrame(schema=CANARY_SCORES_SCHEMA)

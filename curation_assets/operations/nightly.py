"""What is looked at every night, pool by pool: files, opt-outs, drift of models, freshness. Each says what it found."""

import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from curation_assets.audit.index import Index, refresh_index
from curation_assets.core.progress import ProgressReporter
from curation_assets.core.settings import Settings
from curation_assets.core.table_names import CANARY, DOWNLOADS, REGISTERED_SHARDS, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import sound_and_broken, tables_of
from curation_assets.operations.opt_out_checks import can_be_checked, check_opt_outs
from curation_assets.operations.planning import REASONS, facts_of, make_plan, trainings_of
from curation_assets.operations.verify import Verified, verify_pool, verify_weights
from curation_assets.stages.signals.canary import drift_now, drifted
from curation_assets.stages.signals.options import SignalsOptions
from curation_assets.stores.shard_store import WHOLE

Part = Literal["files", "opt-outs", "drift", "freshness", "old"]
FROZEN = "frozen: fitted on other rows; `curate refit` fits it again"
PARTS: tuple[Part, ...] = get_args(Part)


@dataclass(frozen=True)
class Findings:
    """What one part found. `problems`: what a person should act on; `rows`: the same and more, as a table."""

    summary: str
    problems: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    wrong: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # table → shard or file → what is wrong

    def to_dict(self) -> dict[str, Any]:
        """For other programs."""
        return {"summary": self.summary, "problems": self.problems, "rows": self.rows}


def look_at_files(ctx: PoolContext, progress: ProgressReporter) -> Findings:
    """Every file against its recorded hash."""
    verified = verify_pool(ctx, tables_of(ctx), progress)
    wrong: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for damage in verified.damages:
        for table in damage.tables or ([REGISTERED_SHARDS] if "source" in damage.kind else []):
            sentence = f"{damage}; {damage.advice}".replace(f"{ctx.settings.home}{os.sep}", "")  # which may move
            wrong[table][_place_of(ctx, damage.path)] = sentence
    return replace(_of_verified(verified), wrong=wrong)


def _place_of(ctx: PoolContext, path: Path) -> str:
    """The shard that a stored file is of; of a whole-pool table 'pool', of others the path."""
    if not path.is_relative_to(ctx.store.root):
        return str(path)
    shard = next((part for part in path.parts if part.startswith("shard=")), None)
    return WHOLE if shard is None else shard.removeprefix("shard=")


def look_at_weights(progress: ProgressReporter) -> Findings:
    """The shipped weights against their pinned hashes."""
    return _of_verified(verify_weights(progress))


def look_at_declarations(settings: Settings) -> Findings:
    """Declarations that cannot be loaded: nothing else looks at these pools."""
    sound, broken = sound_and_broken(settings)
    return Findings(
        f"{len(sound) + len(broken)} pools declared, {len(broken)} cannot be loaded",
        [f"pool {name} cannot be loaded: {why}" for name, why in broken.items()],
        [{"pool": name, "why": why} for name, why in broken.items()],
    )


def _of_verified(verified: Verified) -> Findings:
    return Findings(
        f"{verified.checks} places looked at, {len(verified.damages)} damaged files",
        [f"{damage}; {damage.advice}" for damage in verified.damages],
        [damage.to_dict() for damage in verified.damages],
    )


def look_at_opt_outs(ctx: PoolContext, progress: ProgressReporter) -> Findings:
    """The next downloaded images against robots.txt and the headers that their servers send now."""
    if not can_be_checked(ctx):
        return Findings("no images of this pool were downloaded, or its option opt_out_checks is 0")
    check = check_opt_outs(ctx, progress)
    unanswered = ", ".join(f"{reason} {count}" for reason, count in check.unanswered.items())
    return Findings(
        f"{check.looked_at} images looked at, {len(check.proposed)} may not be used now"
        + (f", {check.withdrawn} may be used again" if check.withdrawn else "")
        + (f"; no answer: {unanswered}" if unanswered else ""),
        [
            f"{item}; `curate takedown add --proposed {ctx.pool.name}` puts it on the denylist"
            for item in check.proposed
        ],
        [vars(item) for item in check.proposed],
        {DOWNLOADS: {str(item): "its owner opted out after the download" for item in check.proposed}},
    )


def look_at_drift(ctx: PoolContext, progress: ProgressReporter) -> Findings:
    """The frozen samples, scored again by the models in force, against the reference builds."""
    if SignalsOptions.of(ctx).canary is None:
        return Findings("this pool has no canary (option `canary`, `curate drift freeze`)")
    if ctx.store.manifest(CANARY) is None:
        return Findings(f"the canary has no scores yet; `curate run {ctx.pool.name}` makes them")
    drift = drift_now(ctx)
    outside, problems = drift.filter(~drift["is_within"]), drifted(ctx, drift)
    return Findings(
        f"{drift.height} statistics of {drift['method'].n_unique()} methods, {outside.height} outside their limits",
        problems,
        outside.to_dicts(),
        {CANARY: dict(zip(outside["method"] + ": " + outside["statistic"], problems, strict=True))},
    )


def look_at_freshness(ctx: PoolContext, progress: ProgressReporter) -> Findings:
    """What `curate plan POOL` calls stale, and frozen fits whose inputs changed. No problem by itself."""
    tables = tables_of(ctx)
    refresh_index(ctx.store, tables)
    facts = facts_of(ctx, tables)
    shards = sorted({*ctx.shards(), *ctx.store.partitions(SAMPLES)})
    plan = make_plan(facts, Index.read(ctx.store.root / "index", shards, trainings_of(facts)))
    rows = [
        {
            "table": row["table"],
            "stale": row["stale"],
            "of": row["partitions"],
            "why": ", ".join(f"{reason} {row[reason]}" for reason in REASONS if row[reason]),
        }
        for row in plan.costs.to_dicts()
        if row["stale"]
    ]
    summary = f"{len(rows)} tables are stale, {len(plan.outdated_fits)} frozen ones were fitted on other rows"
    rows += [{"table": name, "stale": 1, "of": 1, "why": FROZEN} for name in plan.outdated_fits]
    stale = {row["table"]: plan.partitions(row["table"]) for row in plan.costs.to_dicts() if row["stale"]}
    wrong = {name: {key or WHOLE: why for key, why in parts} for name, parts in stale.items()}
    return Findings(summary, [], rows, wrong)


#: In the order in which they are looked at.
LOOKS: Mapping[Part, Callable[[PoolContext, ProgressReporter], Findings]] = {
    "files": look_at_files,
    "opt-outs": look_at_opt_outs,
    "drift": look_at_drift,
    "freshness": look_at_freshness,
}

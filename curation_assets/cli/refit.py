"""curate refit: fit the frozen cuts anew and report which verdicts flip."""

from typing import Annotated, Any

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import (
    HomeOption,
    JsonOption,
    PoolArgument,
    ProfileOption,
    WaitOption,
    notice,
    settings_from,
    show_json,
    show_table,
)
from curation_assets.core.plain_json import number
from curation_assets.core.progress import reporter_for
from curation_assets.core.stages import STAGES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.refit import begin_refit, finish_refit, unfinished, unfreeze
from curation_assets.stores.lease import alone_with_tables, pool_lease

PolicyOption = Annotated[list[str] | None, typer.Option("--policy", help="Only this one (repeat).")]
FitsOption = Annotated[
    bool, typer.Option("--fits", help="Refit length statistics, fusion weights and students too (takes long).")
]


@command("refit", "Pools")
def refit(
    pool: PoolArgument,
    policy: PolicyOption = None,
    fits: FitsOption = False,
    wait: WaitOption = True,
    as_json: JsonOption = False,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Fit the frozen cuts of a pool on what it holds now, and report every flip.

    A refit that was stopped goes on where it was.
    """
    from curation_assets.defs.launch import run_pool

    settings = settings_from(home, profile)
    work, words = settings.work(pool), f"curate refit {pool}"
    with pool_lease(work, words, on_notice=notice, wait=wait):
        ctx = PoolContext.open(settings, pool)
        tables = tables_of(ctx)
        begun = unfinished(ctx)
        if begun is not None:
            notice(f"goes on with the refit of {', '.join(begun.policies)} that was stopped ({begun.folder})")
        with alone_with_tables(work, words, on_notice=notice):
            if begun is None:
                begun = begin_refit(ctx, tables, policy or None, with_fits=fits)
            else:
                unfreeze(ctx, begun)
        # Trained models, and the report that shows them, wait for `curate run`.
        waits = ctx.trains_downstream
        requested = [name for name, table in tables.items() if not (waits and STAGES[table.stage].is_evaluation)]
        run_pool(settings, pool, progress=reporter_for(), tables=requested, on_notice=notice)
        report = finish_refit(ctx, begun)
    if as_json:
        show_json(report)
        return
    _show(report)
    rest = f"; `curate run {pool}` trains on the new subsets and brings the report up to date" if waits else ""
    notice(f"Written to {begun.folder}{rest}.")


def _show(report: dict[str, Any]) -> None:
    rows = []
    for record in report["policies"]:
        cuts = [record[side]["cuts"][-1]["threshold"] for side in ("cut_before", "cut_after")]
        flipped = ", ".join(f"{flip}: {count:,}" for flip, count in record["flips"].items()) or "none"
        thresholds = ("–" if cut is None else f"{number(cut):.6g}" for cut in cuts)
        rows.append((record["policy"], *thresholds, f"{record['kept_before']:,}", f"{record['kept_after']:,}", flipped))
    headings = ("policy", "threshold before", "after", "kept before", "after", "flips")
    show_table(headings, rows, left=("policy", "flips"), title="Verdicts that flipped")

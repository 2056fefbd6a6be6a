"""curate diff: two policies of a pool side by side, or one with another fraction, threshold, signal or prefilter."""

from pathlib import Path
from typing import Annotated

import polars as pl
import typer
from rich.text import Text

from curation_assets.audit.against import AgainstFile, compare_with_file
from curation_assets.audit.diff import (
    Difference,
    WholeDifference,
    find_policy,
    iou_at,
    policy_comparison,
    recorded_difference,
    save_policy,
    what_if,
)
from curation_assets.audit.ledger import recorded_ledger
from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, JsonOption, PoolOption, settings_from, show, show_json, show_table
from curation_assets.cli.what_ifs import (
    FractionOption,
    PrefilterOption,
    RankByOption,
    ThresholdOption,
    prefilters_of,
)
from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import Settings
from curation_assets.core.table_names import SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.own_declared import policies_folder
from curation_assets.numeric.selection import check_fraction
from curation_assets.selection.rows import Pool
from curation_assets.sources.declaration import list_pools
from curation_assets.stores.shard_store import ShardStore

SHOWN_GROUPS = 8  # per dimension; --json has all


LeftArgument = Annotated[str, typer.Argument(metavar="A", help="A policy.")]
RightArgument = Annotated[str | None, typer.Argument(metavar="[B]", help="Another; default: A, for a what-if of it.")]
AtOption = Annotated[str | None, typer.Option("--at", help="Only IoU of both rankings at these shares: .1,.2,.3")]
RecordedOption = Annotated[
    bool, typer.Option("--recorded", help="Only from the recorded ledgers: seconds for a pool of any size.")
]
AgainstOption = Annotated[
    Path | None,
    typer.Option("--against", metavar="FILE", help="Compare A with a file of ids: npy, parquet, csv, txt."),
]
SaveOption = Annotated[str | None, typer.Option("--save", help="Save B as a policy of the pool under this name.")]


@command("diff", "Why, and what if")
def diff(
    left: LeftArgument,
    right: RightArgument = None,
    pool: PoolOption = None,
    fraction: FractionOption = None,
    threshold: ThresholdOption = None,
    at: AtOption = None,
    rank_by: RankByOption = None,
    prefilter: PrefilterOption = None,
    recorded: RecordedOption = False,
    against: AgainstOption = None,
    save: SaveOption = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show what two policies keep apart, or one with another cut or against a file of ids.

    Counts, IoU, shifts, what each signal decides, nearest dropped samples.
    """
    settings = settings_from(home)
    ctx = PoolContext.open(settings, the_pool(settings, pool))
    known = {policy.name: policy for policy in policies_of(ctx)}
    first_policy = find_policy(known, left)
    is_what_if = any(change is not None for change in (at, fraction, threshold, rank_by, prefilter, save))
    if against is not None:
        if right is not None or recorded or is_what_if:
            raise ValueError("--against compares one policy with a file; give A alone, without a what-if")
        compared_with_file = compare_with_file(ctx.store, first_policy, against.expanduser(), reporter_for())
        if as_json:
            show_json(compared_with_file.to_dict())
        else:
            _show_against(compared_with_file)
        return
    if recorded:
        if right is None or is_what_if:
            raise ValueError("--recorded compares two policies as their ledgers have them; give A and B and no what-if")
        first, second = (recorded_ledger(ctx.store, name) for name in (left, str(right)))
        difference = recorded_difference(first, second, ctx.store)
        if as_json:
            show_json(difference.to_dict())
        else:
            _show_verdicts(difference, "as their ledgers have them, whatever the pool is now")
        return
    if at is not None:
        other = find_policy(known, right or left)
        table = iou_at(Pool(ctx.store, reporter_for()), first_policy, other, _shares(at))
        if as_json:
            show_json(table.to_dicts())
        else:
            print_table(f"IoU of {left} and {right or left}", table)
        return
    other = what_if(
        find_policy(known, right or left),
        fraction=fraction,
        threshold=threshold,
        rank_by=rank_by,
        prefilters=None if not prefilter else prefilters_of(prefilter),
    )
    progress = reporter_for()
    compared = policy_comparison(ctx.store, first_policy, other, progress)
    path = save_policy(policies_folder(ctx), other, save, f"Saved what-if of {right or left}.") if save else None
    if as_json:
        origin = {"left": compared.left.origin, "right": compared.right.origin}
        show_json({**compared.whole().to_dict(), "origin": origin})
        return
    _show_verdicts(
        compared.verdicts, f"{first_policy.name}: {compared.left.origin}; {other.name}: {compared.right.origin}"
    )
    with progress.task("counting groups of samples", compared.shards) as advance:
        difference = compared.whole(advance)
    _show_shifts(difference)
    if path is not None:
        show()
        show(f"Saved {path}; `curate run {ctx.pool.name}` applies it.")


def _iou(difference: AgainstFile | Difference) -> str:
    overlap, chance = difference.overlap, difference.overlap.chance_iou(difference.judged)
    return "undefined: both are empty" if overlap.iou is None else f"{overlap.iou:.4f} (by chance {chance or 0:.4f})"


def _show_against(difference: AgainstFile) -> None:
    overlap = difference.overlap
    show(Text.assemble((difference.policy, "bold"), " against ", (difference.file, "bold")))
    show(
        f"  {difference.judged:,} judged samples; kept {overlap.left:,}, listed here {overlap.right:,}; both "
        f"{overlap.both:,}, only {difference.policy} {overlap.only_left:,}, only the file {overlap.only_right:,}; "
        f"IoU {_iou(difference)}"
    )
    show(f"  the file lists {difference.listed:,} samples, {difference.not_in_pool:,} of them not in this pool")
    show(f"  {difference.policy}: {difference.origin}")
    if difference.reasons.height:
        print_table("Listed and not kept", difference.reasons)


def _shares(text: str) -> list[float]:
    """Numbers between commas. Raises ValueError for anything else, or a share outside (0, 1]."""
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"--at takes shares such as .1,.2,.3, got {text!r}") from error
    for share in shares:
        check_fraction(share)
    return shares


def the_pool(settings: Settings, name: str | None) -> str:
    """The requested pool, or the only one that has samples. Raises ValueError that lists the choices."""
    if name is not None:
        return name
    ran = [pool_name for pool_name in list_pools(settings) if ShardStore(settings.work(pool_name)).partitions(SAMPLES)]
    if len(ran) != 1:
        raise ValueError(f"give --pool: {', '.join(ran)}" if ran else "no pool has run yet; `curate run POOL` first")
    return ran[0]


def _show_verdicts(difference: Difference, origin: str) -> None:
    overlap, left, right = difference.overlap, difference.left.name, difference.right.name
    show(Text.assemble((left, "bold"), " against ", (right, "bold"), f", {difference.judged:,} judged samples"))
    show(
        f"  kept {overlap.left:,} and {overlap.right:,}; both {overlap.both:,}, only {left} {overlap.only_left:,}, "
        f"only {right} {overlap.only_right:,}; IoU {_iou(difference)}"
    )
    show(f"  {origin}")
    print_table("Verdicts", difference.transitions.rename({"left_verdict": left, "right_verdict": f"{right} "}))
    if difference.nearest.height:
        print_table("Nearest dropped", difference.nearest.drop("url", "decided_by"))


def _show_shifts(difference: WholeDifference) -> None:
    for (dimension,), part in difference.shifts.group_by("dimension", maintain_order=True):
        shown = part.head(SHOWN_GROUPS).select(
            pl.col("group").alias(str(dimension)),
            "pool", pl.col("left").alias(difference.left.name), pl.col("right").alias(f"{difference.right.name} "),
            (pl.col("change") * 100).round(2).alias("change of share, points"),
        )  # fmt: skip
        print_table(f"By {dimension}", shown)
    if difference.leave_one_out.height:
        print_table("Without one signal", difference.leave_one_out)


def print_table(title: str, frame: pl.DataFrame) -> None:
    names = [name.strip() for name in frame.columns]
    left = [name.strip() for name, dtype in frame.schema.items() if not dtype.is_numeric()]
    show()
    show_table(names, ([_cell(value) for value in row] for row in frame.iter_rows()), left=left, title=title)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)

"""curate release: subsets under names that never change; their folders can be checked by anyone who has them."""

from dataclasses import asdict
from typing import Annotated, Any

import polars as pl
import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import (
    HomeOption,
    JsonOption,
    PoolOption,
    ProfileOption,
    notice,
    settings_from,
    show,
    show_json,
    show_table,
    warn,
)
from curation_assets.cli.diff import the_pool
from curation_assets.core.errors import few
from curation_assets.core.table_names import SAMPLES
from curation_assets.stores.lease import pool_lease
from curation_assets.stores.releases import (
    Release,
    find_release,
    find_release_folder,
    list_releases,
    read_release,
    release_folder,
)
from curation_assets.stores.shard_store import ShardStore

SHOWN_GROUPS = 8  # per dimension; --json has all
PoolOfRelease = Annotated[str | None, typer.Option("--pool", help="Needed when two pools have one of that name.")]
ReleaseArgument = Annotated[str, typer.Argument(metavar="RELEASE", help="Its name or folder.")]
WITHDRAWN = 3  # exit status of verify


@command("release create", "Subsets")
def create(
    subset: Annotated[str, typer.Argument(metavar="SUBSET", help="A policy.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="A new name, such as 2026-11 or icc-v1.")],
    pool: PoolOption = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Freeze a subset under a name that never changes.

    A folder with ids, ledger, cuts, manifests, models and a card, which anyone can check. Stale tables are refused. The
    same command again, over a pool that did not change, finds it made.
    """
    from curation_assets.defs.releases import record_releases  # Dagster takes seconds to import
    from curation_assets.flow.context import PoolContext
    from curation_assets.flow.frozen import frozen_notes
    from curation_assets.flow.graph import tables_of
    from curation_assets.operations.releases import create_release

    settings = settings_from(home, profile)
    ctx = PoolContext.open(settings, the_pool(settings, pool))
    with pool_lease(settings.work(ctx.pool.name), "curate release create", on_notice=notice):
        is_there = release_folder(settings.home, ctx.pool.name, name).exists()
        release = create_release(ctx, tables_of(ctx), subset, name)
        record_releases(settings, ctx.pool.name)
    if is_there:
        notice(f"release {name!r} was made before, of the same tables: nothing is written")
    for sentence in frozen_notes(ctx):
        if sentence.startswith(f"{subset}: "):
            notice(sentence)
    waiting = set(ctx.shards()) - set(ctx.store.partitions(SAMPLES))
    if waiting:
        names = few(sorted(waiting), 5)
        warn(f"{len(waiting)} shards of the pool's source are not computed yet and so not in it: {names}")
    if as_json:
        show_json(_content(release))
        return
    _show(release)


@command("release list", "Subsets")
def list_all(pool: PoolOfRelease = None, as_json: JsonOption = False, home: HomeOption = None) -> None:
    """List the releases, oldest first."""
    releases = list_releases(settings_from(home).home, pool)
    if as_json:
        show_json([_content(release) for release in releases])
        return
    if not releases:
        notice("no releases; make one with `curate release create SUBSET NAME`")
        return
    rows = [
        (
            release.pool, release.name, release.subset, f"{release.counts['kept']:,}", f"{release.counts['rows']:,}",
            release.created_at[:19], release.previous or "–",
            f"withdrawn, use {release.withdrawn.next}" if release.withdrawn else "in force",
        )
        for release in releases
    ]  # fmt: skip
    headings = ("pool", "release", "subset", "kept", "rows", "made (UTC)", "before it", "state")
    show_table(headings, rows, left=("pool", "release", "subset", "made (UTC)", "before it", "state"))


@command("release show", "Subsets")
def show_release(
    name: ReleaseArgument, pool: PoolOfRelease = None, as_json: JsonOption = False, home: HomeOption = None
) -> None:
    """Show what a release holds, what made it, and its hash."""
    release = find_release(settings_from(home).home, name, pool)
    if as_json:
        show_json(_content(release))
        return
    _show(release)
    models = [(model["table"], model["address"], (model["weights_sha256"] or "–")[:16]) for model in release.models]
    if models:
        show()
        show_table(("table", "model", "weights sha256"), models, left=3, title="Models behind it")


@command("release diff", "Subsets")
def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="A release: its name or folder.")],
    right: Annotated[str, typer.Argument(metavar="B", help="Another, such as a later one.")],
    pool: PoolOfRelease = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show which samples a release has that another has not, and why.

    By reason, domain, language and caption length, with sample captions where the pool is here.
    """
    from curation_assets.audit.release_diff import compare_releases
    from curation_assets.core.progress import reporter_for

    settings = settings_from(home)
    first, second = (find_release(settings.home, name, pool) for name in (left, right))
    store = ShardStore(settings.work(second.pool)) if first.pool == second.pool else None
    shards = 0 if store is None else len(store.partitions(SAMPLES))
    progress = reporter_for()
    with progress.task("counting groups of samples", shards) as advance:
        difference = compare_releases(first, second, store, on_progress=advance, progress=progress)
    if as_json:
        show_json(difference.to_dict())
        return
    overlap = difference.overlap
    policy = "one policy" if first.policy_version == second.policy_version else "different policies"
    left, right = first.name, second.name
    show(
        f"{left} has {overlap.left:,} samples, {right} {overlap.right:,}; both {overlap.both:,}, "
        f"in {overlap.only_right:,}, out {overlap.only_left:,}; {policy}, "
        f"ledgers of {first.counts['rows']:,} and {second.counts['rows']:,} rows"
    )
    _print("Cuts", _cuts(difference.cuts, left, right))
    _print("Why the other has them not", difference.reasons)
    _print("Models behind one alone", difference.models)
    if difference.groups is None:
        notice("the pool is not here: no domains, lengths and captions")
    else:
        for (dimension,), part in difference.groups.group_by("dimension", maintain_order=True):
            largest = part.sort(pl.col("in") + pl.col("out"), descending=True).head(SHOWN_GROUPS)
            _print(f"By {dimension}", largest.drop("dimension"))
    _print("Samples", difference.examples)


@command("release verify", "Subsets")
def verify(
    name: Annotated[
        str, typer.Argument(metavar="RELEASE", help="Its name, or its folder, here or copied from elsewhere.")
    ],
    pool: PoolOfRelease = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Check a release from its folder alone; exit 1 if anything is wrong, 3 if it was withdrawn.

    Hashes of all files, no file more or less, and replaying the ledger gives exactly the ids.
    """
    from curation_assets.operations.releases import verify_release

    folder = find_release_folder(settings_from(home).home, name, pool)
    problems = verify_release(folder)
    release = None if problems else read_release(folder)
    withdrawn = None if release is None else release.withdrawn
    if as_json:
        show_json(
            {"folder": str(folder), "problems": problems, "withdrawn": None if withdrawn is None else asdict(withdrawn)}
        )
    if release is None:
        raise ValueError(f"{folder} is not as it was released:\n" + "\n".join(f"  {line}" for line in problems))
    if withdrawn is not None:
        warn(f"{release.name}: withdrawn on {withdrawn.at} ({withdrawn.reason}), see {withdrawn.next}")
        raise typer.Exit(WITHDRAWN)
    if not as_json:
        show(
            f"{release.name}: {len(release.files)} files, {release.counts['kept']:,} samples; all as released, "
            f"sha256 {release.sha256}"
        )


def _content(release: Release) -> dict[str, Any]:
    import json

    return {**json.loads(release.to_text()), "folder": str(release.folder)}


def _show(release: Release) -> None:
    counts = release.counts
    show(f"{release.name}: {counts['kept']:,} samples of {counts['rows']:,} rows of pool {release.pool}")
    show(f"  kept by policy {release.subset} ({release.policy_version[:12]}), profile {release.profile}")
    show(f"  made {release.created_at} by {release.software}; before it: {release.previous or '–'}")
    if release.left_out:
        show("  not listed: " + ", ".join(f"{rows:,} × {reason}" for reason, rows in release.left_out.items()))
    if release.withdrawn is not None:
        withdrawn = release.withdrawn
        warn(
            f"withdrawn at {withdrawn.at} ({withdrawn.reason}, {withdrawn.kept:,} of its samples; certificate "
            f"{withdrawn.certificate or 'none'}); use {withdrawn.next}"
        )
    show(f"  sha256 {release.sha256}")
    show(f"  {release.folder}")


def _cuts(cuts: Any, left: str, right: str) -> pl.DataFrame:
    rows = [
        {"release": name, "rank_by": cut.rank_by, "threshold": cut.threshold, "fitted on": cuts[side].pool_size}
        for side, name in (("left", left), ("right", right))
        for cut in cuts[side].cuts
    ]
    return pl.DataFrame(rows)


def _print(title: str, frame: pl.DataFrame) -> None:
    from curation_assets.cli.diff import print_table

    if frame.height:
        print_table(title, frame)

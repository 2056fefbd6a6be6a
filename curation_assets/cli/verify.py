"""curate verify: whether what lies on the disk is what was written, and bringing it back where it is not."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import (
    HomeOption,
    JsonOption,
    ProfileOption,
    each_pool,
    notice,
    settings_from,
    show,
    show_json,
    show_table,
    warn,
)
from curation_assets.cli.release import verify as verify_release
from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import Settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.nightly import LOOKS, PARTS, Findings, look_at_weights
from curation_assets.operations.retention import Removed
from curation_assets.operations.verify import (
    DERIVED,
    Verified,
    remake_derived,
    unfinished_repair,
    verify_pool,
    verify_weights,
)
from curation_assets.sources.declaration import list_pools
from curation_assets.stores.damage import Damage
from curation_assets.stores.releases import is_release

SHOWN_DIGITS = 12  # of a hash; --json has all
WEIGHTS = "weights"  # what is looked at beside the pools


@command("verify", "Health")
def verify(
    pool: Annotated[
        str | None,
        typer.Argument(
            help="A declared pool, or a release (its name or folder); without it all pools and the shipped weights."
        ),
    ] = None,
    is_repaired: Annotated[
        bool, typer.Option("--repair", help="Remove damaged files and make them again; sources cannot be repaired.")
    ] = False,
    is_nightly: Annotated[bool, typer.Option("--nightly", help="Do all that the nightly schedule does, now.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", help=f"Only these parts of it (repeat): {', '.join(PARTS)} (which removes what is old)."
        ),
    ] = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Read every file again and compare it with its recorded sha256; repair.

    Exit status 1 when a file is damaged, and after --repair when one still is. --nightly and --only look at more: at
    opt-outs that came after the download, drift of models, and what is stale; and remove what is old.
    """
    if is_nightly or only:
        if is_repaired:
            raise ValueError("--repair cannot be given with --nightly or --only; run it by itself")
        unknown = sorted(set(only or ()) - set(PARTS))
        if unknown:
            raise ValueError(f"--only takes {', '.join(PARTS)}, got {', '.join(unknown)}")
        look_as_at_night(settings_from(home, profile), pool, only or PARTS, as_json)
        return
    settings = settings_from(home, profile)
    if pool is not None and pool not in list_pools(settings) and is_release(settings.home, pool):
        verify_release(pool, as_json=as_json, home=home)
        return
    remaining: dict[str, list[Damage]] = {}
    checks: dict[str, int] = {}
    notes: list[str] = []

    def look(name: str) -> None:
        verified = _verified(settings, name)
        _show(f"Pool {name}", verified, as_json)
        checks[name], remaining[name] = verified.checks, verified.damages
        notes.extend(verified.notes)
        unfinished = unfinished_repair(settings.work(name))
        if unfinished and not is_repaired:
            warn(f"a repair of pool {name} was stopped before it made {', '.join(unfinished)} again; --repair goes on")
        if is_repaired:
            if verified.damages or unfinished:
                remaining[name] = _repaired(settings, name, verified.damages, as_json)
            remake_derived(PoolContext.open(settings, name))

    failed = each_pool([pool] if pool is not None else list_pools(settings), look)
    if pool is None:
        verified = verify_weights(reporter_for())
        _show("Shipped weights", verified, as_json)
        checks[WEIGHTS], remaining[WEIGHTS] = verified.checks, verified.damages
    if as_json:
        damaged = {name: [damage.to_dict() for damage in damages] for name, damages in remaining.items()}
        show_json({"checks": checks, "damaged": damaged, "failed": failed, "notes": notes})
    elif not is_repaired:
        show(DERIVED)
    if failed or any(remaining.values()):
        raise typer.Exit(1)


def look_as_at_night(settings: Settings, pool: str | None, parts: Sequence[str], as_json: bool) -> None:
    """The parts of the nightly schedule, of a pool or of all. Raises typer.Exit(1) where a person should act."""
    found: dict[str, dict[str, Findings]] = {}

    def look_at(name: str) -> None:
        looks = {part: look for part, look in LOOKS.items() if part in parts}
        ctx = PoolContext.open(settings, name, progress=reporter_for())
        found[name] = {part: look(ctx, ctx.progress) for part, look in looks.items()}
        _show_findings(f"Pool {name}", found[name], as_json)

    failed = each_pool([pool] if pool is not None else list_pools(settings), look_at)
    if pool is None and "files" in parts:
        found[WEIGHTS] = {"files": look_at_weights(reporter_for())}
        _show_findings("Shipped weights", found[WEIGHTS], as_json)
    removed = _removed(settings) if "old" in parts else []
    if as_json:
        content = {name: {part: one.to_dict() for part, one in of_pool.items()} for name, of_pool in found.items()}
        show_json({"found": content, "failed": failed, "removed": {one.what: one.count for one in removed}})
    elif "old" in parts:
        said = ", ".join(map(str, removed)) or "nothing: CURATION_KEEP_DAYS is 0"
        show(f"Removed, older than {settings.keep_days} days: {said}")
    if failed or any(one.problems for of_pool in found.values() for one in of_pool.values()):
        raise typer.Exit(1)


def _removed(settings: Settings) -> list[Removed]:
    from curation_assets.defs.launch import prepare_instance  # Dagster takes seconds to import
    from curation_assets.defs.old_runs import remove_old

    with prepare_instance(settings) as instance:
        return remove_old(settings, instance, time.time())


def _show_findings(title: str, found: Mapping[str, Findings], as_json: bool) -> None:
    if as_json:
        return
    for part, one in found.items():
        show(f"{title}, {part}: {one.summary}")
        for sentence in one.problems:
            warn(sentence)
        if part == "freshness":
            for row in one.rows:
                show(f"  {row['table']:<32} {row['stale']} of {row['of']}: {row['why']}")


def _verified(settings: Settings, pool: str) -> Verified:
    ctx = PoolContext.open(settings, pool)
    return verify_pool(ctx, tables_of(ctx), reporter_for())


def _repaired(settings: Settings, pool: str, damages: Sequence[Damage], as_json: bool) -> list[Damage]:
    from curation_assets.defs.repairing import repair_pool  # Dagster takes seconds to import

    for damage in damages:
        if damage.repair is None:
            notice(f"{damage.path} cannot be repaired: {damage.advice}")
    left = repair_pool(settings, pool, damages, progress=reporter_for(), on_notice=notice)
    if not as_json:
        state = f"{len(left)} files are still damaged" if left else "everything is as it was written"
        show(f"Pool {pool} after the repair: {state}")
    return left


def _show(title: str, verified: Verified, as_json: bool) -> None:
    for sentence in verified.notes:
        warn(sentence)
    if as_json:
        return
    if not verified.damages:
        show(f"{title}: {verified.checks} places looked at, everything is as it was written")
        return
    rows = [
        (str(damage.path), damage.kind, _short(damage.expected), _short(damage.got), damage.advice)
        for damage in verified.damages
    ]
    show_table(("file", "kind", "expected", "got", "what to do"), rows, left=5, title=f"{title}: damaged")


def _short(text: str) -> str:
    """A hash by its first digits; other words as they are."""
    return " ".join(word[:SHOWN_DIGITS] if len(word) == 64 else word for word in text.split(" "))

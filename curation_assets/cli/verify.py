"""curate verify: whether what lies on the disk is what was written, and bringing it back where it is not."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from curation_assets.cli.common import (
    HomeOption,
    JsonOption,
    ProfileOption,
    notice,
    settings_from,
    show,
    show_json,
    show_table,
)
from curation_assets.cli.release import verify as verify_release
from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import Settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.verify import Damage, Verified, verify_pool, verify_weights
from curation_assets.stores.pools.declaration import list_pools
from curation_assets.stores.releases import RELEASE_FILE

SHOWN_DIGITS = 12  # of a hash; --json has all
WEIGHTS = "weights"  # what is looked at beside the pools


def verify(
    pool: Annotated[
        str | None,
        typer.Argument(
            help="A declared pool, or the folder of a release; without it all pools and the weights that are shipped."
        ),
    ] = None,
    is_repaired: Annotated[
        bool, typer.Option("--repair", help="Remove damaged files and make them again; sources cannot be repaired.")
    ] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Read every file again and compare it with its recorded sha256; repair.

    Exit status 1 when a file is damaged, and after --repair when one still is.
    """
    if pool is not None and (Path(pool) / RELEASE_FILE).is_file():
        verify_release(Path(pool), as_json)
        return
    settings = settings_from(home, profile)
    remaining: dict[str, list[Damage]] = {}
    checks: dict[str, int] = {}
    for name in [pool] if pool is not None else list_pools(settings):
        verified = _verified(settings, name)
        _show(f"Pool {name}", verified, as_json)
        checks[name], remaining[name] = verified.checks, verified.damages
        if is_repaired and verified.damages:
            remaining[name] = _repaired(settings, name, verified.damages, as_json)
    if pool is None:
        verified = verify_weights(reporter_for())
        _show("Shipped weights", verified, as_json)
        checks[WEIGHTS], remaining[WEIGHTS] = verified.checks, verified.damages
    if as_json:
        damaged = {name: [damage.to_dict() for damage in damages] for name, damages in remaining.items()}
        show_json({"checks": checks, "damaged": damaged})
    if any(remaining.values()):
        raise typer.Exit(1)


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

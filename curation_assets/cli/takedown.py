"""curate takedown: put samples on the denylist, and purge them from everything that we wrote."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import (
    HomeOption,
    JsonOption,
    ProfileOption,
    WaitOption,
    each_pool,
    notice,
    settings_from,
    show,
    show_json,
    with_home,
)
from curation_assets.core.errors import EXPECTED_ERRORS, few
from curation_assets.core.progress import reporter_for
from curation_assets.flow.context import PoolContext
from curation_assets.operations.opt_out_checks import forget_proposed, proposed_opt_outs
from curation_assets.operations.takedown_feeds import fetched_feed
from curation_assets.sources.declaration import list_pools
from curation_assets.stores.denylist import (
    KINDS,
    REASONS,
    Denylist,
    Kind,
    add_entries,
    add_to_denylist,
    entries_without_rows,
)
from curation_assets.stores.releases import release_folders
from curation_assets.stores.scrubbing import UNREAD

SHOWN = 20  # entries or rows that a line names
ENTRY_DIGITS = 12  # of an entry's hash


@command("takedown add", "Subsets")
def add(
    url: Annotated[list[str] | None, typer.Option("--url", help="Address of an image (repeat).")] = None,
    uid: Annotated[list[str] | None, typer.Option("--uid", help="A sample_id (repeat).")] = None,
    sha256: Annotated[
        list[str] | None, typer.Option("--sha256", help="Of an image file, as stored or as downloaded (repeat).")
    ] = None,
    domain: Annotated[
        list[str] | None, typer.Option("--domain", help="All of a host and its subdomains (repeat).")
    ] = None,
    creator: Annotated[
        list[str] | None, typer.Option("--creator", help="All samples of this creator, as the rows name them (repeat).")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", help="All samples of this declared source (repeat).")
    ] = None,
    proposed: Annotated[
        list[str] | None,
        typer.Option("--proposed", metavar="POOL", help="Images of this pool whose owners opted out since (repeat)."),
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", help=f"Kind of reason, for the feed: {', '.join(REASONS)}.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Put samples on the denylist, as salted hashes.

    From now on they are not registered, downloaded or selected.
    """
    given = dict(zip(KINDS, (url, uid, sha256, domain, creator, source), strict=True))
    values: list[tuple[Kind, str]] = [(kind, value) for kind, listed in given.items() for value in listed or ()]
    if not values and not proposed:
        raise ValueError(f"nothing to add; give --{', --'.join(KINDS)} or --proposed")
    if reason not in (None, *REASONS):
        raise ValueError(f"--reason takes {', '.join(REASONS)}, got {reason!r}")
    reasons = dict.fromkeys(values, reason)
    settings = settings_from(home)
    contexts = [PoolContext.open(settings, name) for name in proposed or ()]
    opt_outs = [item for ctx in contexts for item in proposed_opt_outs(ctx)]
    found: list[tuple[Kind, str]] = [("url", item.url) for item in opt_outs]
    found += [("uid", item.sample_id) for item in opt_outs]
    reasons, values = {**dict.fromkeys(found, reason or "opt_out"), **reasons}, values + found
    if proposed and not opt_outs:
        notice(
            f"no opt-outs are proposed of {', '.join(proposed)}; `curate verify POOL --only opt-outs` looks for some"
        )
    new = add_to_denylist(settings.home, values, reasons)
    listed = Denylist.load(settings.home)
    names = {value: str(listed.entry_of(*value))[:ENTRY_DIGITS] for value in values}
    for ctx in contexts:
        forget_proposed(ctx)
    for item in opt_outs:
        notice(str(item))
    show(f"{new} added, {len(values) - new} known before. `curate takedown apply` purges what is here already.")
    for (kind, value), name in names.items():
        show(f"  entry {name}: {kind} {value}")


@command("takedown apply", "Subsets")
def apply(
    pool: Annotated[list[str] | None, typer.Option("--pool", help="Only this pool (repeat); default: all.")] = None,
    sources: Annotated[
        bool, typer.Option("--sources", help="Also rewrite the pools' own tars, which we otherwise never touch.")
    ] = False,
    feed: Annotated[
        list[str] | None,
        typer.Option("--feed", metavar="FILE|URL", help="First add what another home's feed lists (repeat)."),
    ] = None,
    export: Annotated[
        list[Path] | None,
        typer.Option("--export", metavar="FOLDER", help="Also rewrite this export, wherever it lies (repeat)."),
    ] = None,
    wait: WaitOption = True,
    as_json: JsonOption = False,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Purge what is on the denylist; write a certificate per pool.

    From tars, tables, caches and reports.
    """
    from curation_assets.cli.look import looks_folder
    from curation_assets.defs.takedown import take_down, withdraw_denied  # Dagster takes seconds to import
    from curation_assets.outputs.exports.taken_down import take_out
    from curation_assets.outputs.holders import flag_denied

    settings = settings_from(home, profile)
    feeds = {place: fetched_feed(place) for place in feed or ()}  # all of them, before one is applied
    for place, (salt, entries) in feeds.items():
        notice(f"{add_entries(settings.home, salt, entries)} of {len(entries)} entries of {place} are new")
    declared = list_pools(settings)
    released = {folder.parent.name for folder in release_folders(settings.home)}
    certificates = []
    bugs: list[Exception] = []

    def purge(name: str) -> None:
        try:
            certificate = None
            if name in declared or pool:
                certificate = take_down(
                    settings, name, with_sources=sources, on_notice=notice, progress=reporter_for(), wait=wait
                )
            withdrawn = withdraw_denied(settings, name)
        except EXPECTED_ERRORS:
            raise
        except Exception as error:  # shown below: the other pools do not wait until it is mended
            bugs.append(error)
            raise ValueError(f"unexpected {type(error).__name__}") from error
        for release in withdrawn:
            show(f"{name}: release {release} withdrawn; `curate release show {release}` names the next one")
        if certificate is None:
            show(f"{name}: holds nothing that is on the denylist")
            return
        certificates.append(certificate)
        if not as_json:
            _show(certificate)

    failed = each_pool(pool or sorted({*declared, *released}), purge)
    for folder in flag_denied(settings.home):
        notice(_flagged(folder))

    def rewrite(folder: str) -> None:
        ids = take_out(settings.home, Path(folder))
        notice(f"{folder}: {len(ids)} samples taken out" if ids else f"{folder}: holds nothing that is on the denylist")

    if looks := list(looks_folder().glob("*.html")):
        notice(
            f"not searched: {len(looks)} pages of `curate look` in {looks_folder()}, which hold captions and "
            "thumbnails; delete those of this data"
        )
    if unfound := entries_without_rows(settings.home):
        notice(
            f"{len(unfound)} entries of the denylist have named no row that a pool held, so far: "
            + few((f"{one.kind} {one.hash[:ENTRY_DIGITS]}" for one in unfound), SHOWN)
            + "; `takedown add` says which value an entry stands for"
        )
    held = each_pool(map(str, export or ()), rewrite, what="export")
    if as_json:
        show_json(certificates)
    if bugs:
        raise bugs[0]
    problems = [f"nothing is certified of {', '.join(failed)}: mend them and run it again"] if failed else []
    problems += [f"exports {', '.join(held)} stay as they are"] if held else []
    problems += ["some bytes are left; see the certificate"] * any(issued["left"] for issued in certificates)
    if problems:
        raise ValueError("; ".join(problems))


@command("takedown feed", "Subsets")
def feed(
    out: Annotated[Path, typer.Option("--out", help="The file to write: JSON lines.")], home: HomeOption = None
) -> None:
    """Write what this home took down, for others who hold copies.

    Salted hashes of ids, URLs, domains and images, with dates and kinds of reasons; `takedown apply --feed` reads it.
    """
    from curation_assets.stores.takedown_feed import write_feed

    settings = settings_from(home)
    count = write_feed(settings.home, out)
    show(f"{count} entries in {out}. What is not applied yet goes by its address alone: `curate takedown apply` first.")


def _flagged(folder: str | Path) -> str:
    return with_home(f"export {folder} still holds some; `{_rewriting(folder)}` takes them out")


def _rewriting(folder: str | Path) -> str:
    """The command that takes samples out of an export."""
    return f"curate takedown apply --export {shlex.quote(str(folder))}"


def _show(certificate: dict[str, Any]) -> None:
    show(
        f"{certificate['pool']}: {len(certificate['samples'])} rows taken down, "
        f"{len(certificate['artefacts'])} files changed or removed, {certificate['files_searched']} searched, "
        f"{len(certificate['left'])} still hold something"
    )
    for file in certificate["left"]:
        show(f"  left in {file['path']}" + (f": {UNREAD}" if file["what"] == UNREAD else ""))
    if same := certificate["same_image"]:
        show(
            f"  the same image, byte for byte, stays in {len(same)} other rows: "
            + few((f"{one['pool']} {one['sample_id']}" for one in same), SHOWN)
            + "; `curate takedown add --uid ID` takes one down"
        )
    for source in certificate["sources_not_ours"]:
        show(f"  your source still has it: {source}")
    for sentence in certificate["not_done"]:
        show(f"  not done: {sentence}")
    if names := certificate["made_again"]:
        show(f"  made again, since their rows depend on others: {', '.join(names)}")
    if names := certificate["not_made_again"]:
        show(f"  not made again: {', '.join(names)}; `curate run {certificate['pool']}` makes them")
    for export in certificate["exports_flagged"]:
        show(f"  {_flagged(export['folder'])}")
        for copy in export.get("pushed", ()):
            show(
                f"    a copy is at {copy}: `{_rewriting(export['folder'])}`, push it again, and "
                "squash the history there, which keeps what was removed"
            )
    for name in certificate["releases_withdrawn"]:
        show(f"  release withdrawn: {name}; `curate release show {name}` names the next one")
    if "bucket" in certificate:
        bucket = certificate["bucket"]
        show(f"  {bucket['url']}: {bucket['versions']} earlier versions removed, {bucket['uploads']} uploads aborted")
        for sentence in bucket["not_done"]:
            show(f"  not done: {sentence}")
        show("  working copies of other machines drop it when they are opened next; delete those that will not be")
    show(f"  certificate {certificate['certificate']}")

"""curate export: a subset for trainers and catalogues."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, PoolOption, settings_from, show, warn
from curation_assets.cli.diff import the_pool
from curation_assets.core.errors import StoreError
from curation_assets.core.settings import Settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.releases import check_current
from curation_assets.outputs.exports.formats import FORMATS, get_format
from curation_assets.stores.atomic import check_new
from curation_assets.stores.releases import find_release

if TYPE_CHECKING:
    from curation_assets.outputs.exports.subset import Subset


@command("export", "Subsets")
def export(
    format: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help="; ".join(f"{entry.name}: {entry.description}" for entry in FORMATS.values()) + "."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="A new folder.")],
    subset: Annotated[
        str | None,
        typer.Argument(metavar="[SUBSET]", help="A policy, or a file of ids: npy, parquet, csv, tsv, jsonl, txt."),
    ] = None,
    release: Annotated[
        str | None, typer.Option("--release", help="A release, by its name or folder, in place of SUBSET.")
    ] = None,
    pool: PoolOption = None,
    captions: Annotated[
        str, typer.Option("--captions", help="raw, or chosen: those of the pool's option caption_choice.")
    ] = "raw",
    license: Annotated[str | None, typer.Option("--license", help="Licence of the data, for the card (hf).")] = None,
    max_samples: Annotated[int | None, typer.Option(help="Entries per tar (webdataset).")] = None,
    max_bytes: Annotated[int | None, typer.Option(help="Bytes per tar or Parquet file.")] = None,
    batches: Annotated[
        str | None,
        typer.Option(help="concept: every --batch-size entries are a batch that covers many concepts (webdataset)."),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Entries of a batch of --batches.")] = None,
    keep: Annotated[float | None, typer.Option(help="Share of a super-batch that is its batch (--batches).")] = None,
    validation: Annotated[
        int | None, typer.Option(help="So many samples, drawn by image, go to OUT/validation, the rest to OUT/train.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draw for --validation, and of --batches.")] = 0,
    push: Annotated[
        str | None,
        typer.Option(help="hf://datasets/ORG/NAME: push there (hf), too; without SUBSET, what lies in OUT."),
    ] = None,
    branch: Annotated[str | None, typer.Option(help="Of --push; default: the main one.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Make a data set of --push private.")] = False,
    message: Annotated[str | None, typer.Option(help="Of the commit of --push.")] = None,
    home: HomeOption = None,
) -> None:
    """Export a subset for trainers and catalogues, with a manifest of hashes.

    Every folder names what is missing, with the reason.
    """
    from curation_assets.outputs.exports.subset import split_subset, with_chosen_captions

    chosen, settings = get_format(format), settings_from(home)
    if push is not None:
        _check_push(format, push, validation)
    elif branch or private or message:
        raise ValueError("--branch, --private and --message are of --push")
    if push is not None and subset is None and release is None:
        _push(settings.home, out, push, branch, private, message)
        return
    located = _located(settings, subset, release, pool)
    if captions not in ("raw", "chosen"):
        raise ValueError(f"--captions takes raw or chosen, got {captions!r}")
    if captions == "chosen":
        if format not in ("webdataset", "hf", "index"):
            raise ValueError(f"format {format!r} holds no captions; --captions chosen is for webdataset, hf and index")
        located = with_chosen_captions(located)
    parts = {out: located}
    if validation is not None:
        check_new(out, folder=True)
        parts = {out / part.part: part for part in split_subset(located, validation, seed)}
    if batches is None and (batch_size or keep):
        raise ValueError("--batch-size and --keep are of --batches concept")
    in_batches = {"batches": batches, "batch_size": batch_size, "keep": keep, "seed": seed if batches else None}
    for folder, part in parts.items():
        chosen.write(part, folder, license=license, max_samples=max_samples, max_bytes=max_bytes, **in_batches)
        _show_written(folder)
    if push is not None:
        _push(settings.home, out, push, branch, private, message)


def _located(settings: Settings, subset: str | None, release: str | None, pool: str | None) -> "Subset":
    from curation_assets.outputs.exports.subset import find_subset, subset_of_release

    if (subset is None) == (release is None):
        raise ValueError(f"give SUBSET or --release NAME, one of them; got {subset!r} and {release!r}")
    if release is not None:
        frozen = find_release(settings.home, release, pool)
        return subset_of_release(PoolContext.open(settings, frozen.pool), frozen)
    assert subset is not None
    ctx = PoolContext.open(settings, the_pool(settings, pool))
    found = find_subset(ctx, subset)
    if f"filtered/{subset}" in (tables := tables_of(ctx)):
        try:
            check_current(ctx, tables, subset)
        except StoreError as error:
            warn(f"{error}; this export is of the last run")
    return found


def _check_push(format: str, target: str, validation: int | None) -> None:
    """What can be known before anything is exported: address, token, format."""
    from curation_assets.outputs.exports.push import repository_of

    if format != "hf":
        raise ValueError(f"--push takes format hf, got {format!r}")
    if validation is not None:
        raise ValueError("--push takes one part; export with --validation, then push OUT/train and OUT/validation")
    repository_of(target)


def _push(home: Path, out: Path, target: str, branch: str | None, private: bool, message: str | None) -> None:
    from curation_assets.outputs.exports.push import push

    pushed = push(home, out, target, branch=branch, private=private, message=message)
    what = "pushed" if pushed.is_new else "nothing to push, the hub has all of it:"
    show(f"{what} {pushed.url}: {pushed.rows:,} rows read back, {pushed.rows_compared:,} compared, none differs")


def _show_written(out: Path) -> None:
    from curation_assets.outputs.exports.manifest import MANIFEST, MISSING

    files = sorted(path for path in out.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    counts = json.loads((out / MANIFEST).read_bytes())["counts"]
    show(f"{counts['written']:,} samples, {len(files)} files, {size:,} bytes in {out}; see {MANIFEST}")
    if counts["missing"]:
        warn(f"{counts['missing']} samples are missing: {out / MISSING} names them and the reasons")

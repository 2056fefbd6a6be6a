"""curate export: a subset for trainers and catalogues."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from curation_assets.cli.common import HomeOption, PoolOption, settings_from, show, warn
from curation_assets.cli.diff import the_pool
from curation_assets.flow.context import PoolContext


class Format(StrEnum):
    """What to write."""

    npy = "npy"
    keys = "keys"
    webdataset = "webdataset"
    hf = "hf"


def export(
    format: Annotated[
        Format,
        typer.Argument(
            help="npy: DataComp's ids; keys: allow-list of tar and key; webdataset: new tars; hf: Parquet with images "
            "and a dataset card."
        ),
    ],
    subset: Annotated[
        str, typer.Argument(metavar="SUBSET", help="A policy, or a .npy or .parquet of ids (with multiplicities).")
    ],
    out: Annotated[Path, typer.Option("--out", help="A new folder.")],
    pool: PoolOption = None,
    license: Annotated[str, typer.Option("--license", help="Licence of the data, for the card (hf).")] = "unknown",
    max_samples: Annotated[int, typer.Option(help="Entries per tar (webdataset).")] = 10_000,
    max_bytes: Annotated[int | None, typer.Option(help="Bytes per tar or Parquet file.")] = None,
    validation: Annotated[
        int | None, typer.Option(help="So many samples, drawn by image, go to OUT/validation, the rest to OUT/train.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the draw for --validation.")] = 0,
    home: HomeOption = None,
) -> None:
    """Export a subset for trainers and catalogues, with a manifest of hashes.

    Every folder names what is missing, with the reason.
    """
    from curation_assets.outputs.exports.huggingface import export_huggingface
    from curation_assets.outputs.exports.lists import export_keys, export_npy
    from curation_assets.outputs.exports.subset import find_subset, split_subset
    from curation_assets.outputs.exports.webdataset import export_webdataset

    settings = settings_from(home)
    found = find_subset(PoolContext.open(settings, the_pool(settings, pool)), subset)
    limit = {} if max_bytes is None else {"max_bytes" if format is Format.webdataset else "max_shard_bytes": max_bytes}
    parts = {out: found}
    if validation is not None:
        if out.is_dir() and any(out.iterdir()):
            raise ValueError(f"{out} is not empty; an export never overwrites: give a new folder")
        parts = {out / one.part: one for one in split_subset(found, validation, seed)}
    for folder, part in parts.items():
        if format is Format.npy:
            export_npy(part, folder)
        elif format is Format.keys:
            export_keys(part, folder)
        elif format is Format.webdataset:
            export_webdataset(part, folder, max_samples=max_samples, **limit)
        else:
            export_huggingface(part, folder, license_name=license, **limit)
        _say_what_is_there(folder)


def _say_what_is_there(out: Path) -> None:
    from curation_assets.outputs.exports.manifest import MANIFEST, MISSING

    files = sorted(path for path in out.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    show(f"{len(files)} files, {size:,} bytes in {out}; see {MANIFEST}")
    if (out / MISSING).is_file():
        lost = len((out / MISSING).read_text().splitlines()) - 1
        warn(f"{lost} samples are missing: {out / MISSING} names them and the reasons")

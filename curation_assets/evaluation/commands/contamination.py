"""curate evaluate contamination: which samples of a release are in a benchmark."""

from typing import Annotated

import polars as pl
import typer

from curation_assets.cli.commands import command
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

SHOWN = 20


@command("evaluate contamination", "Evaluation")
def contamination(
    release: Annotated[str, typer.Argument(metavar="RELEASE", help="Its name or folder.")],
    against: Annotated[
        list[str],
        typer.Option(
            "--against", metavar="PATH", help="Folder of images, .tar, .npy of hashes, .jsonl of texts; repeat."
        ),
    ],
    pool: Annotated[
        str | None, typer.Option("--pool", help="Its pool, where several have a release of the name.")
    ] = None,
    words: Annotated[int, typer.Option("--words", min=5, help="Run of words that a caption shares with a text.")] = 13,
    crops: Annotated[bool, typer.Option("--crops/--no-crops", help="Look for crops and frames, too.")] = True,
    profile: ProfileOption = None,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Look for samples of a release in benchmarks: by bytes, PDQ, SSCD (role copy_descriptor) and runs of words.

    Nothing is dropped; the pool's option `decontaminate` does that. Exit status 1 where a sample is in a benchmark.
    """
    from curation_assets.core.progress import reporter_for
    from curation_assets.evaluation.release_in_benchmarks import contamination_of_release
    from curation_assets.flow.context import PoolContext
    from curation_assets.selection.rows import DROP_REASON
    from curation_assets.stores.releases import find_release

    settings = settings_from(home, profile)
    chosen = find_release(settings.home, release, pool)
    ctx = PoolContext.open(settings, chosen.pool, progress=reporter_for())
    looked = contamination_of_release(ctx, chosen, against, words=words, with_crops=crops)
    matched = looked.found.sort("benchmark", "method", "distance", "sample_id")
    by_benchmark = looked.items.partition_by("benchmark", "benchmark_sha256", as_dict=True)
    rows = []
    for (name, sha256), part in sorted(by_benchmark.items()):
        of = matched.filter(pl.col("benchmark") == name)
        rows.append(
            (name, sha256, part.height, part["reason"].count(), of[DROP_REASON].count(), of[DROP_REASON].null_count())
        )
    names = ("benchmark", "sha256", "items", "not_compared", "contained", "near")
    is_clean = matched[DROP_REASON].count() == 0
    if as_json:
        listed = [dict(zip(names, row, strict=True)) for row in rows]
        show_json(
            {
                "release": chosen.name,
                "pool": chosen.pool,
                "samples": looked.samples,
                "benchmarks": listed,
                "rows_not_compared": looked.not_compared,
                "matches": matched.drop("value", "reason").to_dicts(),
            }
        )
    else:
        show_table(
            ("benchmark", "sha256", "items", "not compared", "samples in it", "near"),
            [(name, sha256[:12], *map("{:,}".format, counts)) for name, sha256, *counts in rows],
        )
        for row in matched.head(SHOWN).iter_rows(named=True):
            what = "in" if row[DROP_REASON] else "near"
            show(f"{row['sample_id']} {what} {row['benchmark']}: {row['item']}, {row['method']} {row['distance']:g}")
        if matched.height > SHOWN:
            notice(f"{matched.height - SHOWN:,} more: --json lists all")
        notice(f"{looked.samples:,} samples of {chosen.name}, of which {looked.not_compared:,} could not be compared")
    if not is_clean:
        raise typer.Exit(1)

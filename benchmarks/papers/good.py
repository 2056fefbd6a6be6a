"""python -m benchmarks.papers good: pairs that one, two or three raters call GOOD (Conceptual Captions)."""

from pathlib import Path
from typing import Annotated

import numpy as np
import polars as pl
import typer

from benchmarks.papers.tables import printed_tables
from curation_assets.cli.common import FEW, JsonOption, notice, show_json, show_table
from curation_assets.numeric.agreement import wilson_interval
from curation_assets.stores.text_tables import read_table

RATERS = 3


def good(
    judgements: Annotated[
        list[Path], typer.Argument(metavar="JUDGEMENTS...", help="Files of `curate annotate judge`.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Count the pairs that at least one, at least two and all three of three raters call GOOD.

    Of pairs with more raters the first three by name count; pairs with fewer are left out and counted.
    """
    shares, pairs, left_out = good_shares(judgements)
    printed = printed_tables()["cc-good"]
    (row,) = printed["rows"]
    rows = [
        {
            "raters": name,
            "share": share,
            "low": wilson_interval(share, pairs)[0],
            "high": wilson_interval(share, pairs)[1],
            "printed": row[name] / 100,
        }
        for name, share in shares.items()
    ]
    if left_out:
        notice(f"{left_out} pairs with fewer than {RATERS} raters are left out")
    if pairs < FEW:
        notice(f"Only {pairs} pairs: too few to tell sets apart")
    if as_json:
        show_json({"pairs": pairs, "left_out": left_out, "shares": rows})
        return
    cells = [
        (one["raters"], f"{one['share']:.3f} ({one['low']:.3f}–{one['high']:.3f})", f"{one['printed']:.3f}")
        for one in rows
    ]
    show_table(("raters who call it GOOD", f"share of {pairs} pairs (95 %)", "printed"), cells)
    notice(f"Printed: {printed['source']}")


def good_shares(paths: list[Path]) -> tuple[dict[str, float], int, int]:
    """(raters → share of the pairs, pairs, pairs left out). A rater's last judgement of a pair counts.

    Raises ValueError for a file without image, caption, rating and rater, a rating other than 0 and 1, or no pair with
    three raters.
    """
    tables = [read_table(path) for path in paths]
    for path, table in zip(paths, tables, strict=True):
        lacks = {"image", "caption", "rating", "rater"} - set(table.columns)
        if lacks:
            raise ValueError(f"{path}: expected the columns image, caption, rating, rater; {sorted(lacks)[0]} lacks")
    rows = pl.concat(
        table.select("image", "caption", "rater", pl.col("rating").cast(pl.Float64, strict=False)) for table in tables
    )
    wrong = rows.filter(~pl.col("rating").is_in([0.0, 1.0]).fill_null(False))
    if wrong.height:
        raise ValueError(f"{paths[0]}: a rating is 1 (GOOD) or 0 (BAD); {wrong.height} rows have another one")
    last = rows.unique(["image", "caption", "rater"], keep="last", maintain_order=True).sort("rater")
    by_pair = last.group_by("image", "caption", maintain_order=True).agg(pl.col("rating").head(RATERS), pl.len())
    judged = by_pair.filter(pl.col("len") >= RATERS)
    if judged.is_empty():
        raise ValueError(f"no pair has {RATERS} raters; `curate annotate judge PAIRS --web` gathers them")
    called = np.array(judged["rating"].list.sum().to_list())
    shares = {"1 or more": 1, "2 or more": 2, "3": 3}
    counted = {name: float((called >= least).mean()) for name, least in shares.items()}
    return counted, judged.height, by_pair.height - judged.height

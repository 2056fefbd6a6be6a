"""The what-ifs of `curate diff` and `curate plan`: another cut, signal or prefilter of a policy."""

from typing import Annotated

import typer

from curation_assets.selection.policy import Prefilter

CHANGES = "What if …"
FractionOption = Annotated[
    float | None, typer.Option("--fraction", help="It kept this share.", rich_help_panel=CHANGES)
]
ThresholdOption = Annotated[
    float | None, typer.Option("--threshold", help="It cut at this value.", rich_help_panel=CHANGES)
]
RankByOption = Annotated[
    str | None,
    typer.Option("--rank-by", metavar="STAGE.TABLE", help="It ranked by this signal.", rich_help_panel=CHANGES),
]
PrefilterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--prefilter",
        metavar="STAGE.TABLE=SHARE",
        help="It first kept this share by it (repeat; 'none').",
        rich_help_panel=CHANGES,
    ),
]


def prefilters_of(texts: list[str]) -> list[Prefilter]:
    """'signals.clip_score=0.5' → Prefilter; 'none' alone → no prefilters. Raises ValueError for anything else."""
    if texts == ["none"]:
        return []
    prefilters = []
    for text in texts:
        reference, _, share = text.partition("=")
        try:
            prefilters.append(Prefilter(reference, float(share)))
        except ValueError:
            reference = ""
        if not reference:
            raise ValueError(f"--prefilter reads STAGE.TABLE=SHARE, such as signals.clip_score=0.5, got {text!r}")
    return prefilters

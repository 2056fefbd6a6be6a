"""curate pool word-weights: what `curate score relatedness FILE` must know of a pool and of the downstream captions."""

from pathlib import Path
from typing import Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import notice, show
from curation_assets.scoring.files import read_captions
from curation_assets.stores.atomic import check_new
from curation_assets.stores.documents import save_frame


@command("pool word-weights", "Pools")
def word_weights(
    pool: Annotated[list[Path], typer.Argument(help="Captions of the pool: txt, tsv, csv, parquet or tars.")],
    related_to: Annotated[Path, typer.Option("--related-to", help="Captions of the downstream task.")],
    out: Annotated[Path, typer.Option("--out", help="Output: .parquet.")],
) -> None:
    """Weigh the words of captions for `score relatedness`.

    By idf in a pool and by the downstream captions (Rao et al., relatedness).
    """
    from curation_assets.stages.standardised.word_weights import weights_frame, weights_of

    if out.suffix != ".parquet":
        raise ValueError(f"output must end in .parquet, got {out.name!r}")
    check_new(out)
    parts = (read_captions(path)["caption"].drop_nulls() for path in pool)
    frame = weights_frame(weights_of(parts, read_captions(related_to)["caption"].drop_nulls()))
    save_frame(out, frame, is_new=True)
    show(f"{frame.height:,} words written to {out}")
    notice(f"Name it in a profile: methods: {{relatedness: {{word_weights_file: {out.absolute()}}}}}")

"""curate label: rate captions for concreteness, measure how raters agree, merge their ratings into labels."""

import itertools
import json
import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
from rich.table import Table
from typer.core import TyperGroup

from curation_assets.annotation.ratings_log import (
    Ratings,
    RatingsLog,
    is_storable,
    merge_ratings,
    rating_matrix,
    read_ratings,
)
from curation_assets.annotation.session import LabellingSession
from curation_assets.cli.common import (
    HomeOption,
    ProfileOption,
    console,
    error_console,
    errors_as_sentences,
    settings_from,
)
from curation_assets.numeric.caption_benchmark import PERSONAL_DATA, sample_caption_benchmark
from curation_assets.numeric.rater_agreement import krippendorff_alpha, weighted_kappa
from curation_assets.scoring.files import read_captions
from curation_assets.stores.atomic import replacing


class RateByDefault(TyperGroup):
    """`curate label FILE` is short for `curate label rate FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `rate` in front of anything that is no command's name."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["rate", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=RateByDefault, no_args_is_help=True, help="Rate captions (curate label FILE); sample, compare, merge ratings."
)


@app.command("rate")
@errors_as_sentences
def rate(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Captions: txt, tsv, csv or parquet.")],
    rater: Annotated[str, typer.Option(help="Who rates; several raters may share one ratings file.")] = "rater",
    out: Annotated[Path | None, typer.Option("--out", help="Ratings file; default FILE.ratings.tsv.")] = None,
    web: Annotated[bool, typer.Option("--web", help="Rate on a local page instead of the terminal.")] = False,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1 for --web; 0 takes a free one.")] = 8123,
    in_order: Annotated[bool, typer.Option(help="The file's order for everybody; else one order per rater.")] = False,
) -> None:
    """Rate every caption 0–3. Stop whenever you like: the same command goes on where you stopped."""
    captions = _captions(source)
    log = RatingsLog(out or source.with_suffix(".ratings.tsv"))
    console.print(f"{len(captions)} captions; ratings are appended to {log.path}", highlight=False, soft_wrap=True)
    if not web:
        from curation_assets.annotation.terminal import rate_in_terminal

        rate_in_terminal(LabellingSession(captions, rater, log, in_order=in_order), console, lambda: input("> "))
        return
    from curation_assets.annotation.web import LabellingServer

    with LabellingServer(captions, log, port=port, in_order=in_order) as server:
        console.print(f"Open {server.url} (stop with Ctrl+C)", highlight=False)
        server.serve_forever()


def _captions(source: Path) -> list[str]:
    """Distinct captions of a file that one line can hold; the others are counted aloud."""
    table = read_captions(source)
    texts = table["caption"].drop_nulls().unique(maintain_order=True).to_list()
    usable = [text for text in texts if is_storable(text)]
    if repeated := table.height - len(texts):
        error_console.print(f"{repeated} rows repeat a caption or have none; asked once", highlight=False)
    if left_out := len(texts) - len(usable):
        error_console.print(f"{left_out} captions are blank or hold tabs or line breaks: left out", highlight=False)
    if not usable:
        raise ValueError(f"{source} holds no caption that could be rated")
    return usable


@app.command("sample")
@errors_as_sentences
def sample(
    pool: Annotated[str, typer.Argument(help="A pool whose teachers have scored its distillation sample.")],
    out: Annotated[Path, typer.Option("--out", help="Output: .tsv, .csv or .parquet.")],
    count: Annotated[int, typer.Option(help="Captions to draw; the ICC paper had 244 rated.")] = 244,
    cells: Annotated[int, typer.Option(help="Cells per side of the grid over the plane.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    plane: Annotated[
        str | None, typer.Option(help="teacher or student scores; default: the pool's option fuse_on.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """Draw captions evenly over the (VBA, SBA) plane, to be rated with `curate label OUT`."""
    from curation_assets.annotation.drawing import draw_for_rating
    from curation_assets.flow.context import PoolContext

    ctx = PoolContext.open(settings_from(home), pool)
    drawn = draw_for_rating(ctx, count=count, cells=cells, seed=seed, plane=plane)  # type: ignore[arg-type]
    _write(drawn, out)
    console.print(f"{drawn.height} captions written to {out}", highlight=False, soft_wrap=True)
    console.print(f"Next: curate label {out} --rater NAME", highlight=False, soft_wrap=True)


@app.command("benchmark")
@errors_as_sentences
def benchmark(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Captions to draw from: txt, tsv, csv or parquet.")],
    out: Annotated[Path, typer.Option("--out", help="Output: .tsv, .csv or .parquet.")],
    by_rule: Annotated[int, typer.Option(help="Captions that satisfy the sampling rules.")] = 150,
    at_random: Annotated[int, typer.Option(help="Further captions, whatever they are.")] = 50,
    as_printed: Annotated[
        bool, typer.Option("--as-printed", help="Stop-word share ≤ .20 as the paper prints, not ≥ .20 as it did.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    profile: ProfileOption = None,
) -> None:
    """Draw a caption benchmark by the ICC paper's rules, to be rated; no profane words, no personal data."""
    from curation_assets.engines import load_engine

    texts = _captions(source)
    lexicon: Any = load_engine("lexicon", settings_from(None, profile).profile)
    is_profane = [bool(found) for found in lexicon.profanities(texts)]
    is_personal = [PERSONAL_DATA.search(text) is not None for text in texts]
    usable = [text for text, *bad in zip(texts, is_profane, is_personal, strict=True) if not any(bad)]
    console.print(
        f"{len(texts)} captions: {sum(is_profane)} with a profane word and {sum(is_personal)} with an e-mail address "
        "or telephone number left out",
        highlight=False,
        soft_wrap=True,
    )
    rng = np.random.default_rng(seed)
    ruled, random = sample_caption_benchmark(usable, rng, by_rule=by_rule, at_random=at_random, as_printed=as_printed)
    drawn_by = ["rule"] * len(ruled) + ["random"] * len(random)
    drawn = pl.DataFrame({"caption": [usable[row] for row in (*ruled, *random)], "drawn_by": drawn_by})
    _write(drawn[rng.permutation(drawn.height).tolist()], out)
    console.print(f"{drawn.height} captions written to {out}", highlight=False, soft_wrap=True)
    console.print(f"Next: curate label {out} --rater NAME", highlight=False, soft_wrap=True)


@app.command("agreement")
@errors_as_sentences
def agreement(
    ratings: Annotated[list[Path], typer.Argument(help="Ratings files.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Krippendorff's alpha over all raters and quadratically weighted kappa of every two."""
    read = read_ratings(ratings)
    matrix, raters, captions = rating_matrix(read)
    alphas = {level: krippendorff_alpha(matrix, level) for level in ("ordinal", "interval")}  # type: ignore[arg-type]
    pairs: list[dict[str, Any]] = [
        {"raters": [raters[i], raters[j]], "kappa": None if math.isnan(kappa) else kappa, "captions": shared}
        for i, j in itertools.combinations(range(len(raters)), 2)
        for kappa, shared in [weighted_kappa(matrix[i], matrix[j])]
    ]
    if as_json:
        content = {"captions": len(captions), "raters": raters, "alpha": alphas, "pairs": pairs}
        print(json.dumps({**content, "corrected": read.corrected, "unreadable": read.unreadable}, ensure_ascii=False))
        return
    console.print(f"{len(captions)} captions, {len(raters)} raters", highlight=False)
    _show_faults(read)
    for level, alpha in alphas.items():
        console.print(f"Krippendorff's alpha ({level}): {alpha:.3f}", highlight=False)
    table = Table(box=None, pad_edge=False)
    for heading in ("rater", "rater", "weighted kappa", "captions"):
        table.add_column(heading, justify="left" if heading == "rater" else "right")
    for pair in pairs:
        kappa = "–" if pair["kappa"] is None else f"{pair['kappa']:.3f}"
        table.add_row(*pair["raters"], kappa, str(pair["captions"]))
    console.print(table)


@app.command("merge")
@errors_as_sentences
def merge(
    ratings: Annotated[list[Path], typer.Argument(help="Ratings files.")],
    out: Annotated[Path, typer.Option("--out", help="Labels: .tsv, .csv or .parquet with caption and rating.")],
    min_raters: Annotated[int, typer.Option(help="Leave out captions that fewer people rated.")] = 1,
) -> None:
    """Mean rating per caption, in the form that a pool's option `labels` reads."""
    read = read_ratings(ratings)
    merged, left_out = merge_ratings(read, min_raters)
    _write(merged, out)
    _show_faults(read)
    console.print(
        f"{merged.height} captions written to {out}, {left_out} left out (fewer than {min_raters} ratings)",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"Next: add to the pool's declaration: options: {{labels: {out.absolute()}}}", soft_wrap=True)


def _show_faults(read: Ratings) -> None:
    if read.corrected:
        console.print(f"{read.corrected} ratings were corrected by a later one", highlight=False)
    if read.unreadable:
        console.print(f"{read.unreadable} lines are unreadable and were left out", highlight=False)


def _write(table: pl.DataFrame, out: Path) -> None:
    if out.suffix not in (".tsv", ".csv", ".parquet"):
        raise ValueError(f"output must end in .tsv, .csv or .parquet, got {out.name!r}")
    with replacing(out) as temporary:
        if out.suffix == ".parquet":
            table.write_parquet(temporary)
        elif out.suffix == ".tsv":
            table.write_csv(temporary, separator="\t", quote_style="never")
        else:
            table.write_csv(temporary)

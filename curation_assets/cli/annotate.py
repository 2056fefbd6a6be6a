"""curate annotate: draw captions, rate them for concreteness, merge ratings; gather, rank and judge captions."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import polars as pl
import typer

from curation_assets.annotation.ratings_log import RatingsLog, is_storable, merge_ratings, read_ratings
from curation_assets.annotation.session import LabellingSession, RankingSession
from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, ProfileOption, console, notice, settings_from, show
from curation_assets.numeric.caption_benchmark import PERSONAL_DATA, sample_caption_benchmark
from curation_assets.scoring.files import read_captions
from curation_assets.stores.atomic import check_new
from curation_assets.stores.text_tables import save_new_table

if TYPE_CHECKING:
    from curation_assets.annotation.web import LabellingServer


@command("annotate rate", "People")
def rate(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Captions: txt, tsv, csv or parquet.")],
    rater: Annotated[
        str | None,
        typer.Option(
            help="Who rates; several may share one ratings file. Default: rater; with --web, typed on the page."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Ratings file; default FILE.ratings.tsv.")] = None,
    web: Annotated[bool, typer.Option("--web", help="Rate on a local page instead of the terminal.")] = False,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1 for --web; 0 takes a free one.")] = 8123,
    in_order: Annotated[bool, typer.Option(help="The file's order for everybody; else one order per rater.")] = False,
) -> None:
    """Rate every caption of a file 0–3; stop whenever you like.

    The same command goes on where you stopped.
    """
    captions = _captions(source)
    log = RatingsLog(out or source.with_suffix(".ratings.tsv"))
    show(f"{len(captions)} captions; ratings are appended to {log.path}")

    session = partial(LabellingSession, captions, log=log, in_order=in_order)
    if not web:
        from curation_assets.annotation.terminal import answer_in_terminal

        answer_in_terminal(session("rater" if rater is None else rater), console, lambda: input("> "))
        return
    from curation_assets.annotation.web import LabellingServer

    _serve(LabellingServer("rating", session, port=port, rater=rater))


def _serve(server: "LabellingServer") -> None:
    with server:
        notice(f"Open {server.url} (stop with Ctrl+C)")
        server.serve_forever()


def _captions(source: Path) -> list[str]:
    """Distinct captions of a file that one line can hold; the others are counted aloud."""
    table = read_captions(source)
    texts = table["caption"].drop_nulls().unique(maintain_order=True).to_list()
    usable = [text for text in texts if is_storable(text)]
    if repeated := table.height - len(texts):
        notice(f"{repeated} rows repeat a caption or have none; each caption is shown once")
    if left_out := len(texts) - len(usable):
        notice(f"{left_out} captions are blank or hold tabs or line breaks: left out")
    if not usable:
        raise ValueError(f"{source} holds no caption that could be rated")
    return usable


@command("annotate sample", "People")
def sample(
    pool: Annotated[str, typer.Argument(help="A pool whose teachers have scored its distillation sample.")],
    out: Annotated[Path, typer.Option("--out", help="Output: .tsv, .csv or .parquet.")],
    count: Annotated[int, typer.Option(help="Captions to draw; the ICC paper had 244 rated.")] = 244,
    cells: Annotated[int, typer.Option(help="Cells per side of the grid over the plane.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    home: HomeOption = None,
) -> None:
    """Draw captions evenly over the (VBA, SBA) plane, to be rated."""
    from curation_assets.annotation.drawing import draw_for_rating
    from curation_assets.flow.context import PoolContext

    check_new(out)
    ctx = PoolContext.open(settings_from(home), pool)
    drawn = draw_for_rating(ctx, count=count, cells=cells, seed=seed)
    save_new_table(out, drawn)
    show(f"{drawn.height} captions written to {out}")
    notice(f"Next: `curate annotate rate {out} --rater NAME`")


@command("annotate benchmark", "People")
def benchmark(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="Captions to draw from: txt, tsv, csv or parquet.")],
    out: Annotated[Path, typer.Option("--out", help="Output: .tsv, .csv or .parquet.")],
    by_rule: Annotated[int, typer.Option(help="Captions that satisfy the sampling rules.")] = 150,
    at_random: Annotated[int, typer.Option(help="Further captions, whatever they are.")] = 50,
    seed: Annotated[int, typer.Option(help="Seed of the draw.")] = 0,
    profile: ProfileOption = None,
) -> None:
    """Draw a caption benchmark by the ICC paper's rules.

    To be rated; captions with profane words or personal data are left out.
    """
    from curation_assets.engines import load_engine

    check_new(out)
    texts = _captions(source)
    lexicon: Any = load_engine("lexicon", settings_from(None, profile).profile)
    is_profane = [bool(words) for words in lexicon.profanities(texts)]
    is_personal = [PERSONAL_DATA.search(text) is not None for text in texts]
    usable = [text for text, *bad in zip(texts, is_profane, is_personal, strict=True) if not any(bad)]
    show(
        f"{len(texts)} captions: {sum(is_profane)} with a profane word and {sum(is_personal)} with an e-mail address "
        "or telephone number left out"
    )
    rng = np.random.default_rng(seed)
    ruled, random = sample_caption_benchmark(usable, rng, by_rule=by_rule, at_random=at_random)
    drawn_by = ["rule"] * len(ruled) + ["random"] * len(random)
    drawn = pl.DataFrame({"caption": [usable[row] for row in (*ruled, *random)], "drawn_by": drawn_by})
    save_new_table(out, drawn[rng.permutation(drawn.height).tolist()])
    show(f"{drawn.height} captions written to {out}")
    notice(f"Next: `curate annotate rate {out} --rater NAME`")


@command("annotate merge", "People")
def merge(
    ratings: Annotated[list[Path], typer.Argument(help="Ratings files.")],
    out: Annotated[Path, typer.Option("--out", help="Labels: .tsv, .csv or .parquet with caption and rating.")],
    min_raters: Annotated[int, typer.Option(help="Leave out captions that fewer people rated.")] = 1,
) -> None:
    """Write the mean rating per caption, as a pool's option `labels`."""
    read = read_ratings(ratings)
    merged, left_out = merge_ratings(read, min_raters)
    save_new_table(out, merged)
    show(f"{merged.height} captions written to {out}, {left_out} left out (fewer than {min_raters} ratings)")
    if read.corrected:
        notice(f"{read.corrected} ratings were corrected by a later one")
    if read.unreadable:
        notice(f"{read.unreadable} lines are unreadable and were left out")
    notice(f"Next: add to the pool's declaration: options: {{labels: {out.absolute()}}}")


@command("annotate candidates", "People")
def candidates(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="Webdataset tars, or a table with image, caption.")],
    out: Annotated[Path, typer.Option("--out", help="Output .tsv: image, caption, source.")],
    captioner: Annotated[
        list[str] | None, typer.Option("--captioner", help="Address of a captioner (repeat); default: the profile's.")
    ] = None,
    count: Annotated[int, typer.Option(help="Captions per image and captioner.")] = 3,
    rewrites: Annotated[
        Path | None, typer.Option(help="Table with image and caption: rewrites by people, or further references.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="The first so many images only.")] = None,
    profile: ProfileOption = None,
) -> None:
    """Gather captions of each image, to be ranked.

    From its references, captioners and rewrites.
    """
    from curation_assets.annotation.candidates import gather_candidates
    from curation_assets.engines import load_engine

    check_new(out)
    chosen = settings_from(None, profile).profile
    addresses = captioner or [chosen.address("captioner")]
    captioners: dict[str, Any] = {
        address: load_engine("captioner", chosen.with_roles(captioner=address)) for address in addresses
    }
    table = gather_candidates(source, captioners, beside=out.parent, count=count, rewrites=rewrites, limit=limit)
    save_new_table(out, table, suffix=".tsv")
    per_image = table.height / max(1, table["image"].n_unique())
    show(f"{table.height:,} captions of {table['image'].n_unique():,} images ({per_image:.1f} each) written to {out}")
    notice(f"Next: `curate annotate rank {out} --rater NAME`")


@command("annotate rank", "People")
def rank(
    source: Annotated[Path, typer.Argument(metavar="CANDIDATES", help="Table with image and caption.")],
    rater: Annotated[
        str | None,
        typer.Option(help="Who ranks; several may share one file. Default: rater; with --web, typed on the page."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Ranking file; default CANDIDATES.rankings.tsv.")] = None,
    web: Annotated[bool, typer.Option("--web", help="Rank on a local page, with the images, for any rater.")] = False,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1 for --web; 0 takes a free one.")] = 8124,
) -> None:
    """Rank the captions of every image; stop whenever you like.

    By accuracy, completeness, vividness and context. The same command goes on where you stopped.
    """
    from curation_assets.annotation.ranking import RankingLog

    groups = _captions_by_image(source)
    log = RankingLog(out or source.with_suffix(".rankings.tsv"))
    show(f"{len(groups)} images; ranks are appended to {log.path}")
    session = partial(RankingSession, groups, log=log)
    if web:
        from curation_assets.annotation.web import LabellingServer, picture_of

        picture = partial(picture_of, source, {image for image, _ in groups})
        _serve(LabellingServer("ranking", session, port=port, rater=rater, picture=picture))
        return
    from curation_assets.annotation.terminal import answer_in_terminal

    if any(".tar:" in image for image, _ in groups):
        notice("The images lie inside tars; --web shows them")
    answer_in_terminal(session("rater" if rater is None else rater, in_order=True), console, lambda: input("> "))


@command("annotate judge", "People")
def judge(
    source: Annotated[Path, typer.Argument(metavar="PAIRS", help="Table with image and caption.")],
    rater: Annotated[str | None, typer.Option(help="Who judges; else the page requests a name.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Judgements; default PAIRS.judgements.tsv.")] = None,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 takes a free one.")] = 8125,
) -> None:
    """Call pairs of image and caption GOOD or BAD on a local page.

    Several raters share one file; Conceptual Captions has three. The same command goes on where you stopped.
    """
    from curation_assets.annotation.ranking import JUDGEMENT_HEADER, RankingLog
    from curation_assets.annotation.session import JudgingSession
    from curation_assets.annotation.web import LabellingServer, picture_of

    groups = _captions_by_image(source)
    pairs = [(image, caption) for image, captions in groups for caption in captions]
    log = RankingLog(out or source.with_suffix(".judgements.tsv"), JUDGEMENT_HEADER)
    notice(f"{len(pairs)} pairs; judgements are appended to {log.path}")
    picture = partial(picture_of, source, {image for image, _ in groups})
    session = partial(JudgingSession, pairs, log=log)
    _serve(LabellingServer("judging", session, port=port, rater=rater, picture=picture))


def _captions_by_image(source: Path) -> list[tuple[str, list[str]]]:
    """(image, its captions) of a table, in its order. Raises ValueError without the columns image and caption."""
    from curation_assets.stores.text_tables import read_table

    table = read_table(source)
    if not {"image", "caption"} <= set(table.columns):
        raise ValueError(f"{source}: expected the columns image and caption, got {table.columns}")
    return [
        (str(image), group["caption"].unique(maintain_order=True).to_list())
        for (image,), group in table.group_by("image", maintain_order=True)
    ]

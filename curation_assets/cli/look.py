"""curate look: a first look at a file or folder, without a pool."""

import atexit
import hashlib
import shutil
import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import notice, on_stop, show
from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import cache_root
from curation_assets.stores.documents import save_text

RowsOption = Annotated[int, typer.Option(min=1, max=10_000, help="Rows at most, drawn by the hash of their ids.")]
DearRowsOption = Annotated[
    int, typer.Option(min=1, help="Of these rows the first N get clip_score, --with and the policies' verdicts.")
]


@command("look", "Pools")
def look(
    source: Annotated[
        str, typer.Argument(metavar="FILE|FOLDER", help="Tars, images with captions, Parquet, csv, tsv or jsonl.")
    ],
    rows: RowsOption = 2_000,
    dear_rows: DearRowsOption = 1_000,
    with_: Annotated[
        list[str] | None, typer.Option("--with", metavar="METHOD", help="One more method, such as sieve (repeat).")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw.")] = 0,
    caption_column: Annotated[str | None, typer.Option(help="Column of the captions, where not recognised.")] = None,
    image_column: Annotated[
        str | None, typer.Option(help="Column of image bytes or of file names; 'none': captions only.")
    ] = None,
    no_header: Annotated[bool, typer.Option("--no-header", help="csv, tsv: the first line is data.")] = False,
    into: Annotated[
        Path | None, typer.Option("--into", help="Write the page here (default: the user's cache).")
    ] = None,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
) -> None:
    """Look at images and captions without a pool: one page with values, duplicates, what policies would keep.

    Nothing is downloaded, and nothing but the page stays. It holds thumbnails and captions: delete it when a row has
    to go.
    """
    path = _path_of(source)
    notice(f"Looking at {path}")
    from curation_assets.outputs.look import look_at, pool_commands  # Polars and more take a second
    from curation_assets.outputs.report.look_page import look_page

    given = {"caption": caption_column, "image": image_column}
    columns = {ours: None if theirs == "none" else theirs for ours, theirs in given.items() if theirs is not None}
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    page_path = into or looks_folder() / f"{path.stem[:60]}-{digest}.html"
    on_stop("stopped; nothing is kept")
    home = Path(tempfile.mkdtemp(prefix="curate-look-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)  # where a second interrupt stops the first removal
    try:
        found = look_at(
            path,
            home,
            rows=rows,
            dear_rows=dear_rows,
            seed=seed,
            methods=with_ or (),
            columns=columns,
            header=not no_header,
            progress=reporter_for(),
        )
        commands, more = pool_commands(path, columns, header=not no_header, has_images=found.ctx.pool.has_images)
        save_text(page_path, look_page(found, path.name, commands, more))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    about = "about " if found.is_estimate else ""
    show(f"{found.rows:,} of {about}{found.total:,} rows: {page_path}")
    if found.judged < found.rows:
        notice(f"clip_score and the policies: of {found.judged:,} rows; --dear-rows {found.rows} takes all, and longer")
    if found.urls_left:
        notice("Its images are addresses of servers: none was asked, so the page is of captions")
    notice("Make it a pool:")
    for line in commands:
        show(line)
    if opens:
        webbrowser.open(page_path.absolute().as_uri())


def looks_folder() -> Path:
    """Where pages are written unless `--into` names another place."""
    return cache_root() / "looks"


def _path_of(text: str) -> Path:
    """Raises ValueError for a URL, or a path where nothing is."""
    if "://" in text:
        raise ValueError(
            f"a look reads files of this machine, got {text}; fetch it first, or declare a pool of its URLs"
        )
    path = Path(text).expanduser().absolute()
    if not path.exists():
        raise ValueError(f"no such file or folder: {path}")
    return path

"""curate bench: measured quality of the embedded models on held-out samples."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from curation_assets.cli.common import console, errors_as_sentences, settings_from
from curation_assets.progress import reporter_for

app = typer.Typer(help="Measure quality on held-out samples.", no_args_is_help=True)


@app.command("embedded")
@errors_as_sentences
def embedded(
    size: Annotated[int, typer.Option(help="Samples of the held-out pool.")] = 1600,
    captions: Annotated[int, typer.Option(help="Captions that the teachers score.")] = 700,
    seed: Annotated[
        int, typer.Option(help="Seed of the held-out pool; the shipped models saw other seeds.")
    ] = 9_100_001,
    out: Annotated[Path | None, typer.Option(help="Also write the table as Parquet or CSV.")] = None,
) -> None:
    """Teachers, fusion, student, CLIPScore and SIEVE against the planted truth of a fresh scene pool."""
    from curation_assets.quality import bench_embedded

    with tempfile.TemporaryDirectory(prefix="curation-bench-") as folder:
        quality = bench_embedded(
            settings_from(Path(folder), "embedded"),
            size=size,
            captions=captions,
            seed=seed,
            progress=reporter_for(console),
        )
    table = Table(title=f"Held-out pool of {size} samples, seed {seed}", title_justify="left", box=None, pad_edge=False)
    for heading in ("target", "method", "metric", "measured", "reference", "n"):
        table.add_column(heading, justify="right" if heading in ("measured", "reference", "n") else "left")
    for row in quality.iter_rows(named=True):
        reference = "" if row["reference"] is None else f"{row['reference']:.3f}"
        table.add_row(row["target"], row["method"], row["metric"], f"{row['value']:.3f}", reference, str(row["n"]))
    console.print(table)
    if out is not None:
        quality.write_parquet(out) if out.suffix == ".parquet" else quality.write_csv(out)
        console.print(f"Written to {out}", highlight=False)

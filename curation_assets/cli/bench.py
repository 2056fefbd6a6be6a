"""curate bench: measured quality of the embedded models on held-out samples, and the speed of ICC."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from curation_assets.cli.common import ProfileOption, console, errors_as_sentences, settings_from
from curation_assets.cli.score import profile_for_files
from curation_assets.core.progress import reporter_for

app = typer.Typer(help="Measure quality on held-out samples, and speed.", no_args_is_help=True)


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
    from benchmarks.quality import bench_embedded

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


@app.command("icc")
@errors_as_sentences
def icc(
    captions: Annotated[
        Path | None, typer.Argument(help="Captions: txt, tsv, csv or parquet. Default: captions of the scene world.")
    ] = None,
    profile: ProfileOption = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="Another model: ROLE=ADDRESS, such as student=path:/folder.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time for each scorer and batch size.")] = 10.0,
    batch_size: Annotated[
        list[int] | None, typer.Option(help="Captions at once (repeat). Default: 1, as the paper, and 64.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the table as Parquet or CSV.")] = None,
) -> None:
    """Captions per second of both teachers and the student, in one run on this machine."""
    from benchmarks.throughput import icc_throughput
    from curation_assets.scoring.files import read_captions
    from curation_assets.world.pool import plant_labelled_captions

    if captions is None:
        texts = [text for text, _ in plant_labelled_captions(400, 9_100_001)]
    else:
        texts = read_captions(captions)["caption"].drop_nulls().to_list()
    measured = icc_throughput(
        profile_for_files(settings_from(None, profile).profile, role or []),
        texts,
        seconds=seconds,
        batch_sizes=batch_size or [1, 64],
        progress=reporter_for(console),
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("scorer", "batch", "captions", "seconds", "captions/s", "of the student's", "hours for 8 M"):
        table.add_column(heading, justify="left" if heading == "scorer" else "right")
    for row in measured.iter_rows(named=True):
        table.add_row(
            row["scorer"], str(row["batch_size"]), f"{row['captions']:,}", f"{row['seconds']:.1f}",
            f"{row['captions_per_second']:.2f}", f"{row['relative_to_student']:.4f}",
            f"{row['hours_for_8m_captions']:,.1f}",
        )  # fmt: skip
    console.print(table)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        measured.write_parquet(out) if out.suffix == ".parquet" else measured.write_csv(out)
        console.print(f"Written to {out}", highlight=False)

"""curate score and methods: one method over one file, without Dagster."""

from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
import yaml
from rich.markup import escape
from rich.table import Table

from curation_assets.cli.common import ProfileOption, console, errors_as_sentences, settings_from
from curation_assets.core.progress import reporter_for
from curation_assets.core.roles import ROLES
from curation_assets.core.settings import Profile
from curation_assets.methods import all_methods
from curation_assets.numeric.standardise import LengthDependence, caption_length, length_dependence
from curation_assets.scoring.files import read_captions, score_file, unfinished_folder
from curation_assets.scoring.prepared import prepare_method, profile_without_pool


@errors_as_sentences
def score(
    method: Annotated[str, typer.Argument(help="A method; see `curate methods`.")],
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="txt (a caption per line), tsv, csv, parquet (column caption), or webdataset tars.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="Output: .parquet, .csv, .tsv or .jsonl.")],
    profile: ProfileOption = None,
    role: Annotated[
        list[str] | None, typer.Option("--role", help="Another model for a role: ROLE=ADDRESS (repeat).")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="A setting of the method, over the profile's: NAME=VALUE (repeat), VALUE as YAML."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also what the method says of each row: which rule dropped it, and so on.")
    ] = False,
) -> None:
    """Score every caption (or image–caption pair) of a file; row order is kept, failures carry a reason.

    Finished rows are saved once a minute: a stopped run goes on where it was.
    """
    addresses = profile_for_files(settings_from(None, profile).profile, role or [])
    given = read_captions(source)
    prepared = prepare_method(method, addresses, given.columns, settings_given(set_ or []))
    chosen = prepared.method
    if unfinished_folder(out).is_dir():
        console.print(f"A stopped run left rows in {unfinished_folder(out)}; those that fit are kept", soft_wrap=True)
    with reporter_for(console).task(method, given.height) as advance:
        scored = score_file(
            chosen,
            source,
            out,
            prepared.roles,
            batch_size=prepared.batch_size,
            progress=advance,
            made_by=prepared.made_by,
            details=details,
        )
    valued = scored[method].drop_nulls().len()
    counted = f"{valued:,} of {scored.height:,} rows have a value of {method} ({chosen.unit})"
    console.print(f"{counted}; written to {out}", highlight=False, soft_wrap=True)
    slope = _length_slope(scored, method)
    if slope is not None:
        console.print(
            f"Length: {slope.slope_per_word:+.5f} of the {method} per word, Spearman {slope.spearman:+.3f}",
            highlight=False,
        )
    missing = scored[f"{method}_reason"].drop_nulls().value_counts(sort=True)
    for reason, count in missing.iter_rows():
        console.print(f"  {count:,} without: {reason}", highlight=False)
    unread = [name for name in chosen.file_settings if name not in prepared.settings]
    if scored.height and not valued and unread:
        hint = " or ".join(f"--set {name}=FILE" for name in unread)
        console.print(f"{method} reads a file that was not named: {hint}", highlight=False, soft_wrap=True)


def settings_given(texts: list[str]) -> dict[str, Any]:
    """Settings of `NAME=VALUE` texts, values read as YAML: 3, true, [a, b], words. Raises ValueError without '='."""
    given = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ValueError(f"--set must read NAME=VALUE, got {text!r}")
        try:
            given[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ValueError(f"--set {name}: {value!r} is no YAML; quote it") from error
    return given


def _length_slope(scored: pl.DataFrame, method: str) -> LengthDependence | None:
    """How much the values follow caption length; None where fewer than two rows have both."""
    both = scored.drop_nulls(["caption", method])
    if both.height < 2:
        return None
    return length_dependence(both[method].to_numpy(), caption_length(both["caption"].cast(pl.String).to_list()))


def profile_for_files(profile: Profile, replacements: list[str]) -> Profile:
    """The profile with `ROLE=ADDRESS` replacements, for what no pool holds.

    Raises ValueError for an unknown role or a replacement without '='.
    """
    given: dict[str, str] = {}
    for text in replacements:
        name, sign, address = text.partition("=")
        if not sign or name not in ROLES:
            raise ValueError(f"--role must read ROLE=ADDRESS with a role of {', '.join(ROLES)}; got {text!r}")
        given[name] = address
    return profile_without_pool(profile, given)


@errors_as_sentences
def methods(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the README's table.")] = False,
    into: Annotated[
        Path | None, typer.Option("--into", help="Write the table between the markers of this Markdown file.")
    ] = None,
) -> None:
    """List every scoring method with unit, direction, source and profiles; pools run those marked default."""
    from curation_assets.outputs.report.method_table import markdown_table, method_rows, write_table

    if into is not None:
        console.print(f"{into}: {'written' if write_table(into) else 'up to date'}", highlight=False, soft_wrap=True)
        return
    if markdown:
        typer.echo(markdown_table())
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("method", "stage", "runs", "unit", "better", "reads", "profiles", "version", "source"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "method")
    for method, row in zip(all_methods().values(), method_rows(), strict=True):
        table.add_row(
            method.name,
            method.stage,
            "default" if method.default else "if named",
            *(escape(row[name]) for name in ("unit", "better", "reads", "profiles")),
            method.version,
            escape(row["source"]),
        )
    console.print(table)

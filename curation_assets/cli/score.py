"""curate score and methods: one method over one file, without Dagster."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import typer
from rich.padding import Padding
from rich.text import Text

from curation_assets.cli.commands import command
from curation_assets.cli.common import (
    FEW,
    HomeOption,
    ProfileOption,
    RoleOption,
    console,
    notice,
    settings_from,
    show,
    show_table,
    warn,
)
from curation_assets.core.progress import reporter_for
from curation_assets.core.roles import ROLES
from curation_assets.core.settings import Profile
from curation_assets.core.yaml_files import parse_yaml
from curation_assets.flow.worth import web_worth_of, worth_of
from curation_assets.methods import Method, all_methods, get_method, own_methods
from curation_assets.numeric.agreement import agreement
from curation_assets.numeric.standardise import caption_length, length_dependence
from curation_assets.scoring.derived import DERIVED_COLUMNS
from curation_assets.scoring.files import (
    check_columns,
    check_out,
    columns_and_rows,
    score_file,
    unfinished_folder,
)
from curation_assets.scoring.prepared import prepare_method, profile_for_method, profile_without_pool, roles_needed

FACTS = ("unit", "better", "reads", "profiles", "version", "source")  # of a method, as `curate methods` lists them
WIDE = 160  # columns from which they fit into a table


MethodArgument = Annotated[str, typer.Argument(help="A method; see `curate methods`.")]
SourceArgument = Annotated[
    Path,
    typer.Argument(
        metavar="INPUT",
        help="txt (a caption per line), tsv, csv, parquet (columns as of `pool add`), or webdataset tars.",
    ),
]
OutOption = Annotated[Path, typer.Option("--out", help="Output: .parquet, .csv, .tsv or .jsonl.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A setting over the profile's, VALUE as YAML (repeat): NAME=VALUE of the method, ROLE.NAME=VALUE of a "
        "model, such as student.precision=bfloat16.",
    ),
]
DetailsOption = Annotated[
    bool,
    typer.Option("--details", help="Also the method's further columns of each row: which rule dropped it, and so on."),
]
RawOption = Annotated[bool, typer.Option("--raw", help="Texts of .csv and .tsv exactly as they are, formulas too.")]


@command("score", "Scores")
def score(
    method: MethodArgument,
    source: SourceArgument,
    out: OutOption,
    profile: ProfileOption = None,
    role: RoleOption = None,
    set_: SetOption = None,
    details: DetailsOption = False,
    raw: RawOption = False,
    home: HomeOption = None,
) -> None:
    """Score every caption, or image–caption pair, of a file.

    Row order is kept, failures carry a reason. Finished rows are saved once a minute: a stopped run goes on where it
    was. A large Parquet file is scored part by part, in bounded memory. In .csv and .tsv a text that a spreadsheet
    would take for a formula gets an apostrophe before it.
    """
    # raises for an unknown name, before a large file is read
    addresses = profile_for_files(profile_for_method(settings_from(home, profile), method), role or [])
    check_out(out)
    names, rows = columns_and_rows(source)
    check_columns(get_method(method), names, source)  # before models are loaded
    prepared = prepare_method(method, addresses, names, settings_given(set_ or []))
    chosen = prepared.method
    caution = chosen.caution(addresses.roles, prepared.settings)
    if caution is not None:
        warn(f"{method}: {caution}")
    if unfinished_folder(out).is_dir():
        notice(f"A stopped run left rows in {unfinished_folder(out)}; those that fit are kept")
    with reporter_for().task(method, rows) as advance:
        scored = score_file(
            chosen,
            source,
            out,
            prepared.roles,
            batch_size=prepared.batch_size,
            progress=advance,
            made_by=prepared.made_by,
            details=details,
            raw=raw,
            returned=["caption", method, f"{method}_reason"],
        )
    valued = scored[method].drop_nulls().len()
    counted = f"{valued:,} of {scored.height:,} rows have a value of {method} ({chosen.unit})"
    show(f"{counted}; written to {out}")
    line = _length_line(scored, method)
    if line is not None:
        show(line)
    if "image" in chosen.columns or set(chosen.columns) & set(DERIVED_COLUMNS):
        for where, worth in _worths(method, addresses).items():
            show(f"With the models of {addresses.name} {where}: {worth}")
    missing = scored[f"{method}_reason"].drop_nulls().value_counts(sort=True)
    for reason, count in missing.iter_rows():
        show(f"  {count:,} without: {reason}")
    unread = [name for name in chosen.file_settings if name not in prepared.settings]
    if scored.height and not valued and unread:
        hint = " or ".join(f"--set {name}=FILE" for name in unread)
        notice(f"{method} reads a file that was not named: {hint}")


def settings_given(texts: list[str]) -> dict[str, Any]:
    """Settings of `NAME=VALUE` texts, values read as YAML: 3, true, [a, b], words. Raises ValueError without '='."""
    given = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ValueError(f"--set must read NAME=VALUE, got {text!r}")
        given[name] = parse_yaml(value, f"--set {name}")
    return given


def _length_line(scored: pl.DataFrame, method: str) -> str | None:
    """How much the values follow caption length; None where too few rows have both for a correlation."""
    both = scored.drop_nulls(["caption", method])
    values = both[method].to_numpy().astype(np.float64)
    words = caption_length(both["caption"].cast(pl.String).to_list())
    if both.height >= FEW:
        slope = length_dependence(values, words)
        return f"Length: {slope.slope_per_word:+.5f} of the {method} per word, Spearman {slope.spearman:+.3f}"
    if both.height < 3 or np.ptp(values) == 0 or np.ptp(words) == 0:
        return None
    few = agreement(values, words, np.random.default_rng(0))
    low, high = few.intervals["spearman"]
    return f"Length: Spearman {few.spearman:+.3f} with words (n = {few.n}, 95 % {low:+.3f} to {high:+.3f})"


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


@command("methods", "Scores")
def methods(
    profile: Annotated[
        str | None,
        typer.Option("--profile", help="Which methods this profile runs, and what each is worth."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of docs/user/methods.md.")] = False,
    into: Annotated[
        Path | None, typer.Option("--into", help="Write the table between the markers of this Markdown file.")
    ] = None,
    home: HomeOption = None,
) -> None:
    """List every scoring method with unit, direction, source and profiles.

    Pools run those marked default. `curate methods check FILE` tries one of your own (docs/user/own_methods.md).
    """
    from curation_assets.outputs.report.method_table import markdown_table, method_rows, write_table

    if into is not None:
        show(f"{into}: {'written' if write_table(into) else 'up to date'}")
        return
    if markdown:
        for line in markdown_table().split("\n"):
            show(line)
        return
    settings = settings_from(home, profile)
    own, faults = own_methods()
    for fault in faults:
        warn(fault)
    every = sorted([*all_methods().values(), *own], key=lambda method: method.name)
    if profile is not None:
        _show_profile(settings.profile, every)
        return
    rows = []
    for method, row in zip(every, method_rows(methods=every), strict=True):
        facts = {**row, "version": method.version}
        rows.append((method.name, method.stage, _runs(method), *(facts[name] for name in FACTS)))
    headings = ("method", "stage", "runs", *FACTS)
    if console.width >= WIDE:
        show_table(headings, rows, left=headings, keep=("method",))
        return
    for name, stage, runs, *values in rows:
        show(Text.assemble((name, "bold"), f"  {stage}, {runs}"))
        for fact, value in zip(FACTS, values, strict=True):
            console.print(Padding(Text(f"{fact}: {value}"), (0, 0, 0, 4)))


def _worths(method: str, profile: Profile) -> dict[str, str]:
    """Where it was measured → what a method is worth there with the models of a profile."""
    reference = f"signals.{method}"
    return {
        "on web pairs (own text against others')": str(web_worth_of(reference, profile, None)),
        "on photographs that people described (clean against planted noise)": str(worth_of(reference, profile)),
    }


def _runs(method: Method) -> str:
    """In which pools a method runs: a pool of captions only leaves out methods that read images."""
    runs = "default" if method.default else "if named"
    if method.origin:
        runs = "your own, if named"
    return f"{runs}, with images" if method.image_columns else runs


def _show_profile(profile: Profile, methods: Iterable[Method]) -> None:
    """The methods that a profile runs: with which models, and what their values are worth."""
    from curation_assets.outputs.report.method_table import availability

    chosen = profile_without_pool(profile)
    rows = []
    for method in methods:
        lacks = availability(method, chosen)
        models = ", ".join(chosen.roles[role] for role in roles_needed(method, ()) if role in chosen.roles)
        worths = _worths(method.name, chosen)
        if lacks and lacks.startswith("needs "):
            worths = dict.fromkeys(worths, lacks)
        rows.append((method.name, _runs(method), models or "none", *worths.values()))
    headings = ("method", "runs", "models", *worths)
    if console.width >= WIDE:
        show_table(headings, rows, left=headings, keep=("method",))
        return
    for name, runs, *values in rows:
        show(Text.assemble((name, "bold"), f"  {runs}"))
        for fact, value in zip(headings[2:], values, strict=True):
            console.print(Padding(Text(f"{fact}: {value}"), (0, 0, 0, 4)))

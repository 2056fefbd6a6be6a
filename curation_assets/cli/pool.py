"""curate pool: declare one's own data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import (
    HomeOption,
    JsonOption,
    PoolArgument,
    WaitOption,
    each_pool,
    notice,
    settings_from,
    show,
    show_json,
    show_table,
    warn,
    with_home,
)
from curation_assets.core.settings import DEFAULT_PROFILE, PHOTO_PROFILE, named_profile
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import why_broken
from curation_assets.flow.worth import WEB
from curation_assets.methods import get_method
from curation_assets.operations.removed_pools import check_unused
from curation_assets.operations.removed_shards import remove_shards
from curation_assets.sources import declaration
from curation_assets.sources.declaration import Pool, add_pool, list_pools, load_pool
from curation_assets.sources.options import SourceOptions
from curation_assets.sources.shards import discover_shards
from curation_assets.sources.text_columns import COLUMN_OPTIONS, carried_columns
from curation_assets.stores.atomic import remove_path
from curation_assets.stores.catalog import rebuild_catalog
from curation_assets.stores.documents import save_text
from curation_assets.stores.lease import alone_with_tables, pool_lease
from curation_assets.stores.samples import OWN_ID

NameArgument = Annotated[str, typer.Argument(help="Lower-case letters, digits, underscores.")]
PathArgument = Annotated[
    Path,
    typer.Argument(
        help="Folder of img2dataset/webdataset tars; parquet/csv/tsv/jsonl of url + caption (text also .gz); "
        "Hugging Face Parquet with images; folder of images with any csv (columns such as file,caption), or "
        "with KEY.txt beside KEY.jpg."
    ),
]
CaptionColumnOption = Annotated[str | None, typer.Option(help="Column of the captions, where not recognised.")]
UrlColumnOption = Annotated[
    str | None, typer.Option(help="Column of the image URLs; 'none': captions only, nothing is downloaded.")
]
IdColumnOption = Annotated[str | None, typer.Option(help="Column of ids, to make sample_ids from; 'none': none.")]
ImageColumnOption = Annotated[
    str | None,
    typer.Option(help="Column of image bytes or of file names; 'none': images of the table are not read."),
]
SourceColumnOption = Annotated[
    str | None, typer.Option(help="Column (of tars: key of the json) of the source's name; 'none': not read.")
]
LicenceColumnOption = Annotated[str | None, typer.Option(help="The same of the licence: an SPDX id, a name or a page.")]
LicenceUrlColumnOption = Annotated[str | None, typer.Option(help="The same of the licence's page.")]
CreatorColumnOption = Annotated[str | None, typer.Option(help="The same of the image's creator.")]
SourceUrlColumnOption = Annotated[str | None, typer.Option(help="The same of the page that the row comes from.")]
LanguageColumnOption = Annotated[str | None, typer.Option(help="The same of the caption's language.")]
SignalOption = Annotated[
    list[str] | None,
    typer.Option(
        help="METHOD=COLUMN: the table has the method's values, such as clip_score=clip_b32_similarity_score (repeat)."
    ),
]
NoHeaderOption = Annotated[
    bool, typer.Option("--no-header", help="csv, tsv: the first line is data; columns are column_0, column_1, …")
]
EncodingOption = Annotated[str, typer.Option(help="csv, tsv: utf-8, utf-16, latin-1, cp1252 …")]
SeparatorOption = Annotated[
    str | None, typer.Option(help="csv, tsv: comma, tab, semicolon or bar, where the header does not show it.")
]
QuotingOption = Annotated[
    str | None,
    typer.Option(help='csv, tsv: doubled ("" in quotes) or none (quotation marks are text; usual in a .tsv).'),
]
ShardSizeOption = Annotated[
    int | None, typer.Option(help="Rows per shard of a table (default 500); tars are shards already.")
]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(help="Download from this host although it is private: HOST or HOST:PORT (repeat)."),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", help="Profile by name or path, for every run (default with images: photos)."),
]


@command("pool add", "Pools")
def add(
    name: NameArgument,
    path: PathArgument,
    caption_column: CaptionColumnOption = None,
    url_column: UrlColumnOption = None,
    id_column: IdColumnOption = None,
    image_column: ImageColumnOption = None,
    source_column: SourceColumnOption = None,
    licence_column: LicenceColumnOption = None,
    licence_url_column: LicenceUrlColumnOption = None,
    creator_column: CreatorColumnOption = None,
    source_url_column: SourceUrlColumnOption = None,
    language_column: LanguageColumnOption = None,
    signal: SignalOption = None,
    no_header: NoHeaderOption = False,
    encoding: EncodingOption = "utf-8",
    separator: SeparatorOption = None,
    quoting: QuotingOption = None,
    shard_size: ShardSizeOption = None,
    allow_host: AllowHostOption = None,
    home: HomeOption = None,
    profile: ProfileOption = None,
) -> None:
    """Declare a pool; its kind and columns are recognised from what lies at PATH."""
    settings = settings_from(home)
    if profile is not None:
        profile = named_profile(profile)
    column_options = {
        "caption": caption_column,
        "url": url_column,
        "uid": id_column,
        "image": image_column,
        "source": source_column,
        "licence": licence_column,
        "licence_url": licence_url_column,
        "creator": creator_column,
        "source_url": source_url_column,
        "language": language_column,
    }
    named = {ours: theirs for ours, theirs in column_options.items() if theirs is not None}
    columns = {ours: None if theirs == "none" else theirs for ours, theirs in named.items()}
    declared: dict[str, Any] = {}
    if signal:
        values = _pairs(signal, "--signal takes METHOD=COLUMN, each method")
        declared["options"] = {"given_signals": {get_method(method).name: column for method, column in values.items()}}
    if shard_size is not None:
        declared["shard_size"] = shard_size
    path_of_pool = settings.pools_root / f"{name}.yaml"
    is_new = name not in list_pools(settings)
    pool = add_pool(
        settings,
        name,
        path,
        columns=columns,
        header=not no_header,
        encoding=encoding,
        separator=separator,
        quoting=quoting,
        allow_hosts=tuple(allow_host or ()),
        profile=profile,
        **declared,
    )
    try:
        shards = discover_shards(pool, settings)
        notes = list(pool.source_kind.describe(pool, settings, columns))
    except Exception:
        if is_new:  # what cannot be read is not declared
            remove_path(path_of_pool)
        raise
    show(f"Pool {pool.name}: {pool.kind_in_words}, {len(shards)} shards, declared in {path_of_pool}")
    if shard_size is not None and pool.source_kind.has_own_tars:
        warn("--shard-size is of tables: here each tar is a shard")
    say = {"warning": warn, "fact": show, "hint": notice}
    for note in notes:
        say[note.level](note.text)
    if OWN_ID in pool.columns:
        show(f"Own ids of {pool.columns[OWN_ID]} are no sample_ids (32 hex digits): kept as {OWN_ID}, also in exports")
    carried = carried_columns(pool.columns)
    if carried:
        listed = ", ".join(f"{ours} {theirs}" for ours, theirs in carried.items())
        show(f"Where rows come from: {listed} ({COLUMN_OPTIONS[next(iter(carried))]} names another, or none)")
    for method, column in SourceOptions.of(pool).given_signals.items():
        show(f"{method}: as given in {column}; no model computes it")
    _show_profile(pool)
    notice(f"Next: `curate run {pool.name}` (`curate ui` shows the pool by itself; dagster-webserver after a reload)")


def _show_profile(pool: Pool) -> None:
    name = pool.profile or DEFAULT_PROFILE
    if pool.profile == PHOTO_PROFILE:
        show(
            with_home(
                f"Profile: {name}, small models for photographs (`curate methods --profile {name}` gives what each "
                "value is worth, on web pairs too). Another: --profile, or the line `profile:` of the declaration"
            )
        )
    elif pool.image_domain in (WEB, "photographs") and name == DEFAULT_PROFILE:
        show(f"Profile: {name}, whose models know drawn scenes only; for photographs: profile {PHOTO_PROFILE}")
    else:
        show(f"Profile: {name}")


def _pairs(values: list[str], expected: str) -> dict[str, str]:
    """NAME=VALUE, … → name → value. Raises ValueError for another form, and for a name twice."""
    pairs = dict(value.split("=", 1) for value in values if "=" in value)
    if len(pairs) < len(values):
        raise ValueError(f"{expected} once; got {values}")
    return pairs


@command("pool list", "Pools")
def list_all(as_json: JsonOption = False, home: HomeOption = None) -> None:
    """Show the declared pools.

    Exit status 1 where one cannot be loaded, or its source cannot be read: it is named, the others are shown.
    """
    settings = settings_from(home)
    listed: list[dict[str, Any]] = []

    def add_row(name: str) -> None:
        row: dict[str, Any] = {"pool": name, "kind": None, "shards": None, "source": None, "profile": None}
        listed.append(row)
        pool = load_pool(settings, name)
        row |= {"kind": pool.kind_in_words, "source": pool.source or None, "profile": pool.profile}
        row["shards"] = len(discover_shards(pool, settings))
        if why := why_broken(settings, name):
            raise ValueError(why)

    failed = each_pool(list_pools(settings), add_row)
    if as_json:
        show_json([row | {"error": failed.get(row["pool"])} for row in listed])
    else:
        rows = [
            (
                row["pool"],
                "broken" if row["pool"] in failed else row["kind"],
                "–" if row["shards"] is None else str(row["shards"]),
                row["source"] or ("–" if row["kind"] is None else "planted"),
            )
            for row in listed
        ]
        show_table(("pool", "kind", "shards", "source"), rows, left=("pool", "kind", "source"))
    if failed:
        raise typer.Exit(1)


@command("pool set", "Pools")
def set_values(
    pool: PoolArgument,
    values: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE...", help="Such as fraction=0.3 or allow_hosts=127.0.0.1:8000."),
    ],
    home: HomeOption = None,
) -> None:
    """Change values of a pool's declaration; comments stay.

    Keys are fields of the declaration, or options (docs/user/options.md), with or without `options.` before them.
    Values are written as in YAML. Nothing is written where one does not fit.
    """
    settings = settings_from(home)
    pairs = _pairs(values, "expected KEY=VALUE, each key")
    path = settings.pools_root / f"{pool}.yaml"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    declaration.set_values(settings, pool, pairs)
    if why := why_broken(settings, pool):
        save_text(path, text)
        raise ValueError(f"{why}; {path} is as it was")
    show(f"Pool {pool}: {', '.join(values)} set in {path}")
    notice(f"Next: `curate plan {pool}` shows what that makes again")


@command("pool remove", "Pools")
def remove(
    pool: PoolArgument,
    tables: Annotated[bool, typer.Option("--tables", help="Also delete all that was computed and downloaded.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Without asking.")] = False,
    wait: WaitOption = True,
    home: HomeOption = None,
) -> None:
    """Remove a pool's declaration; its tables stay where --tables is not given.

    Refused while a release or another pool rests on it. The source is never touched.
    """
    from curation_assets.defs.launch import prepare_instance  # Dagster takes seconds to import

    settings = settings_from(home)
    path, work = settings.pools_root / f"{pool}.yaml", settings.work(pool)
    this_command = f"curate pool remove {pool}"
    declared = path.is_file()
    if not declared and not (tables and work.is_dir()):
        load_pool(settings, pool)  # says which there are
    check_unused(settings, pool)
    deleted = []
    if declared:
        deleted.append(str(path))
    if tables:
        deleted.append(f"all of {work}")
    what = " and ".join(deleted)
    if not yes:
        typer.confirm(f"Delete {what}?", abort=True, err=True)
    with (
        pool_lease(work, this_command, on_notice=notice, wait=wait),
        alone_with_tables(work, this_command, on_notice=notice),
        prepare_instance(settings) as instance,
    ):
        for shard in instance.get_dynamic_partitions(pool):
            instance.delete_dynamic_partition(pool, shard)
        remove_path(path)
    if tables or not any(work.glob("*/*/*")):  # a folder without tables holds locks only
        remove_path(work)
    rebuild_catalog(settings.home)
    show(f"Deleted: {what}")


@command("pool remove-shard", "Pools")
def remove_shard(
    pool: PoolArgument,
    shards: Annotated[list[str], typer.Argument(help="Shards that the source no longer has; `curate run` names them.")],
    wait: WaitOption = True,
    home: HomeOption = None,
) -> None:
    """Delete all tables of shards that the source no longer has.

    No other sample's verdict changes.
    """
    from curation_assets.defs.launch import prepare_instance  # Dagster takes seconds to import
    from curation_assets.defs.partitions import unregister

    settings = settings_from(home)
    work, this_command = settings.work(pool), f"curate pool remove-shard {pool}"
    with (
        pool_lease(work, this_command, on_notice=notice, wait=wait),
        alone_with_tables(work, this_command, on_notice=notice),
        prepare_instance(settings) as instance,
    ):
        ctx = PoolContext.open(settings, pool)
        count = remove_shards(ctx, shards)
        unregister(instance, ctx, shards)
    show(f"{count} tables of {len(shards)} shards removed.")
    notice(f"Next: `curate run {pool}` (subsets and ledgers; cuts stay as they are until `curate refit {pool}`)")

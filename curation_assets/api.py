"""The Python interface: score captions and pairs, declare and run a pool, read its tables, ask why and what differs.

Import it as `import curation_assets as ca`. Nothing is computed here: each function calls what the command calls.

Folders: `home` is where everything is written (None: $CURATION_HOME, else ./data). `profile` names which model fills
which role: 'embedded' (ships with the package), 'hub', or the path of a YAML file (None: $CURATION_PROFILE, else
'embedded').

Errors that a caller can do something about are ExpectedError, ValueError or OSError, and state what was got, what was
expected and what to do.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from curation_assets.audit.diff import WholeDifference, find_policy, policy_comparison, what_if
from curation_assets.audit.why import explain
from curation_assets.core.errors import ExpectedError
from curation_assets.core.progress import Silent, reporter_for
from curation_assets.core.settings import Settings, load_settings, named_profile
from curation_assets.core.validation import check_known
from curation_assets.core.visible import Terminal
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of, policy_names
from curation_assets.flow.graph import tables_of
from curation_assets.flow.table import TableReport
from curation_assets.methods import get_method
from curation_assets.outputs.exports.subset import find_subset, subset_of_release, with_chosen_captions
from curation_assets.outputs.report.method_table import method_rows
from curation_assets.scoring import files, prepared
from curation_assets.scoring.prepared import ImageInput
from curation_assets.sources import declaration
from curation_assets.sources.download.download import DownloadSettings
from curation_assets.stores.releases import find_release
from curation_assets.stores.shard_store import MissingTableError

if TYPE_CHECKING:
    from curation_assets.outputs.loading.dataset import SubsetStream

__all__ = [
    "ExpectedError",
    "Pool",
    "add_pool",
    "dataset",
    "list_methods",
    "list_pools",
    "open_pool",
    "score_captions",
    "score_file",
    "score_pairs",
]

# -- scoring without a pool -------------------------------------------------------------------------------------------


def score_captions(
    method: str,
    captions: Iterable[str | None],
    *,
    profile: str | None = None,
    roles: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> pl.DataFrame:
    """Score N captions by a method that reads no image, such as 'icc'.

    Returns N rows in the order of `captions`: caption, value (float in the method's unit, see `list_methods`; null with
    a reason), reason (null or a short word such as 'no_caption'), then the method's details.
    `roles`: role name → address of another model, such as {'student': 'path:/models/icc'}. `settings`: of the method,
    over the profile's, or of a model that it runs, as {'student.precision': 'bfloat16'}. Models are loaded once per
    process.
    Raises ValueError for an unknown method, role or setting, or a method that looks at images; ModelUnavailableError
    (an ExpectedError) for weights that are not on this disk.
    """
    texts = prepared.several(captions, "captions")
    return prepared.score_captions(_prepared(method, ("caption",), "captions", profile, roles, settings), texts)


def score_pairs(
    method: str,
    images: Sequence[ImageInput],
    captions: Sequence[str | None],
    *,
    profile: str | None = None,
    roles: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> pl.DataFrame:
    """Score N image–caption pairs by any method, such as 'clip_score'.

    `images`: (N,) paths (relative ones start at the working folder), PIL images, or None for no image. Each is turned
    upright and made RGB. Returns N rows in order: image (its path; null for an image in memory), caption, value,
    reason (such as 'image_not_found'), then the method's details.
    Raises what `score_captions` raises, and ValueError for another number of captions than images.
    """
    given, texts = prepared.several(images, "images"), prepared.several(captions, "captions")
    ready = _prepared(method, ("image", "caption"), "pairs", profile, roles, settings)
    return prepared.score_pairs(ready, given, texts)


def score_file(
    method: str,
    source: Path | str,
    out: Path | str,
    *,
    profile: str | None = None,
    roles: Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    details: bool = False,
) -> pl.DataFrame:
    """Score a file of captions or pairs and write it again with two more columns: `<method>` and `<method>_reason`.

    `source`: .txt (one caption per line), .tsv, .csv or .parquet with a column caption (and image, paths relative to
    the file), a webdataset .tar or a folder of tars. `out`: .parquet, .csv, .tsv or .jsonl. Rows keep their order.
    A stopped call goes on from its finished rows. Returns the table written.
    Raises what `score_captions` raises, FileNotFoundError for no such source, ValueError for another kind of file
    and an `out` that exists.
    """
    source, out = Path(source), Path(out)
    files.check_out(out)
    columns, _ = files.columns_and_rows(source)
    ready = _prepared(method, columns, source, profile, roles, settings)
    return files.score_file(
        ready.method,
        source,
        out,
        ready.roles,
        batch_size=ready.batch_size,
        made_by=ready.made_by,
        details=details,
    )


def _prepared(
    method: str,
    columns: Iterable[str],
    source: Path | str,
    profile: str | None,
    roles: Mapping[str, str] | None,
    settings: Mapping[str, Any] | None,
) -> prepared.PreparedMethod:
    chosen = prepared.profile_for_method(load_settings(None, profile), method)
    addresses = prepared.profile_without_pool(chosen, roles)
    files.check_columns(get_method(method), list(columns), source)  # before models are loaded
    return prepared.prepare_method(method, addresses, list(columns), settings)


def list_methods() -> pl.DataFrame:
    """Every scoring method, one row each: name, what its value is, unit and bounds, which end is better, source."""
    return pl.DataFrame(method_rows())


# -- pools ------------------------------------------------------------------------------------------------------------


class Pool:
    """A declared pool: run it, read its tables. Made by `open_pool` and `add_pool`."""

    def __init__(self, context: PoolContext) -> None:
        self._context = context

    def __repr__(self) -> str:
        return f"Pool({self.name!r}, home={str(self.settings.home)!r})"

    @property
    def name(self) -> str:
        """As declared in `<home>/pools/<name>.yaml`."""
        return self._context.pool.name

    @property
    def settings(self) -> Settings:
        """Home folder, profile, threads and worker processes."""
        return self._context.settings

    @property
    def shards(self) -> list[str]:
        """Keys of the shards that the pool's source holds, sorted, such as 'mine-000000'."""
        return self._context.shards()

    @property
    def tables(self) -> list[str]:
        """Names of the pool's tables ('stage/name'), each after its inputs, computed or not."""
        return list(tables_of(self._context))

    @property
    def policies(self) -> list[str]:
        """Names of the policies that the pool applies; each has a subset after a run."""
        return [policy.name for policy in policies_of(self._context)]

    def run(
        self,
        *,
        shards: Sequence[str] | None = None,
        tables: Sequence[str] | None = None,
        progress: bool = True,
        on_table: Callable[[TableReport], None] = lambda report: None,
    ) -> list[TableReport]:
        """Bring all tables up to date, or those named; what is up to date is not made again.

        `shards`: keys, numbers or ranges ('3..17', with both ends); then their tables alone, none of the whole pool.
        `progress`: bars on a terminal, else lines, on standard error. `on_table` is called after each table.
        Returns one report per table: name, seconds, rows, shards reused and computed.
        Raises RunFailedError (a ValueError) that names what failed; what is finished is kept, and a second call goes on
        from there. ValueError for an unknown table or what is no shard key.
        """
        from curation_assets.defs.publishing import run_and_publish  # Dagster takes seconds to import

        console = Terminal(stderr=True)
        return run_and_publish(
            self.settings,
            self.name,
            progress=reporter_for(console) if progress else Silent(),
            on_table=on_table,
            on_notice=lambda sentence: console.print(sentence, markup=False, highlight=False, soft_wrap=True),
            shards=shards,
            tables=tables,
        )

    def subset(self, policy: str) -> pl.DataFrame:
        """The samples that a policy keeps, in source order: the columns of raw/samples, rank and the signals it read.

        Samples that were taken down are left out. Raises MissingTableError (an ExpectedError) before the first run,
        ValueError for an empty subset.
        """
        return find_subset(self._context, policy).rows

    def table(self, name: str, shard: str | None = None) -> pl.DataFrame:
        """A table ('stage/name'): of all shards with the column `shard`, or of one shard.

        What is read of one file is checked against its content hash. Raises MissingTableError for a table that is not
        computed, CorruptTableError for a damaged one (ExpectedErrors), ValueError for a name that is no table's.
        """
        store = self._context.store
        if shard is None and not store.table_path(name).is_file():
            return self.scan(name).collect()
        with self._naming_tables(name):
            return store.read(name, shard)

    def scan(self, name: str) -> pl.LazyFrame:
        """A table lazily: only the columns and rows that a query needs are read. Raises as `table` does."""
        with self._naming_tables(name):
            return self._context.store.scan(name)

    @contextlib.contextmanager
    def _naming_tables(self, name: str) -> Iterator[None]:
        """A table that is not there, and that no pool of these options has, is a wrong name: with the nearest."""
        try:
            yield
        except (MissingTableError, ValueError):
            if of_name := [table for table in self.tables if table.endswith(f"/{name}")]:
                raise ValueError(f"a table is named stage/name, got {name!r}; did you mean {of_name[0]!r}?") from None
            check_known(f"pool {self.name!r}", "table", [name], self.tables)
            raise

    def why(self, identifier: str) -> list[dict[str, Any]]:
        """Why a sample was kept or dropped: one entry per row of raw/samples that `identifier` fits.

        `identifier`: sample_id (32 hex digits), sha256 of its image (64), or URL. An entry holds the sample, the raw
        stage's outcome, and under 'policies' each verdict with its signal values, threshold, margin, rank, models and
        run.
        Raises ValueError for another kind of identifier, or one that the pool does not have.
        """
        return explain(self.settings, identifier, [self.name], partial(policy_names, self.settings))

    def diff(
        self,
        left: str,
        right: str | None = None,
        *,
        fraction: float | None = None,
        threshold: float | None = None,
        rank_by: str | None = None,
    ) -> WholeDifference:
        """Two policies side by side, or one (`right` None) with another fraction, threshold or ranking signal.

        The result has `overlap` (counts, iou), `transitions`, `nearest` (dropped by the smallest margin), `shifts`
        (which groups each favours) and `leave_one_out` as polars frames, and `to_dict()`.
        `fraction` in (0, 1] of the samples; `threshold` in the signal's unit; `rank_by` such as 'signals.clip_score'.
        Raises ValueError for an unknown policy or two that are the same; MissingTableError before the first run.
        """
        known = {policy.name: policy for policy in policies_of(self._context)}
        other = what_if(find_policy(known, right or left), fraction=fraction, threshold=threshold, rank_by=rank_by)
        return policy_comparison(self._context.store, find_policy(known, left), other).whole()


def dataset(
    subset: str,
    *,
    pool: str | None = None,
    home: Path | str | None = None,
    columns: Sequence[str] = ("image", "caption"),
    captions: Literal["raw", "chosen"] = "raw",
    transform: Callable[[dict[str, Any]], Any] | None = None,
    missing: Literal["error", "skip"] = "error",
    shuffle_seed: int | None = None,
    **order: Any,
) -> "SubsetStream":
    """A subset as a `torch.utils.data.IterableDataset`, read from the tars as they are; `.samples` is a map-style one.

    `subset`: 'release:NAME', a policy, or a file of ids as `curate export` takes them. `pool`: by name, where there is
    more than one. `columns`: image (bytes of the file), pixels (RGB image of PIL), caption, key (SAMPLE_ID-0 …),
    sample_id, or any column of `Pool.subset`; a sample is a dict of these, or what `transform` makes of it.
    `captions`: raw, or those of the pool's option caption_choice. `missing`: whether a sample that changed or went
    raises MissingSampleError or is left out and counted (`missing`, `skipped`). `shuffle_seed`: None keeps the
    source's order, else every epoch (`set_epoch`) has its own. `order`: shuffle_window, batch_size, drop_last, rank,
    world_size (docs/user/loader.md).
    Raises ValueError for an empty subset and unknown columns, MissingReleaseError for a withdrawn release.
    """
    from curation_assets.outputs.loading.dataset import Reading, SubsetSamples, SubsetStream  # torch takes seconds

    settings = load_settings(home)
    declared = declaration.list_pools(settings)
    is_first = os.environ.get("RANK", "0") == "0"  # tars' headers are read the first time: one rank shows it
    progress = reporter_for() if is_first else Silent()
    kind, _, name = subset.partition(":")
    release = find_release(settings.home, name, pool) if kind == "release" else None
    if release is not None:
        located = subset_of_release(PoolContext.open(settings, release.pool, progress=progress), release)
    else:
        pools = declared if pool is None else [pool]
        if len(pools) != 1:
            raise ValueError(f"give pool: {', '.join(pools) or 'none is declared'}")
        located = find_subset(PoolContext.open(settings, pools[0], progress=progress), subset)
    if captions not in ("raw", "chosen"):
        raise ValueError(f"captions must be raw or chosen, got {captions!r}")
    located = with_chosen_captions(located) if captions == "chosen" else located
    reading = Reading(tuple(columns), transform, missing, settings.home, located.ctx.pool.download.limits)
    return SubsetStream(SubsetSamples(located, reading), shuffle_seed=shuffle_seed, **order)


def add_pool(
    name: str,
    path: Path | str,
    *,
    home: Path | str | None = None,
    profile: str | None = None,
    columns: Mapping[str, str | None] | None = None,
    shard_size: int = 500,
    allow_hosts: Sequence[str] = (),
    download: Mapping[str, Any] | None = None,
    roles: Mapping[str, str] | None = None,
    **options: Any,
) -> Pool:
    """Declare a pool from a folder of img2dataset/webdataset tars; a parquet, csv or tsv of captions and URLs; Hugging
    Face Parquet with images; or a folder of images with a table of their captions, or with KEY.txt beside KEY.jpg.

    `name`: lower-case letters, digits, underscores. `columns`: {'caption': …, 'url': …, 'uid': …, 'image': …} where
    the table's names differ from the usual; {'url': None} for captions only. `shard_size`: rows per shard of a table.
    `profile`: by name or path, of this and every later run; None: photos for a pool with images, else embedded.
    `allow_hosts`: private hosts that images may come from. `download`: settings of the download. `roles`: addresses
    of models over the profile's. `options`: the pool's options, such as fraction=0.3 or methods=['sieve'].
    The declaration is written to `<home>/pools/<name>.yaml`; the same declaration again is fine.
    Raises ValueError for a source that is neither, a wrong setting, or a name that is declared differently.
    """
    settings = load_settings(home, profile)
    declaration.add_pool(
        settings,
        name,
        path,
        columns=columns,
        shard_size=shard_size,
        allow_hosts=tuple(allow_hosts),
        profile=None if profile is None else named_profile(profile),
        download=DownloadSettings(**(download or {})),
        roles=roles or {},
        options=options,
    )
    return open_pool(name, home=home, profile=profile)


def open_pool(name: str, *, home: Path | str | None = None, profile: str | None = None) -> Pool:
    """A declared pool. Raises ValueError for an unknown name, with the names there are."""
    return Pool(PoolContext.open(load_settings(home, profile), name))


def list_pools(*, home: Path | str | None = None) -> list[str]:
    """Names of the pools declared under `home`, sorted."""
    settings = load_settings(home)
    return declaration.list_pools(settings)

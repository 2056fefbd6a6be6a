"""The flow: every table of a pool, what it reads and how it is computed. No Dagster here.

A `Table` is declared once, in the file of its stage; Dagster's assets, `curate run` and the lineage are all made from
these declarations. A table is recomputed only when its manifest no longer matches its inputs, models, settings or
code version (`ShardStore.materialise`), so a retry is cheap and a killed run goes on where it stopped.
"""

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import polars as pl
from PIL import Image

from curation_assets.lineage.versions import VersionBook
from curation_assets.methods import Method, all_methods, get_method
from curation_assets.pools import Pool, discover_shards, load_pool
from curation_assets.progress import ProgressReporter, Silent
from curation_assets.scoring import described_settings, with_parameters
from curation_assets.settings import Profile, Settings
from curation_assets.stages import STAGES, check_reads_forward, stage_position
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.images import ImageRejected, decode_image, tar_index
from curation_assets.stores.shard_store import Materialised, ShardStore

Grain = Literal["shard", "pool"]
SBA_BRIDGE = "teachers/sba_bridge"  # the table of a pool that trains its own


@dataclass
class PoolContext:
    """All that a table's computation may use: the pool, its store, the models of the profile, and progress."""

    settings: Settings
    pool: Pool
    store: ShardStore
    run_id: str = ""
    progress: ProgressReporter = field(default_factory=Silent)

    @classmethod
    def open(
        cls, settings: Settings, pool_name: str, *, run_id: str = "", progress: ProgressReporter | None = None
    ) -> "PoolContext":
        """Context of a declared pool. Raises what `load_pool` raises for an unknown name."""
        pool = load_pool(settings, pool_name)
        return cls(settings, pool, ShardStore(settings.work(pool_name)), run_id, progress or Silent())

    @functools.cached_property
    def profile(self) -> Profile:
        """The profile in force, with the pool's own addresses where it names some."""
        addresses = dict(self.pool.roles)
        if not self.distils and self.settings.profile.roles.get("student", "pool:").startswith("pool:"):
            addresses.setdefault("student", "embedded:icc_student")  # nothing distilled here: take the shipped one
        profile = self.settings.profile.with_roles(**addresses)
        if self.trains_sba:
            profile = profile.with_generation("semantic_decoder", bridge="pool:sba_bridge")
        return profile

    @property
    def trains_sba(self) -> bool:
        """Whether this pool trains the bridge of the semantic teacher on its own captions."""
        return self.distils and bool(self.pool.options.get("train_sba", False))

    @property
    def distils(self) -> bool:
        """Whether this pool runs the teachers and distils a student of its own."""
        return bool(self.pool.options.get("distil", self.pool.kind == "world"))

    @property
    def pool_models(self) -> Path:
        """Where `pool:NAME` addresses point: folders of models that this pool distilled."""
        return self.store.root / "distilled"

    def option(self, name: str, default: Any) -> Any:
        """A setting of the pool's declaration, or `default`."""
        return self.pool.options.get(name, default)

    def methods(self, stage: str) -> list[Method]:
        """The methods of a stage that this pool runs, with the settings that the profile gives them.

        A method that is no default runs where the profile's `methods` or the pool's option `methods` (a list of names)
        names it. Raises ValueError for an unknown name in that option.
        """
        named = {get_method(name).name for name in self.option("methods", [])} | set(self.profile.methods)
        return [
            with_parameters(method, **self.profile.methods.get(method.name, {}))
            for method in all_methods().values()
            if method.stage == stage and (method.default or method.name in named)
        ]

    def method_config(self, name: str) -> dict[str, Any]:
        """Settings of a method as its manifests record them; of a setting that names a file also its content."""
        settings = dict(self.profile.methods.get(name, {}))
        return described_settings(all_methods()[name], settings) if name in all_methods() else settings

    def engines(self, roles: Iterable[str]) -> dict[str, Any]:
        """The engines that fill `roles`, loaded once per process."""
        from curation_assets.engines import load_engine  # heavy imports wait until a model is asked for

        return {role: load_engine(role, self.profile, pool_models=self.pool_models) for role in roles}

    def identities(self, roles: Iterable[str]) -> list[Any]:
        """Which models would answer, without loading them."""
        from curation_assets.engines import identify_engine

        return [identify_engine(role, self.profile, pool_models=self.pool_models) for role in roles]

    def batch_size(self, roles: Iterable[str], default: int = 256) -> int:
        """Largest batch that every role of a method takes, in samples."""
        return min((self.profile.batch_size.get(role, default) for role in roles), default=default)

    def image_loader(self) -> Callable[[Mapping[str, Any]], Image.Image]:
        """A function from a row of raw/samples to its RGB image. It raises ImageRejected(reason)."""

        def load(row: Mapping[str, Any]) -> Image.Image:
            if row["tar"] is None or row["member"] is None:
                raise ImageRejected("no_image", f"sample {row['sample_id']} came without an image")
            # Tars of a webdataset pool lie where its owner put them (absolute path), ours under the work folder.
            return decode_image(tar_index(self.store.root / row["tar"]).read(row["member"]), self.pool.download.limits)

        return load

    def shards(self) -> list[str]:
        """Keys of the shards that the pool's source holds, sorted."""
        return discover_shards(self.pool, self.settings)


@dataclass(frozen=True)
class TableReport:
    """How bringing one table up to date went."""

    table: str
    seconds: float  # wall time, checks and metadata included
    row_count: int
    reused: int  # shards (or 1 for a whole-pool table) that needed no work
    computed: int


Compute = Callable[[PoolContext, str | None], pl.DataFrame]
ComputeFolder = Callable[[PoolContext, Path], None]
ComputeShards = Callable[[PoolContext, Sequence[str]], dict[str, pl.DataFrame]]


@dataclass(frozen=True)
class TableCheck:
    """A check of a finished table, shown beside it in Dagster. It warns; it stops nothing."""

    name: str
    description: str
    violations: Callable[[PoolContext, str | None], list[str]]  # one sentence each; empty when all is well


@dataclass(frozen=True)
class Table:
    """One table of the flow. `grain` 'shard': one Parquet per shard; 'pool': one for the whole pool."""

    name: str  # "stage/name"
    grain: Grain
    inputs: tuple[str, ...]
    version: str  # bump when the numbers change
    description: str  # Markdown; first sentence says the grain
    compute: Compute | None = None
    compute_folder: ComputeFolder | None = None  # instead of `compute`: a folder of files (a model)
    compute_shards: ComputeShards | None = None  # the same as `compute` for several shards at once, where that is less
    roles: tuple[str, ...] = ()
    config: Callable[[PoolContext, str | None], Any] | None = None  # settings that change the numbers
    is_frozen: bool = (
        False  # a fit: made once, and again only when code, settings or models change, or by `curate recut`
    )
    continues: str | None = None  # the table whose rows this one carries on, one for one
    kinds: tuple[str, ...] = ("polars",)
    column_lineage: Mapping[str, list[tuple[str, str]]] | None = None  # column → [(table, column)]
    warning_column: str | None = None  # sentences that a person should read, null where all is well
    checks: tuple[TableCheck, ...] = ()  # besides the conservation of rows, which every table is checked for

    def __post_init__(self) -> None:
        if self.grain not in ("shard", "pool"):
            raise ValueError(f"table {self.name!r}: grain must be 'shard' or 'pool', got {self.grain!r}")
        if (self.compute is None) == (self.compute_folder is None):
            raise ValueError(f"table {self.name!r} needs either compute or compute_folder")
        if self.is_frozen and self.grain != "pool":
            raise ValueError(f"table {self.name!r}: only a whole-pool table can be frozen")
        for upstream in self.inputs:
            check_reads_forward(self.name, upstream)

    @property
    def stage(self) -> str:
        """First half of the name."""
        return self.name.split("/")[0]


def tables_of(ctx: PoolContext) -> dict[str, Table]:
    """Every table of the pool by name, in an order in which each comes after its inputs.

    Raises ValueError for an input that no table provides, or a circle.
    """
    import importlib

    declared: dict[str, Table] = {}
    for stage in STAGES:
        for table in importlib.import_module(f"curation_assets.flow.{stage}").tables(ctx):
            if table.name in declared:
                raise ValueError(f"table {table.name!r} is declared twice")
            declared[table.name] = table
    return _sorted_by_inputs(declared)


def _sorted_by_inputs(declared: Mapping[str, Table]) -> dict[str, Table]:
    for table in declared.values():
        missing = [name for name in table.inputs if name not in declared]
        if missing:
            raise ValueError(f"table {table.name!r} reads {missing}, which no stage of this pool provides")
    done: dict[str, Table] = {}
    waiting = sorted(declared.values(), key=lambda table: stage_position(table.stage))
    while waiting:
        ready = [table for table in waiting if all(name in done for name in table.inputs)]
        if not ready:
            raise ValueError(f"tables read each other in a circle: {sorted(table.name for table in waiting)}")
        for table in ready:
            done[table.name] = table
        waiting = [table for table in waiting if table.name not in done]
    return done


def is_up_to_date(ctx: PoolContext, table: Table, shard: str | None = None, *, tables: Mapping[str, Table]) -> bool:
    """Whether `materialise_table` would reuse what is there."""
    return ctx.store.is_fresh(table.name, shard, **_made_from(ctx, table, shard, tables))


def materialise_table(
    ctx: PoolContext, table: Table, shard: str | None = None, *, tables: Mapping[str, Table]
) -> Materialised:
    """Bring one table (of one shard) up to date, reusing what is there when nothing it depends on changed."""
    made_from = _made_from(ctx, table, shard, tables)
    if table.compute_folder is not None:
        compute_folder = table.compute_folder
        return ctx.store.materialise_folder(
            table.name, lambda folder: compute_folder(ctx, folder), run_id=ctx.run_id, **made_from
        )
    assert table.compute is not None, table.name
    compute = table.compute
    return ctx.store.materialise(
        table.name, lambda: compute(ctx, shard), partition=shard, run_id=ctx.run_id, **made_from
    )


def warnings_of(ctx: PoolContext, table: Table) -> list[str]:
    """What a materialised table itself wants a person to read."""
    if table.warning_column is None:
        return []
    return ctx.store.read(table.name)[table.warning_column].drop_nulls().to_list()


def _made_from(ctx: PoolContext, table: Table, shard: str | None, tables: Mapping[str, Table]) -> dict[str, Any]:
    """Everything that decides a table's content: code version, inputs, models, settings."""
    if (shard is None) != (table.grain == "pool"):
        raise ValueError(f"{table.name} has grain {table.grain!r}; got shard {shard!r}")
    inputs: list[tuple[str, str | None]] = []
    for name in table.inputs:
        if tables[name].grain == "pool":
            inputs.append((name, None))
        elif shard is not None:
            inputs.append((name, shard))
        else:
            inputs.extend((name, key) for key in ctx.store.partitions(name))
    config = config_of(ctx, table, shard)
    if table.is_frozen:
        config["behind"] = _code_behind(ctx, table)
    return {
        "code_version": table.version,
        "inputs": inputs,
        "models": ctx.identities(table.roles),
        "config": config,
        "is_frozen": table.is_frozen,
    }


def config_of(ctx: PoolContext, table: Table, shard: str | None) -> dict[str, Any]:
    """Settings that decide a table's content, as its manifest hashes them."""
    return {
        "table": table.config(ctx, shard) if table.config else None,
        "method": ctx.method_config(table.name.split("/")[1]),
        "generation": {role: dict(ctx.profile.generation.get(role, {})) for role in table.roles},
    }


def _code_behind(ctx: PoolContext, table: Table) -> str:
    """Hash over code, settings and models of everything stored that a fit rests on: when they change, so does the fit.

    Rows that come, change or go are no part of it, so the registered rows (whose settings are their source) are not.
    """
    book = VersionBook(ctx.store, ctx.profile.name)
    behind: dict[str, list[str]] = {}
    for asset in book.behind(name.replace("/", ".") for name in table.inputs):
        if asset != "raw/registered_shards":
            made = {
                json.dumps([one.code_version, one.config_hash, [dict(model) for model in one.models]], sort_keys=True)
                for one in book.manifests(asset).values()
            }
            behind[asset] = sorted(made)
    return code_behind_digest(behind)


def code_behind_digest(behind: Mapping[str, Iterable[str]]) -> str:
    """`behind`: table → the different (code version, settings, models) of its partitions, as JSON."""
    told = {name: sorted(made) for name, made in behind.items() if name != "raw/registered_shards"}
    return config_sha256(told)

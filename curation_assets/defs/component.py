"""A pool as a component of another team's Dagster project: its declaration lies in the project's defs.yaml."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from dagster.components.utils.translation import TranslationFn, TranslationFnResolver
from pydantic import BaseModel, ConfigDict, Field

from curation_assets.core.settings import is_bucket_url, load_settings
from curation_assets.core.validation import build, content_of
from curation_assets.defs.automation import backfill_sensor
from curation_assets.defs.names import asset_key
from curation_assets.defs.nightly import nightly_of
from curation_assets.defs.pool import pool_definitions
from curation_assets.defs.steps import observer_resource
from curation_assets.sources.declaration import Pool, keep_declared, pool_at, world_pool

PROJECT = "{{ context.project_root }}"
HOME = f"{PROJECT}/curation"
_OBSERVER = observer_resource()  # one for all pools of a project: Dagster refuses two of a name


class ShownAttributes(dg.Model, dg.Resolvable):
    """How the project shows an asset of the pool; what is not set stays. What makes the asset cannot be set."""

    group_name: str | None = Field(default=None, description="Group, in place of POOL_STAGE.")
    owners: Sequence[str] | None = Field(default=None, description="E-mail addresses, or team:NAME.")
    tags: Mapping[str, str] = Field(default={}, description="Tags, besides those there are.")
    kinds: Sequence[str] = Field(default=[], description="Kinds, in place of those there are.")
    metadata: Mapping[str, Any] = Field(default={}, description="Metadata, besides what there is.")


class _Asset(BaseModel):
    """What a translation may name, such as {{ stage }}."""

    pool: str
    stage: str
    table: str


def _resolved_pool(context: dg.ResolutionContext, pool: Pool) -> Pool:
    """The declaration with its templates ({{ env.NAME }}) filled in."""
    return build(Pool, context.resolve_value(content_of(pool)), "attributes.pool")


def _mappings_alone(schema: dict[str, Any]) -> None:
    """Dagster takes a template in place of any mapping. Without that arm `dg check yaml` names the field inside."""
    for name in ("pool", "translation"):
        field = schema["properties"][name]
        field |= next(arm for arm in field.pop("anyOf") if "$ref" in arm)


class ScaffoldParameters(BaseModel):
    """What `dg scaffold defs curation_assets.CurationPool NAME` may be given."""

    source: str | None = Field(
        default=None,
        description="Folder of tars or images, or a table of captions and urls; left out: 200 scenes that are drawn.",
    )
    home: str = Field(default=HOME, description="Folder or s3:// URL of everything that the pool writes.")


class PoolScaffolder(dg.Scaffolder[ScaffoldParameters]):
    """Writes a defs.yaml that can be loaded as it is: kind and columns of the source are looked up."""

    @classmethod
    def get_scaffold_params(cls) -> type[ScaffoldParameters]:
        return ScaffoldParameters

    def scaffold(self, request: dg.ScaffoldRequest[ScaffoldParameters]) -> None:
        given = request.params
        name = re.sub(r"[^a-z0-9_]", "_", request.target_path.name.lower())
        root = request.project_root or request.target_path
        if given.source is None:
            content = content_of(world_pool(name, size=200))
        else:
            content = content_of(pool_at(load_settings(root / "curation"), name, given.source))
            source = Path(content["source"])
            if source.is_relative_to(root):  # another checkout of the project lies elsewhere
                content["source"] = f"{PROJECT}/{source.relative_to(root).as_posix()}"
        dg.scaffold_component(request, {"home": given.home, "pool": content})


@dg.scaffold_with(PoolScaffolder)
class CurationPool(dg.Component, dg.Model, dg.Resolvable):
    """An image–text pool from its rows to audited subsets: assets, checks, shards as partitions, jobs and sensors.

    The pool is declared here. `curate` reads the same declaration in the home (pools/NAME.yaml), which is written as
    the project is loaded.
    """

    home: str = Field(description="Folder or s3:// URL of everything that the pool writes; from the project's root.")
    pool: Annotated[
        Pool,
        dg.Resolver(_resolved_pool, model_field_type=Pool, description="Its declaration, as a home's pools/NAME.yaml."),
    ]
    key_prefix: Annotated[
        Sequence[str], dg.Resolver.default(description="What the keys of its assets begin with, such as [curation].")
    ] = ()
    translation: (
        Annotated[
            TranslationFn[_Asset],
            TranslationFnResolver[_Asset](lambda asset: asset.model_dump(), model_field_type=ShownAttributes.model()),
        ]
        | None
    ) = None

    @classmethod
    @functools.cache
    def get_model_cls(cls) -> type[BaseModel]:
        base: Any = cls.model()

        class CurationPoolAttributes(base):
            model_config = ConfigDict(json_schema_extra=_mappings_alone)

        return CurationPoolAttributes

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        return dg.ComponentTypeSpec(
            tags=["images", "captions"], produces=["asset", "asset_check", "job", "schedule", "sensor"]
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The package's own assets of the pool. Raises ValueError for a declaration that does not fit."""
        settings = load_settings(self.home if is_bucket_url(self.home) else context.project_root / self.home)
        prefix: Any = {"asset_key_prefix": tuple(self.key_prefix)} if self.key_prefix else {}
        pool = keep_declared(settings, replace(self.pool, options=replace(self.pool.options, **prefix)))
        defs = pool_definitions(settings, pool.name)
        assets: Any = defs.assets
        tables = dg.AssetSelection.assets(*(asset for asset in assets if isinstance(asset, dg.AssetsDefinition)))
        return dg.Definitions(
            assets=list(dg.map_asset_specs(functools.partial(self._shown, pool), assets)),
            jobs=defs.jobs,
            schedules=[nightly_of(settings, pool.name)],
            sensors=[*(defs.sensors or ()), backfill_sensor(f"{pool.name}_scheduled_backfill", tables)],
            resources=_OBSERVER,
        )

    def _shown(self, pool: Pool, spec: dg.AssetSpec) -> dg.AssetSpec:
        if self.translation is None:
            return spec
        stage, *name = spec.key.path[len(asset_key(pool, "").path) - 1 :]
        shown = self.translation(spec, _Asset(pool=pool.name, stage=stage, table="/".join((stage, *name))))
        if shown.key != spec.key:
            raise ValueError(f"translation may not rename {spec.key.to_user_string()}; set key_prefix")
        return shown

"""Releases as Dagster shows them: one asset per pool, a partition per release, made by `curate release create`."""

from typing import Any

import dagster as dg
import polars as pl

from curation_assets.core.settings import Settings
from curation_assets.core.table_names import SUBSETS
from curation_assets.defs.launch import prepare_instance
from curation_assets.defs.metadata import ROW_COUNT
from curation_assets.defs.names import asset_key, group_of, tags_of
from curation_assets.defs.records import DATA_VERSION
from curation_assets.outputs.summary.counts import counts
from curation_assets.sources.declaration import Pool, list_pools, load_pool
from curation_assets.stores.releases import FOLDER, PROVENANCE_FILE, Release, list_releases


def releases_key(pool: Pool) -> dg.AssetKey:
    """Key of a pool's releases: [pool, releases], after its prefix."""
    return asset_key(pool, "releases")


def summary_key(pool: Pool) -> dg.AssetKey:
    """Key of what a pool's releases hold, in counts: [pool, releases, summary], after its prefix."""
    return asset_key(pool, "releases/summary")


def partitions_name(pool: str) -> str:
    """Name of the dynamic partitions: one per release."""
    return f"{pool}_releases"


def releases_asset(pool: Pool) -> dg.AssetSpec:
    """What the graph shows: no run makes it, events record it."""
    return dg.AssetSpec(
        releases_key(pool),
        deps=[asset_key(pool, SUBSETS)],
        partitions_def=dg.DynamicPartitionsDefinition(name=partitions_name(pool.name)),
        group_name=group_of(pool, "releases"),
        tags=tags_of(pool, stage="releases"),
        description=(
            "One partition per release: a subset under a name that never changes, with its ledger, cuts, manifests "
            "and models. `curate release create SUBSET NAME` makes one, a takedown withdraws it."
        ),
        kinds={"parquet"},
    )


def summary_asset(pool: Pool) -> dg.AssetSpec:
    """Where the rows of each release come from, as metadata; no run makes it, events record it."""
    return dg.AssetSpec(
        summary_key(pool),
        deps=[releases_key(pool)],
        partitions_def=dg.DynamicPartitionsDefinition(name=partitions_name(pool.name)),
        group_name=group_of(pool, "releases"),
        tags=tags_of(pool, stage="releases"),
        description=(
            "Per release: rows kept, sources, licences, languages and signals of owners. `curate summary "
            "RELEASE` writes what a provider of a model has to publish of it."
        ),
        kinds={"duckdb"},
    )


def record_releases(settings: Settings, pool: str) -> list[str]:
    """Report to Dagster what it does not know yet of a pool's releases and their withdrawals; returns their names."""
    instance = prepare_instance(settings)
    releases = list_releases(settings.home, pool)
    known = set(instance.get_dynamic_partitions(partitions_name(pool)))
    instance.add_dynamic_partitions(partitions_name(pool), [r.name for r in releases if r.name not in known])
    is_declared = pool in list_pools(settings)  # not in a home that holds copies of releases alone
    declared = load_pool(settings, pool) if is_declared else Pool(pool, "world", "")
    new = [release for release in releases if _recorded_version(instance, declared, release) != release.sha256]
    for release in new:
        made = {releases_key(declared): _metadata(release)}
        if release.withdrawn is None and (release.folder / PROVENANCE_FILE).is_file():
            made[summary_key(declared)] = _counted(release)
        for key, metadata in made.items():
            instance.report_runless_asset_event(
                dg.AssetMaterialization(
                    key, partition=release.name, metadata=metadata, tags={DATA_VERSION: release.sha256}
                )
            )
    return [release.name for release in new]


def _recorded_version(instance: dg.DagsterInstance, pool: Pool, release: Release) -> str | None:
    """The release's hash when it was reported last; None where it never was."""
    only = dg.AssetRecordsFilter(releases_key(pool), asset_partitions=[release.name])
    records = instance.fetch_materializations(only, limit=1).records
    event = records[0].asset_materialization if records else None
    return None if event is None else (event.tags or {}).get(DATA_VERSION)


#: Statement of dbt_like_sql/summary → its columns that the UI shows. No domains: an event would keep one whose only
#: sample is taken down.
_SHOWN = {
    "sources": ("source", "rows", "kept"),
    "licences": ("licence", "rows", "kept"),
    "languages": ("language", "rows", "kept"),
    "signals": ("kind", "rows", "refused", "kept"),
    "reasons": ("verdict", "reason", "rows"),
}
_SHOWN_ROWS = 25


def _counted(release: Release) -> dict[str, Any]:
    tables = counts(release.ledger_paths, release.folder / PROVENANCE_FILE, {"totals", *_SHOWN})
    totals = tables["totals"].row(0, named=True)
    metadata: dict[str, Any] = {ROW_COUNT: totals["kept"]}
    metadata |= {name.replace("_", " "): value for name, value in totals.items() if value is not None}
    for name, columns in _SHOWN.items():
        rows = tables[name].head(_SHOWN_ROWS).select(columns).with_columns(pl.col(pl.String).fill_null("unknown"))
        records = [dg.TableRecord(row) for row in rows.to_dicts()]
        schema = dg.TableSchema(
            [dg.TableColumn(one, "string" if rows[one].dtype == pl.String else "int") for one in columns]
        )
        metadata[name] = dg.MetadataValue.table(records, schema)
    return metadata


def _metadata(release: Release) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        ROW_COUNT: release.counts["kept"],
        "policy": release.subset,
        "policy version": release.policy_version,
        "rows of the pool": release.counts["rows"],
        "folder": f"{FOLDER}/{release.pool}/{release.name}",  # relative to the home, which may move
        "made at": release.created_at,
        "release before it": release.previous or "none",
        "models": dg.MetadataValue.json([dict(model) for model in release.models]),
    }
    if release.withdrawn is not None:
        withdrawn = release.withdrawn
        metadata |= {"withdrawn": f"{withdrawn.at}: {withdrawn.reason}", "use instead": withdrawn.next}
    return metadata

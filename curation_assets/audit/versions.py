"""Which code, models and settings made the tables that a verdict rests on, dictionary-encoded per shard."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from curation_assets.core.table_names import REGISTERED_SHARDS, table_of
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.shard_store import ShardStore

#: Grain: one row per version_id and table.
MODEL_SCHEMA = pl.Struct({"address": pl.String, "revision": pl.String, "weights_sha256": pl.String})
VERSIONS_SCHEMA = pl.Schema(
    {
        "version_id": pl.UInt32(),
        "table": pl.String(),
        "code_version": pl.String(),
        "config_hash": pl.String(),
        "profile": pl.String(),  # in force when the ledger was written
        "models": pl.List(MODEL_SCHEMA),
    }
)

#: Grain: one row per table and shard (null: of the whole pool).
SHARD_VERSIONS_SCHEMA = pl.Schema(
    {
        "table": pl.String,
        "shard": pl.String,
        "content_sha256": pl.String,  # the data version
        "run_id": pl.String,
        "row_count": pl.Int64,
        "seconds": pl.Float64,  # wall time of the computation
        "written_at": pl.String,
    }
)


def made_by(manifest: Manifest) -> tuple[object, ...]:
    """Code, settings and models of a table; may be a key."""
    return manifest.code_version, manifest.config_hash, tuple(tuple(sorted(model.items())) for model in manifest.models)


@dataclass
class VersionBook:
    """Manifests of a pool's tables, read once, and the version ids given out so far."""

    store: ShardStore
    profile: str

    def __post_init__(self) -> None:
        self._manifests: dict[str, dict[str | None, Manifest]] = {}
        self._ids: dict[str, int] = {}  # JSON of a set of versions → version_id
        self._rows: list[dict[str, object]] = []

    def manifests(self, asset: str) -> Mapping[str | None, Manifest]:
        """Manifest per shard of a table, or of None where it is whole-pool."""
        if asset not in self._manifests:
            keys: list[str | None] = [*self.store.partitions(asset)] or [None]
            stored = {key: self.store.manifest(asset, key) for key in keys}
            self._manifests[asset] = {key: manifest for key, manifest in stored.items() if manifest is not None}
        return self._manifests[asset]

    def upstream_of(self, references: Iterable[str]) -> list[str]:
        """Tables that the 'stage.table' references were made from, themselves included, sorted."""
        waiting, seen = [table_of(reference) for reference in references], set()
        while waiting:
            asset = waiting.pop()
            if asset not in seen:
                seen.add(asset)
                waiting += {version.asset for manifest in self.manifests(asset).values() for version in manifest.inputs}
        return sorted(seen)

    def version_ids(self, references: Iterable[str], shards: list[str]) -> np.ndarray:
        """(S,) version_id per shard: equal exactly where code, settings and models of all tables upstream are equal."""
        by_asset = {asset: self.manifests(asset) for asset in self.upstream_of(references)}
        known: dict[tuple[object, ...], int] = {}  # so that few shards are described
        ids = np.zeros(len(shards), dtype=np.uint32)
        for number, shard in enumerate(shards):
            made = [(asset, of_asset.get(shard) or of_asset.get(None)) for asset, of_asset in by_asset.items()]
            found = [(asset, manifest) for asset, manifest in made if manifest is not None]
            key = tuple((asset, *made_by(manifest)) for asset, manifest in found)
            if key not in known:
                known[key] = self._version_id([self._described(asset, manifest) for asset, manifest in found])
            ids[number] = known[key]
        return ids

    def _described(self, asset: str, manifest: Manifest) -> dict[str, object]:
        """What made a table. Of what was registered the settings differ from shard to shard by nature; its data version
        shows them."""
        return {
            "table": asset,
            "code_version": manifest.code_version,
            "config_hash": "" if asset == REGISTERED_SHARDS else manifest.config_hash,
            "profile": self.profile,
            "models": [dict(model) for model in manifest.models],
        }

    def _version_id(self, rows: list[dict[str, object]]) -> int:
        """The id of a set of versions, which is a new one where it is new."""
        key = json.dumps(rows, sort_keys=True)
        if key not in self._ids:
            self._ids[key] = len(self._ids)
            self._rows += [{"version_id": self._ids[key], **row} for row in rows]
        return self._ids[key]

    def versions(self) -> pl.DataFrame:
        """Every version id given out (VERSIONS_SCHEMA)."""
        return pl.DataFrame(self._rows, schema=VERSIONS_SCHEMA, orient="row")

    def shard_versions(self) -> pl.DataFrame:
        """Data version and run of every requested table and shard (SHARD_VERSIONS_SCHEMA)."""
        rows = [
            {name: getattr(manifest, name) for name in SHARD_VERSIONS_SCHEMA if name not in ("table", "shard")}
            | {"table": asset, "shard": shard}
            for asset, by_shard in sorted(self._manifests.items())
            for shard, manifest in sorted(by_shard.items(), key=lambda item: item[0] or "")
        ]
        return pl.DataFrame(rows, schema=SHARD_VERSIONS_SCHEMA, orient="row")

"""Which code, models and settings made the tables that a verdict rests on, dictionary-encoded per shard."""

import json
from collections.abc import Iterable
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


@dataclass(frozen=True)
class _Versions:
    """What made the partitions of one table, S of them."""

    partitions: pl.DataFrame  # SHARD_VERSIONS_SCHEMA, by shard
    ways: list[Manifest]  # one for each combination of code, settings and models
    made: list[int]  # (S,) which of `ways`
    inputs: frozenset[str]  # tables that were read

    def made_in(self, shards: list[str]) -> list[int]:
        """Per shard which of `ways`: of a whole-pool table the one there is; -1 where there is none."""
        way_of: dict[str | None, int] = dict(zip(self.partitions["shard"], self.made, strict=True))
        return [way_of.get(shard, way_of.get(None, -1)) for shard in shards]


@dataclass
class VersionBook:
    """What made a pool's tables, read once, and the version ids given out so far."""

    store: ShardStore
    profile: str

    def __post_init__(self) -> None:
        self._tables: dict[str, _Versions] = {}
        self._ids: dict[str, int] = {}  # JSON of a set of versions → version_id
        self._rows: list[dict[str, object]] = []

    def _versions(self, asset: str) -> _Versions:
        if asset not in self._tables:
            number_of: dict[tuple[object, ...], int] = {}
            ways, made, inputs = list[Manifest](), list[int](), set[str]()
            columns: dict[str, list[object]] = {name: [] for name in SHARD_VERSIONS_SCHEMA}
            keys: list[str | None] = [*self.store.partitions(asset)]
            for key in keys or [None]:
                manifest = self.store.manifest(asset, key)
                if manifest is None:
                    continue
                made.append(number_of.setdefault(made_by(manifest), len(ways)))
                if made[-1] == len(ways):
                    ways.append(manifest)
                inputs.update(version.asset for version in manifest.inputs)
                row = {**vars(manifest), "table": asset, "shard": key}
                for name, values in columns.items():
                    values.append(row[name])
            partitions = pl.DataFrame(columns, schema=SHARD_VERSIONS_SCHEMA)
            self._tables[asset] = _Versions(partitions, ways, made, frozenset(inputs))
        return self._tables[asset]

    def ways(self, asset: str) -> list[Manifest]:
        """A manifest for each combination of code, settings and models that made partitions of a table."""
        return self._versions(asset).ways

    def upstream_of(self, references: Iterable[str]) -> list[str]:
        """Tables that the 'stage.table' references were made from, themselves included, sorted."""
        waiting, seen = [table_of(reference) for reference in references], set()
        while waiting:
            asset = waiting.pop()
            if asset not in seen:
                seen.add(asset)
                waiting += self._versions(asset).inputs
        return sorted(seen)

    def version_ids(self, references: Iterable[str], shards: list[str]) -> np.ndarray:
        """(S,) version_id per shard: equal exactly where code, settings and models of all tables upstream are equal."""
        tables = {asset: self._versions(asset) for asset in self.upstream_of(references)}
        known: dict[tuple[int, ...], int] = {}  # so that few shards are described
        ids = np.zeros(len(shards), dtype=np.uint32)
        for number, made in enumerate(zip(*(table.made_in(shards) for table in tables.values()), strict=True)):
            if made not in known:
                found = [(asset, way) for asset, way in zip(tables, made, strict=True) if way >= 0]
                known[made] = self._version_id(
                    [self._described(asset, tables[asset].ways[way]) for asset, way in found]
                )
            ids[number] = known[made]
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
        tables = [table.partitions for _, table in sorted(self._tables.items())]
        return pl.concat([pl.DataFrame(schema=SHARD_VERSIONS_SCHEMA), *tables])

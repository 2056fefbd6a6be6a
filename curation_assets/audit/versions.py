"""Which code, models and settings made the tables that a fit rests on."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl

from curation_assets.core.table_names import table_of
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.shard_store import ShardStore

MODEL_SCHEMA = pl.Struct({"address": pl.String, "revision": pl.String, "weights_sha256": pl.String})


def made_by(manifest: Manifest) -> tuple[object, ...]:
    """Code, settings and models of a table; may be a key."""
    return manifest.code_version, manifest.config_hash, tuple(tuple(sorted(model.items())) for model in manifest.models)


@dataclass
class VersionBook:
    """What made a pool's tables, each read once."""

    store: ShardStore
    _tables: dict[str, tuple[list[Manifest], set[str]]] = field(default_factory=dict)

    def _of(self, asset: str) -> tuple[list[Manifest], set[str]]:
        """`ways`, and the tables that were read."""
        if asset not in self._tables:
            ways: dict[tuple[object, ...], Manifest] = {}
            inputs = set[str]()
            keys: list[str | None] = [*self.store.partitions(asset)]
            for key in keys or [None]:
                manifest = self.store.manifest(asset, key)
                if manifest is not None:
                    ways.setdefault(made_by(manifest), manifest)
                    inputs.update(version.asset for version in manifest.inputs)
            self._tables[asset] = [*ways.values()], inputs
        return self._tables[asset]

    def ways(self, asset: str) -> list[Manifest]:
        """A manifest for each combination of code, settings and models that made partitions of a table."""
        return self._of(asset)[0]

    def upstream_of(self, references: Iterable[str]) -> list[str]:
        """Tables that the 'stage.table' references were made from, themselves included, sorted."""
        waiting, seen = [table_of(reference) for reference in references], set[str]()
        while waiting:
            asset = waiting.pop()
            if asset not in seen:
                seen.add(asset)
                waiting += self._of(asset)[1]
        return sorted(seen)

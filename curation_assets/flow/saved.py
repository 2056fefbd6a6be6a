"""Finished rows of a table that was killed while it was computed, named by everything that decides them."""

from collections.abc import Iterable, Mapping
from typing import Any

from curation_assets.flow.context import PoolContext
from curation_assets.flow.options import FlowOptions
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.saved_rows import SavedRows


def saved_rows(
    ctx: PoolContext, table: str, shard: str | None, roles: Iterable[str], made_from: Mapping[str, Any]
) -> SavedRows:
    """Where a computation of `table` saves rows on its way and finds those of a killed one.

    `made_from`: the content of its samples, its code and settings; the models and their settings are added.
    """
    roles = list(roles)
    decisive = {
        **made_from,
        "models": [vars(identity) for identity in ctx.identities(roles)],
        "generation": {role: dict(ctx.profile.generation.get(role, {})) for role in roles},
    }
    folder = ctx.store.unfinished_path(table, shard) / config_sha256(decisive)[:32]
    return SavedRows(folder, FlowOptions.of(ctx).save_every_seconds)

"""Options of Dagster's assets and sensors."""

import re

from curation_assets.core.options import Options
from curation_assets.core.validation import Number, Whole, checked, setting

KEY_PART = re.compile(r"[A-Za-z0-9_]+")
OWNER = re.compile(r"team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}")


@checked("options")
class DagsterOptions(Options):
    """When Dagster runs the pool, and whom it names."""

    backfill_cron: str = setting(
        default="0 * * * *", description="When Dagster fills missing shards.", of_one_pool=True
    )
    quiet_minutes: Number = setting(
        default=5.0,
        ge=0,
        unit="minutes",
        description="Without new tables, before Dagster updates ledger and report.",
        of_one_pool=True,
    )
    shards_per_partition: Whole = setting(
        default=1, ge=1, unit="shards", description="Of one partition in Dagster; above 1 of a block of them.",
        of_one_pool=True,
    )  # fmt: skip
    owners: tuple[str, ...] = setting(
        default=(), description="Whom Dagster's UI names: e-mail addresses, or team:NAME."
    )

    asset_key_prefix: tuple[str, ...] = setting(
        default=(), description="What the keys of the pool's assets begin with in Dagster.", of_one_pool=True
    )

    def __post_init__(self) -> None:
        for part in self.asset_key_prefix:
            if not KEY_PART.fullmatch(part):
                raise ValueError(f"asset_key_prefix takes letters, digits and underscores, got {part!r}")
        for owner in self.owners:
            if not OWNER.fullmatch(owner):
                raise ValueError(f"owners must be e-mail addresses or read team:NAME, got {owner!r}")

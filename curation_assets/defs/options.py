"""Options of Dagster's assets and sensors."""

import re

from curation_assets.core.options import Options
from curation_assets.core.validation import Number, checked, setting

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
    owners: tuple[str, ...] = setting(
        default=(), description="Whom Dagster's UI names: e-mail addresses, or team:NAME."
    )

    def __post_init__(self) -> None:
        for owner in self.owners:
            if not OWNER.fullmatch(owner):
                raise ValueError(f"owners must be e-mail addresses or read team:NAME, got {owner!r}")

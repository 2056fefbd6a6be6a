"""What grows with every run and nobody reads later: removed after some days. Manifests, which hold lineage, stay."""

from dataclasses import dataclass
from pathlib import Path

from curation_assets.core.settings import Settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.refit import finished_reports
from curation_assets.stores.atomic import remove_path
from curation_assets.stores.costs import forget_attempts

DAY_SECONDS = 86_400.0
TRACEBACKS = "error-*.txt"  # of `curate`, under logs/ of the home


@dataclass(frozen=True)
class Removed:
    """What was removed for its age."""

    what: str
    count: int

    def __str__(self) -> str:
        return f"{self.count:,} {self.what}"


def remove_old_files(settings: Settings, pools: list[str], before: float) -> list[Removed]:
    """Remove cost records of replaced tables, reports of refits (not the newest) and tracebacks from before `before`.

    `before`: seconds since 1970.
    """
    attempts = reports = 0
    for pool in pools:
        ctx = PoolContext.open(settings, pool)
        attempts += forget_attempts(ctx.store.root, before, _in_force(ctx))
        for folder in _old(finished_reports(ctx)[:-1], before):
            remove_path(folder)
            reports += 1
    tracebacks = _old(sorted((settings.home / "logs").glob(TRACEBACKS)), before)
    for path in tracebacks:
        path.unlink(missing_ok=True)
    return [
        Removed("cost records of replaced tables", attempts),
        Removed("reports of refits", reports),
        Removed("tracebacks", len(tracebacks)),
    ]


def _in_force(ctx: PoolContext) -> set[str]:
    """Content hashes of everything that is stored."""
    hashes = set()
    for name in tables_of(ctx):
        parts: list[str | None] = [*ctx.store.partitions(name)]
        for part in parts or [None]:
            manifest = ctx.store.manifest(name, part)
            if manifest is not None:
                hashes.add(manifest.content_sha256)
    return hashes


def _old(paths: list[Path], before: float) -> list[Path]:
    return [path for path in paths if path.stat().st_mtime < before]

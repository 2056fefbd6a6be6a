"""What the ledgers of a pool say otherwise than those before them, and which models, versions and cuts are others."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from curation_assets.audit.ledger import ledger_facts
from curation_assets.audit.why import ledger_folders
from curation_assets.numeric.sorting import stretches
from curation_assets.selection.rows import UID
from curation_assets.stores.external_sort import key_ranges
from curation_assets.stores.parquet import parquet_rows, read_parquet, scan_parquet
from curation_assets.stores.shard_store import ShardStore

ROWS = 1 << 18  # that are compared at once
_POSITION = ["shard", "source_row"]
Made = dict[str, dict[str, set[str]]]  # table → 'version', 'model', 'settings' → what they were


@dataclass(frozen=True)
class VerdictChanges:
    """Of one policy, over the rows that both ledgers have."""

    policy: str
    flips: dict[str, int]  # 'kept → dropped' → rows
    thresholds: tuple[float | None, float | None]  # of the last step, before and after
    why: list[str]  # sentences: the policy, tables of which version, model or settings are others

    @property
    def has_moved(self) -> bool:
        """Whether the cut is another."""
        return self.thresholds[0] != self.thresholds[1]


def verdict_changes(store: ShardStore) -> list[VerdictChanges]:
    """Policies of which a verdict or the cut is another than in the ledger before the one in force, by name.

    Policies that only one of them has are left out; so are rows, such as those of a new shard.
    """
    folders = list(ledger_folders(store))
    if len(folders) < 2:
        return []
    after, before = folders[:2]
    names = sorted({path.name for path in after.glob("*.parquet")} & {path.name for path in before.glob("*.parquet")})
    found = [_changes(before, after, name) for name in names]
    return [one for one in found if one.flips or one.has_moved]


def _changes(before: Path, after: Path, name: str) -> VerdictChanges:
    (old, old_cut, *_), (new, new_cut, *_) = (ledger_facts(folder / name) for folder in (before, after))
    flips = Counter[str]()
    for sides in key_ranges([_parts(folder / name) for folder in (before, after)], UID):
        both = sides[0].join(sides[1], on=[*UID, *_POSITION], suffix="_after")
        counts = both.filter(pl.col("verdict") != pl.col("verdict_after")).group_by("verdict", "verdict_after").len()
        flips.update({f"{was} → {now}": count for was, now, count in counts.iter_rows()})
    why = ["the policy is another"] if old.version != new.version else []
    made_before, made_after = _made(before, name), _made(after, name)
    for table in sorted(made_before.keys() & made_after.keys()):
        was, now = made_before[table], made_after[table]
        changed = [f"{what} {_listed(was[what])} → {_listed(now[what])}" for what in was if was[what] != now[what]]
        why += [f"{table}: {', '.join(changed)}"] if changed else []
    thresholds = (old_cut.cuts[-1].threshold, new_cut.cuts[-1].threshold)
    return VerdictChanges(Path(name).stem, dict(sorted(flips.items())), thresholds, why)


def _parts(path: Path) -> Iterator[pl.DataFrame]:
    """Rows of a ledger, which is sorted by id; at least one part."""
    rows = scan_parquet(path).select(*UID, pl.col("shard", "verdict").cast(pl.String), "source_row")
    yield rows.head(0).collect()
    for part in stretches(parquet_rows(path), ROWS):
        yield rows.slice(part.start, ROWS).collect()


def _made(folder: Path, name: str) -> Made:
    """What made the tables behind the verdicts of a ledger."""
    ids = scan_parquet(folder / name).select(pl.col("version_id").unique()).collect()["version_id"]
    versions = read_parquet(folder / "versions" / "versions.parquet").filter(pl.col("version_id").is_in(ids.implode()))
    made: Made = {}
    for row in versions.iter_rows(named=True):
        of_table = made.setdefault(row["table"], {"version": set(), "model": set(), "settings": set()})
        of_table["version"].add(row["code_version"])
        of_table["model"] |= {f"{model['address']} {model['weights_sha256'][:8]}" for model in row["models"] or ()}
        of_table["settings"].add(row["config_hash"][:8])
    return made


def _listed(names: set[str]) -> str:
    return " and ".join(sorted(names)) or "none"

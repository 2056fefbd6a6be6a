"""The ledger of a release: the verdict tables in its folder, and the same without some samples."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from curation_assets.audit.ledger import Ledger, judged_columns, read_part, rows_of_verdicts
from curation_assets.audit.old_ledger import OLD_LEDGER_SQL, old_ledger
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import cut_without
from curation_assets.selection.policy import load_policy
from curation_assets.selection.rows import NOTHING_MORE, Wanted
from curation_assets.stores.atomic import share
from curation_assets.stores.parquet import parquet_schema, path_sql, table_sql
from curation_assets.stores.releases import CUTS, OLD_LEDGER_FILE, Release
from curation_assets.stores.shard_store import DATA_FILE


def release_ledger(release: Release) -> Ledger:
    """The ledger of a release. Raises MissingReleaseError where it was withdrawn."""
    paths = release.ledger_paths
    if release.ledger_name == OLD_LEDGER_FILE:
        return old_ledger(paths[0])
    policy = load_policy(release.folder / f"{release.subset}.yaml")
    cut = PolicyCut.from_dict(json.loads((release.folder / CUTS).read_text(encoding="utf-8")))
    return Ledger(policy, cut, release.profile, tuple(paths), tuple(parquet_schema(paths[0])), read_part)


def ledger_sql(release: Release) -> str:
    """What DuckDB reads of the ledger of a release: sample_id, shard, source_row, decided_by, verdict, reason …"""
    files = ", ".join(map(path_sql, release.ledger_paths))
    source = table_sql(f"[{files}]")
    return OLD_LEDGER_SQL.format(files=source) if release.ledger_name == OLD_LEDGER_FILE else source


def rows_of_samples(ledger: Ledger, sample_ids: Collection[str]) -> pl.DataFrame:
    """Rows of a ledger that are of one of the samples: sample_id, verdict."""
    is_named = pl.col("sample_id").is_in(_series(sample_ids).implode())
    return pl.concat(part.select("sample_id", "verdict").filter(is_named) for part in ledger.parts(["sample_id"]))


def names_samples(ledger: Ledger, sample_ids: Collection[str]) -> bool:
    """Whether a ledger has a row of one of the samples, or a cut that fell on it."""
    is_of_cut = any(cut.boundary_id in sample_ids for cut in ledger.cut.cuts)
    return is_of_cut or not rows_of_samples(ledger, sample_ids).is_empty()


def write_release_ledger(ledger: Ledger, folder: Path, without: Collection[str] = ()) -> PolicyCut:
    """Fill an empty folder with the files of a ledger, without the rows of some samples: files that have none of them
    are shared (`share`), others written anew. Other verdicts stay as they are.

    Returns its cut: one that fell on such a sample names another (`cut_without`).
    """
    folder.mkdir()
    is_left = ~pl.col("sample_id").is_in(_series(without).implode())
    for path in ledger.paths:
        name = path.parent.name.removeprefix("shard=") if path.name == DATA_FILE else path.stem
        if path.name != OLD_LEDGER_FILE and not _has_any(ledger, path, without):
            share(path, folder / f"{name}.parquet")
            continue
        for number, part in enumerate(ledger.read(path, ledger.columns)):
            written = f"rows-{number:06d}" if path.name == OLD_LEDGER_FILE else name
            part.filter(is_left).write_parquet(folder / f"{written}.parquet", compression="zstd")
    return cut_without(ledger.policy, ledger.cut, _Left(ledger, is_left), without)


def _has_any(ledger: Ledger, path: Path, sample_ids: Collection[str]) -> bool:
    wanted = _series(sample_ids)
    parts = ledger.read(path, ["sample_id"]) if sample_ids else ()
    return any(part["sample_id"].is_in(wanted.implode()).any() for part in parts)


def _series(sample_ids: Collection[str]) -> pl.Series:
    return pl.Series("sample_id", sorted(sample_ids), dtype=pl.String)


@dataclass(frozen=True)
class _Left:
    """Rows of a ledger as cuts see them, without some."""

    ledger: Ledger
    is_left: pl.Expr

    def parts(self, wanted: Wanted = NOTHING_MORE, only: Collection[int] | None = None) -> Iterator[pl.DataFrame]:
        """All that was recorded."""
        parts = enumerate(self.ledger.parts(judged_columns(self.ledger.policy)))
        left = (part.filter(self.is_left) for number, part in parts if only is None or number in only)
        return map(partial(rows_of_verdicts, self.ledger.policy), left)

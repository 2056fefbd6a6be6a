"""Why a sample was kept or dropped: everything the ledgers know about it, over all pools and policies."""

import json
import os
import re
from collections.abc import Callable, Collection, Iterator
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.ledger import ledger_facts, recorded_columns, signal_column
from curation_assets.audit.lookup import shards_of
from curation_assets.core.plain_json import plain
from curation_assets.core.settings import Settings
from curation_assets.core.table_names import LEDGER, PROVENANCE, SAMPLES
from curation_assets.numeric.identity import is_sample_id, to_u64_pair
from curation_assets.selection.judging import multiplicity
from curation_assets.selection.left_out import left_out_words
from curation_assets.sources.declaration import list_pools
from curation_assets.stores.atomic import fetch_folder
from curation_assets.stores.denylist import Denylist, Kind
from curation_assets.stores.parquet import read_parquet, scan_parquet
from curation_assets.stores.shard_store import ShardStore, check_in_version, folder_manifest
from curation_assets.stores.web_addresses import is_same_url

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MISTYPED = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{64}")  # an id or hash in capitals
MAX_BYTES_KEPT = 4 << 20  # of a file of versions, compressed: some 27,000 shards
_ORIGIN = (
    "source",
    "licence",
    "licence_url",
    "creator",
    "source_url",
    "domain",
    "language",
    "fetched_at",
    "rights_signals",
)
_MIXTURE = ("group", "weight", "rows", "entries")  # of a mixture's fit, stored as fused/RECIPE_fit
_FACTS = ("sample_id", "shard", "source_row", "url", "caption", "width", "height", "image_sha256", "original_sha256")


def explain(
    settings: Settings,
    identifier: str,
    pools: list[str] | None = None,
    policies: Callable[[str], Collection[str] | None] = lambda pool: None,
) -> list[dict[str, Any]]:
    """What happened to a sample, one entry per row of raw/samples that `identifier` fits, pools in order.

    `identifier`: sample_id (32 hex digits), sha256 of an image as stored or as downloaded (64), a URL in any spelling,
    or the key of a sample in its tar (`0000000001`), with its pool where several have it (`photos:0000000001`).
    `policies`: those that a pool has now; verdicts of others are left out (None: of none that the last ledger has).
    Raises ValueError when no pool has it.
    """
    kind = kind_of(identifier)
    names = list_pools(settings) if pools is None else pools
    pool, sign, key = identifier.partition(":")
    if kind == "key" and sign and pool in list_pools(settings):
        names, identifier = [pool], key
    answers = []
    for name in names:
        store = ShardStore(settings.work(name))
        if _has_shards(store.asset_path(SAMPLES)):
            answers += _explain_in(name, store, kind, identifier, policies)
    if not answers:
        where = f"in the pools {', '.join(names) or '(none declared)'}"
        raise ValueError(f"no sample with {kind} {identifier!r} {where}{_denied(settings.home, kind, identifier)}")
    return answers


def _has_shards(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            return any(entry.name.startswith("shard=") for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False


def kind_of(identifier: str) -> str:
    """'sample_id', 'sha256', 'url', or 'key' for anything else on one line. Raises ValueError for a blank."""
    if is_sample_id(identifier):
        return "sample_id"
    if _SHA256.fullmatch(identifier):
        return "sha256"
    if "://" in identifier:
        return "url"
    if identifier.strip() and "\n" not in identifier and not _MISTYPED.fullmatch(identifier):
        return "key"
    raise ValueError(
        "expected a sample_id (32 lower-case hex digits), the sha256 of an image (64), a URL, or a key in a tar "
        f"(0000000001, or pool:key), got {identifier!r}"
    )


def _denied(home: Path, kind: str, identifier: str) -> str:
    """The denylist's reason for a name that no pool has; '' for nothing."""
    denylist = Denylist.load(home)
    if kind == "key":
        return ""
    kinds: dict[str, Kind] = {"sample_id": "uid", "sha256": "sha256", "url": "url"}
    if denylist.has(kinds[kind], identifier) or (kind == "url" and denylist.has_domain_of(identifier)):
        return "; it is on the denylist (`curate takedown`)"
    return ""


def _explain_in(
    pool: str, store: ShardStore, kind: str, identifier: str, policies: Callable[[str], Collection[str] | None]
) -> list[dict[str, Any]]:
    versions = list(ledger_folders(store))
    shards = shards_of(store, pool, kind, identifier)
    if shards == []:
        return []
    fits = {
        "sample_id": pl.col("sample_id") == identifier,
        "sha256": (pl.col("image_sha256") == identifier) | (pl.col("original_sha256") == identifier),
        "url": pl.col("url").map_batches(partial(_spells, identifier), return_dtype=pl.Boolean, is_elementwise=True),
        "key": pl.col("member").str.replace(r"\.[^./]*$", "") == identifier,
    }[kind]
    samples = store.scan(SAMPLES, shards).filter(fits).sort("shard", "source_row").collect()
    ids = samples["sample_id"].unique(maintain_order=True).to_list()
    in_pool = policies(pool) if ids else None
    verdicts = {
        sample_id: [
            {**verdict, "in_force": folder == versions[0]}
            for folder in versions
            for verdict in _verdicts(folder, sample_id)
        ]
        for sample_id in ids
    }
    records: list[dict[str, Any]] = []
    for row in samples.iter_rows(named=True):
        position = (row["shard"], row["source_row"])
        mine = [
            verdict
            for verdict in verdicts[row["sample_id"]]
            if (verdict["shard"], verdict["source_row"]) == position
            and (in_pool is None or verdict["policy"] in in_pool)
        ]
        records.append(
            {
                "pool": pool,
                **{name: row[name] for name in _FACTS},
                "raw": {"status": row["status"], "reason": row["reason"]},
                "origin": _origin(store, *position),
                "policies": [_with_mixture(store, one) for one in _newest_of_each_version(mine)],
            }
        )
    return records


def _spells(url: str, texts: pl.Series) -> pl.Series:
    """(N,) bool: texts that are spellings of a URL."""
    return texts.is_in([text for text in texts.drop_nulls().unique() if is_same_url(text, url)])


def _origin(store: ShardStore, shard: str, source_row: int) -> dict[str, Any]:
    """What is known of where a row comes from; empty before raw/provenance is made."""
    if shard not in store.partitions(PROVENANCE):
        return {}
    rows = store.read(PROVENANCE, shard, ["source_row", *_ORIGIN])
    row = rows.filter(pl.col("source_row") == source_row).drop("source_row")
    return {name: value for name, value in row.row(0, named=True).items() if value} if row.height else {}


def _with_mixture(store: ShardStore, verdict: dict[str, Any]) -> dict[str, Any]:
    """A verdict with what its mixture decided of the row's group: group, weight, rows, entries; null where the policy
    ranks by no mixture, and of an earlier ledger, whose mixture is no longer known."""
    stage, _, recipe = str(verdict["decided_by"]).partition(".")
    fit = f"fused/{recipe}_fit"
    if stage != "fused" or not verdict["in_force"] or store.manifest(fit) is None:
        return {**verdict, "mixture": None}
    groups = store.read(fit)
    if not {*_MIXTURE, "epochs"} <= {*groups.columns}:
        return {**verdict, "mixture": None}
    rows = store.read(f"fused/{recipe}", verdict["shard"], ["source_row", "group"])
    mine = rows.filter(pl.col("source_row") == verdict["source_row"]).join(groups, on="group").select(_MIXTURE)
    return {**verdict, "mixture": mine.row(0, named=True) if mine.height else None}


def ledger_folders(store: ShardStore) -> Iterator[Path]:
    """Folders of ledgers: the one in force, then the one before it, which the store keeps."""
    link = store.folder_path(LEDGER)
    if not link.is_symlink():
        return
    current = link.resolve()
    yield current
    for folder in sorted(link.parent.glob(f".{link.name}.version-*/files")):
        if folder.resolve() != current:
            fetch_folder(folder.parent)  # with its manifest
            yield folder.resolve()


def _rows_of(path: Path, sample_id: str) -> pl.LazyFrame:
    """Row groups are chosen by their statistics, so that one is read."""
    high, low = to_u64_pair(sample_id)
    matches = (pl.col("uid_high") == pl.lit(high, pl.UInt64)) & (pl.col("uid_low") == pl.lit(low, pl.UInt64))
    return scan_parquet(path).filter(matches)


def _verdicts(folder: Path, sample_id: str) -> Iterator[dict[str, Any]]:
    paths = [check_in_version(folder, path.name) for path in sorted(folder.glob("*.parquet"))]
    made_by = cache(partial(_made_by, folder))  # the policies of one version share it
    for path, rows in zip(paths, pl.collect_all([_rows_of(path, sample_id) for path in paths]), strict=True):
        if rows.height:
            policy, cut, _, counts = ledger_facts(path)
            for row in rows.iter_rows(named=True):
                yield _verdict(folder, row, policy, cut, counts, made_by(int(row["version_id"]), row["shard"]))


def _verdict(
    folder: Path, row: dict[str, Any], policy: Any, cut: Any, counts: Any, made_by: list[dict[str, Any]]
) -> dict[str, Any]:
    by = row["decided_by"]
    reached = next(
        (count for cut_step, count in zip(cut.cuts, counts, strict=True) if cut_step.rank_by == by), (None, None, None)
    )
    signals = {name: row[name] for name in recorded_columns(row)}
    return {
        "policy": policy.name,
        "policy_version": row["policy_version"],
        "verdict": row["verdict"],
        "reason": row["reason"],
        "decided_by": by,
        "value": row[signal_column(by)] if by else None,
        "threshold": row["threshold"],
        "margin": row["margin"],
        "rank": row["rank"],
        "candidates": reached[0],
        "kept_count": reached[2],
        "entries": _entries(row, policy),
        "signals": signals,
        "shard": row["shard"],
        "source_row": row["source_row"],
        "run_id": made.run_id if (made := folder_manifest(folder)) else "",
        "made_by": made_by,
    }


def _entries(row: dict[str, Any], policy: Any) -> int:
    """How often the row is in the policy's set."""
    values = np.array([row[signal_column(policy.rank_by)]], float) if policy.repeats else None
    return int(multiplicity(np.array([row["verdict"] == "kept"]), values)[0])


def _made_by(folder: Path, version_id: int, shard: str) -> list[dict[str, Any]]:
    """Table, code, models, data version and run of every table upstream of a verdict."""
    versions, shards = (_versions_file(folder / "versions" / name) for name in ("versions.parquet", "shards.parquet"))
    mine = shards.filter((pl.col("shard") == shard) | pl.col("shard").is_null()).drop("row_count", "seconds", "shard")
    of_verdict = versions.filter(pl.col("version_id") == version_id).drop("version_id")
    rows: list[dict[str, Any]] = of_verdict.join(mine, on="table", how="left").sort("table").collect().to_dicts()
    return rows


def _versions_file(path: Path) -> pl.LazyFrame:
    """A table of what a ledger was made from: written once, so a small one stays in memory for the next look-up."""
    state = path.stat()
    if state.st_size > MAX_BYTES_KEPT:
        return scan_parquet(path)
    return _small_versions_file(path, state.st_ino, state.st_mtime_ns).lazy()


@lru_cache(maxsize=8)
def _small_versions_file(path: Path, inode: int, modified_ns: int) -> pl.DataFrame:
    return read_parquet(path)


def _newest_of_each_version(verdicts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The verdict in force per policy, and earlier ones only where the policy or its answer was another; of a policy
    that left the pool, none."""
    kept: list[dict[str, Any]] = []
    for verdict in verdicts:  # those in force come first
        seen = {(k["policy"], k["policy_version"], k["verdict"], k["threshold"]) for k in kept}
        is_known = verdict["in_force"] or verdict["policy"] in {k["policy"] for k in kept}
        answer = (verdict["policy"], verdict["policy_version"], verdict["verdict"], verdict["threshold"])
        if is_known and answer not in seen:
            kept.append(verdict)
    return kept


def sentence(verdict: dict[str, Any]) -> str:
    """One verdict in words."""
    by, value, threshold = verdict["decided_by"], verdict["value"], verdict["threshold"]
    if by is None and (words := left_out_words(str(verdict["reason"]))):
        return f"dropped before the first cut: {words}"
    if by is None:
        return f"{verdict['verdict']} before any policy: {verdict['reason']}"
    if verdict["verdict"] == "failed":
        return f"failed: {by} gave no value ({str(verdict['reason']).removeprefix('no_value:')})"
    cut = "nothing passes" if threshold is None else f"cut at {threshold:.6g}"
    margin = "" if verdict["margin"] is None else f", margin {verdict['margin']:+.4g}"
    position = f"rank {verdict['rank']:,} of {verdict['candidates']:,}, {verdict['kept_count']:,} pass"
    word = verdict["verdict"]
    if str(verdict["reason"] or "").startswith("prefilter:"):
        word = "dropped by the prefilter"
    detail = re.match(r"(?:below_cut|prefilter):[^:]+:(.*)", str(verdict["reason"] or ""), re.DOTALL)
    because = f"; {detail[1]}" if detail else ""
    tie = " (a tie at the cut, which goes by sample_id)" if verdict["margin"] == 0 and word != "kept" else ""
    return f"{word}: {by} {value:.6g}, {cut}{margin}; {position}{tie}{because}{_repeats(verdict)}"


def _repeats(verdict: dict[str, Any]) -> str:
    """Why a kept row is so often in the set; '' where it is there once and no mixture decides."""
    mixture, entries = verdict["mixture"], verdict["entries"]
    if verdict["verdict"] != "kept" or (mixture is None and entries == 1):
        return ""
    times = f"; {entries:,} {'entry' if entries == 1 else 'entries'} of the set"
    if mixture is None:
        return times
    whole, more = divmod(mixture["entries"], max(1, mixture["rows"]))
    parts = [f"each {whole:,} times"] if whole else []
    parts += [f"the best {more:,} once" + (" more" if whole else "")] if more else []
    return (
        f"{times}: group {mixture['group']} of the mixture, stated share {mixture['weight']:.1%}, was given "
        f"{mixture['entries']:,} entries for the {mixture['rows']:,} rows that it had at the fit: "
        f"{', '.join(parts)}"
    )


def as_json(records: list[dict[str, Any]]) -> str:
    """The answer for other programs."""
    return json.dumps(plain(records), indent=1, ensure_ascii=False, default=str)

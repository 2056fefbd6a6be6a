"""Why a sample was kept or dropped: everything the ledgers know about it, over all pools and policies."""

import json
import re
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.audit.ledger import (
    exact_rank,
    ledger_policies,
    manifests_behind,
    policy_in,
    recorded_columns,
    recorded_ledger,
)
from curation_assets.audit.lookup import shards_of
from curation_assets.core.plain_json import plain
from curation_assets.core.settings import Settings
from curation_assets.core.table_names import PROVENANCE, SAMPLES
from curation_assets.numeric.identity import is_sample_id
from curation_assets.selection.cut import cut_of_frame
from curation_assets.selection.judging import multiplicity
from curation_assets.selection.left_out import left_out_words
from curation_assets.sources.declaration import list_pools
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.parquet import scan_parquet
from curation_assets.stores.shard_store import ShardStore
from curation_assets.stores.web_addresses import is_same_url

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MISTYPED = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{64}")  # an id or hash in capitals
_ACCEPTED = (
    "a sample_id (32 lower-case hex digits), the sha256 of an image (64), a URL, or a key in a tar (0000000001, or "
    "pool:key)"
)
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
    `policies`: those that a pool has now; verdicts of others are left out (None: of none that is stored).
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
        if store.partitions(SAMPLES):
            answers += _explain_in(name, store, kind, identifier, policies)
    if not answers:
        where = f"in the pools {', '.join(names) or '(none declared)'}"
        denied = _denied(settings.home, kind, identifier)
        raise ValueError(f"no sample with {kind} {identifier!r} {where}{denied}; expected {_ACCEPTED}")
    return answers


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
    raise ValueError(f"expected {_ACCEPTED}, got {identifier!r}")


def _denied(home: Path, kind: str, identifier: str) -> str:
    """The denylist's reason for a name that no pool has; '' for nothing."""
    rows = pl.DataFrame({"image_sha256" if kind == "sha256" else kind: [identifier]})
    return "; it is on the denylist (`curate takedown`)" if Denylist.load(home).denied(rows).any() else ""


def _explain_in(
    pool: str, store: ShardStore, kind: str, identifier: str, policies: Callable[[str], Collection[str] | None]
) -> list[dict[str, Any]]:
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
    known = [name for name in ledger_policies(store) if (in_pool := policies(pool)) is None or name in in_pool]
    records: list[dict[str, Any]] = []
    for row in samples.iter_rows(named=True):
        shard, source_row = row["shard"], row["source_row"]
        verdicts = (_verdict(store, name, shard, source_row) for name in known)
        records.append(
            {
                "pool": pool,
                **{name: row[name] for name in _FACTS},
                "raw": {"status": row["status"], "reason": row["reason"]},
                "origin": _origin(store, shard, source_row),
                "policies": [_with_mixture(store, one) for one in verdicts if one is not None],
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
    ranks by no mixture."""
    stage, _, recipe = str(verdict["decided_by"]).partition(".")
    fit = f"fused/{recipe}_fit"
    if stage != "fused" or store.manifest(fit) is None:
        return {**verdict, "mixture": None}
    groups = store.read(fit)
    if not {*_MIXTURE, "epochs"} <= {*groups.columns}:
        return {**verdict, "mixture": None}
    rows = store.read(f"fused/{recipe}", verdict["shard"], ["source_row", "group"])
    mine = rows.filter(pl.col("source_row") == verdict["source_row"]).join(groups, on="group").select(_MIXTURE)
    return {**verdict, "mixture": mine.row(0, named=True) if mine.height else None}


def _verdict(store: ShardStore, name: str, shard: str, source_row: int) -> dict[str, Any] | None:
    """What a policy's table has of a row; None where it has no such row yet. A table of an earlier version has no
    signals beside what decided, and does not state how often a kept row counts."""
    table = f"filtered/{name}"
    if shard not in store.partitions(table):
        return None
    (path,) = store.checked_paths(table, [shard])
    found = scan_parquet(path).filter(pl.col("source_row") == source_row).collect()
    if found.is_empty():
        return None
    row, manifest = found.row(0, named=True), store.manifest(table, shard)
    policy_cut = cut_of_frame(store.read(f"{table}_cut"))
    assert manifest is not None, name
    policy = policy_in(manifest.facts) if manifest.facts else None
    steps = [number for number, cut in enumerate(policy_cut.cuts) if cut.rank_by == row["decided_by"]]
    cut = policy_cut.cuts[_step_of(row, steps)] if steps else None
    entries = int(row["verdict"] == "kept") if policy is None else int(multiplicity(policy, found)[0])
    return {
        "policy": name,
        "policy_version": policy_cut.policy_version,
        "verdict": row["verdict"],
        "reason": row["reason"],
        "decided_by": row["decided_by"],
        "value": row["value"],
        "threshold": row["threshold"],
        "margin": row["margin"],
        "better_than": None if cut is None or row["value"] is None else cut.share_below(row["value"]),
        "candidates": None if cut is None else cut.candidates,
        "kept_count": None if cut is None else cut.kept,
        "entries": entries,
        "signals": {signal: row[signal] for signal in recorded_columns(found.columns)},
        "shard": shard,
        "source_row": source_row,
        "run_id": manifest.run_id,
        "made_by": [_made_by(one) for one in manifests_behind(store, f"filtered/{name}", shard)],
    }


def _step_of(row: dict[str, Any], steps: list[int]) -> int:
    """Which of the cuts by one signal decided on a row: a prefilter's reasons name it."""
    return steps[0] if str(row["reason"] or "").startswith("prefilter:") else steps[-1]


def _made_by(manifest: Manifest) -> dict[str, Any]:
    """Table, code, models, data version and run of a table upstream of a verdict."""
    names = ("code_version", "config_hash", "models", "content_sha256", "run_id", "written_at")
    return {"table": manifest.asset, **{name: getattr(manifest, name) for name in names}}


def with_rank(settings: Settings, verdict: dict[str, Any], pool: str, sample_id: str) -> dict[str, Any]:
    """A verdict with `rank`, 1 is best, among the rows that reached the cut that decided: one count over the pool; null
    where the row has no value there."""
    if verdict["value"] is None:
        return {**verdict, "rank": None}
    ledger = recorded_ledger(ShardStore(settings.work(pool)), verdict["policy"])
    steps = [number for number, cut in enumerate(ledger.cut.cuts) if cut.rank_by == verdict["decided_by"]]
    return {**verdict, "rank": exact_rank(ledger, _step_of(verdict, steps), sample_id, verdict["value"])}


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
    position = f"{_position(verdict)}{verdict['kept_count']:,} of {verdict['candidates']:,} passed"
    word = verdict["verdict"]
    if str(verdict["reason"] or "").startswith("prefilter:"):
        word = "dropped by the prefilter"
    detail = re.match(r"(?:below_cut|prefilter):[^:]+:(.*)", str(verdict["reason"] or ""), re.DOTALL)
    because = f"; {detail[1]}" if detail else ""
    tie = " (a tie at the cut, which goes by sample_id)" if verdict["margin"] == 0 and word != "kept" else ""
    return f"{word}: {by} {value:.6g}, {cut}{margin}; {position}{tie}{because}{_repeats(verdict)}"


def _position(verdict: dict[str, Any]) -> str:
    if verdict.get("rank") is not None:
        return f"rank {verdict['rank']:,}, "
    share = verdict["better_than"]
    return "" if share is None else f"better than {share:.1%} of those that reached this cut; at its fit "


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
    if more:
        parts.append(f"the best {more:,} once{' more' if whole else ''}")
    return (
        f"{times}: group {mixture['group']} of the mixture, stated share {mixture['weight']:.1%}, was given "
        f"{mixture['entries']:,} entries for the {mixture['rows']:,} rows that it had at the fit: "
        f"{', '.join(parts)}"
    )


def as_json(records: list[dict[str, Any]]) -> str:
    """The answer for other programs."""
    return json.dumps(plain(records), indent=1, ensure_ascii=False, default=str)

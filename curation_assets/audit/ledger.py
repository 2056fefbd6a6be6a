"""The ledger of a policy: its verdict tables, a row per row of raw/samples with all that decided it.

A ledger is the tables `filtered/<policy>` of a pool's shards (VERDICT_SCHEMA, then a column per signal that the policy
and its recipes read), or the same files in a release. What policy and profile made a table, its manifest states; its
cut is the table `filtered/<policy>_cut`. A ledger suffices to replay its policy: `replayed` judges the recorded values
again.
"""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.plain_json import number, plain
from curation_assets.methods import oriented
from curation_assets.numeric.identity import UID_DTYPE, sorted_uids
from curation_assets.selection.cut import PolicyCut, cut_of_frame
from curation_assets.selection.judging import VERDICT_SCHEMA, judge, multiplicity
from curation_assets.selection.policy import Policy, Prefilter
from curation_assets.selection.rows import DROP_REASON, IDENTITY
from curation_assets.stores.columns import halves_of
from curation_assets.stores.file_hash import sha256_now
from curation_assets.stores.manifest import Manifest
from curation_assets.stores.parquet import parquet_schema, read_parquet
from curation_assets.stores.shard_store import MissingTableError, ShardStore, manifest_text

FILES_AT_ONCE = 16  # that are read together


class LedgerError(ValueError):
    """A ledger's verdicts are not those of its policy."""


def signal_column(reference: str, score: str | None = None) -> str:
    """Name of a signal's column: signals.icc → signals_icc, as its view in the catalogue."""
    return reference.replace(".", "_") + (f"_{score}" if score else "")


def recorded_columns(names: Iterable[str]) -> list[str]:
    """The columns of a ledger that hold signals."""
    return [name for name in names if name not in VERDICT_SCHEMA]


def recorded_signals(policy: Policy, recipes: Mapping[str, Sequence[str]]) -> list[str]:
    """References that a ledger of `policy` has a column for: what ranks, and the signals that its recipes fuse.

    `recipes`: recipe → references of its SQL, such as fused.sieve_clip → [raw.samples, signals.sieve, …].
    """
    ranked = {policy.rank_by, *(prefilter.rank_by for prefilter in policy.prefilters)}
    fused = {
        prefilter
        for reference in ranked
        for prefilter in recipes.get(reference, ())
        if not prefilter.startswith("raw.") and not prefilter.endswith("_range")
    }
    return sorted(ranked | fused)


def ledger_facts(policy: Policy, profile: str) -> dict[str, Any]:
    """What the manifest of a verdict table states of it."""
    facts: dict[str, Any] = plain({"policy": policy.recorded(), "profile": profile})
    return facts


def policy_in(facts: Mapping[str, Any]) -> Policy:
    """The policy that a manifest's facts state."""
    content = json.loads(json.dumps(facts["policy"]))
    for step in (content, *content["prefilters"]):
        step["threshold"] = number(step["threshold"])
    prefilters = tuple(Prefilter(**fields) for fields in content.pop("prefilters"))
    licences = tuple(content.pop("licences", ()))
    return Policy(prefilters=prefilters, licences=licences, **content)


@dataclass(frozen=True)
class Ledger:
    """A policy's verdicts over a pool."""

    policy: Policy
    cut: PolicyCut
    profile: str
    paths: tuple[Path, ...]  # Parquet files, shard after shard; one for a release of a version before 0.4
    columns: tuple[str, ...]
    read: Callable[[Path, Sequence[str]], Iterator[pl.DataFrame]]  # columns of a file, part by part

    @property
    def signals(self) -> list[str]:
        """Columns that hold signals."""
        return recorded_columns(self.columns)

    def parts(self, columns: Iterable[str] | None = None) -> Iterator[pl.DataFrame]:
        """Rows in order, some at a time: all columns, or those named and what `multiplicity` takes."""
        more = ("verdict", *(["value"] if self.policy.repeats else []))
        chosen = self.columns if columns is None else tuple(dict.fromkeys([*columns, *more]))
        for path in self.paths:
            yield from self.read(path, chosen)

    def kept(self, columns: Iterable[str] = ("sample_id",)) -> Iterator[pl.DataFrame]:
        """The rows that the policy keeps, part by part, with `multiplicity`."""
        for part in self.parts(columns):
            rows = part.with_columns(multiplicity=pl.Series(multiplicity(self.policy, part)))
            yield rows.filter(pl.col("multiplicity") > 0)

    def counted(self, *by: pl.Expr, of: Iterable[str]) -> pl.DataFrame:
        """How many rows (`rows`) have each combination of some expressions over the columns `of`, the most first."""
        parts = [part.group_by(*by).len("rows") for part in self.parts(of)]
        names = [name for name in parts[0].columns if name != "rows"]
        both = pl.concat(parts).group_by(names).agg(pl.col("rows").sum())
        return both.sort("rows", *names, descending=[True, *[False] * len(names)])

    def subset(self) -> np.ndarray:
        """The ids that are kept as DataComp's sorted u8,u8, an entry per repeat: in memory."""
        return subset_of(self.kept())

    @functools.cached_property
    def sha256(self) -> str:
        """64 hex digits over what the files hold."""
        seals = [json.loads(text)["seal"] if (text := manifest_text(path)) else sha256_now(path) for path in self.paths]
        return hashlib.sha256("".join(seals).encode()).hexdigest()


def subset_of(kept: Iterable[pl.DataFrame]) -> np.ndarray:
    """Parts with sample_id and multiplicity → sorted u8,u8, an entry per repeat."""
    halves = [np.repeat(halves_of(part["sample_id"]), part["multiplicity"].to_numpy(), axis=0) for part in kept]
    return sorted_uids(np.concatenate(halves)) if halves else np.zeros(0, dtype=UID_DTYPE)


def read_part(path: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """A verdict table."""
    yield read_parquet(path, columns=columns)


def ledger_policies(store: ShardStore) -> list[str]:
    """Policies that have verdicts, sorted."""
    folder = store.asset_path("filtered/x").parent
    names = [path.name.removesuffix("_cut") for path in folder.glob("[a-z0-9_]*_cut")]
    return sorted(name for name in names if store.partitions(f"filtered/{name}"))


def verdict_table(store: ShardStore, policy: str) -> str:
    """'filtered/POLICY'. Raises MissingTableError that lists the policies there are."""
    known = ledger_policies(store)
    if policy not in known:
        shown = ", ".join(known) or f"none yet; `curate run {store.root.name}` first"
        raise MissingTableError(f"no ledger of policy {policy!r} under {store.root}; ledgers: {shown}")
    return f"filtered/{policy}"


def recorded_ledger(store: ShardStore, policy: str, shards: Sequence[str] | None = None) -> Ledger:
    """The ledger of a policy in a pool, as its verdict tables have it, of all shards or some.

    Raises as `verdict_table`, CorruptTableError for a damaged table, LedgerError where a version before 0.4 wrote one.
    """
    asset = verdict_table(store, policy)
    keys = store.partitions(asset) if shards is None else list(shards)
    manifest = store.manifest(asset, keys[-1])
    if manifest is None or not manifest.facts:
        raise LedgerError(
            f"{asset} was written by an earlier version, without the values that decided; `curate run "
            f"{store.root.name}` brings it up to date"
        )
    paths = tuple(store.checked_paths(asset, keys))
    cut = cut_of_frame(store.read(f"{asset}_cut"))
    columns = tuple(parquet_schema(paths[-1]))
    return Ledger(policy_in(manifest.facts), cut, manifest.facts["profile"], paths, columns, read_part)


def rows_of_verdicts(policy: Policy, verdicts: pl.DataFrame) -> pl.DataFrame:
    """Rows as `judge` takes them, from what a ledger recorded: those that the policy left out count as dropped."""
    by, reason = pl.col("decided_by").cast(pl.String), pl.col("reason").cast(pl.String)
    is_judged = by.is_not_null()
    columns = [
        pl.when(is_judged).then(pl.lit("kept")).otherwise(pl.col("verdict").cast(pl.String)).alias("status"),
        pl.when(~is_judged).then(reason).alias("raw_reason"),
    ]
    for reference in {step.rank_by for step in policy.steps}:
        mine = by == reference
        detail = reason.str.extract(rf"(?s)^(?:below_cut|prefilter):{re.escape(reference)}:(.*)$", 1)
        columns += [
            pl.col(signal_column(reference)).cast(pl.Float64).alias(reference),
            pl.when(mine).then(reason.str.strip_prefix("no_value:")).alias(f"{reference}:reason"),
            pl.when(mine).then(detail).alias(f"{reference}:{DROP_REASON}"),
        ]
    return verdicts.select(*IDENTITY, *columns)


def judged_columns(policy: Policy) -> list[str]:
    """Columns of a ledger that replaying it takes."""
    signals = dict.fromkeys(signal_column(step.rank_by) for step in policy.steps)
    return [*IDENTITY, "decided_by", "value", "threshold", "verdict", "reason", *signals]


def replayed(ledger: Ledger) -> Iterator[pl.DataFrame]:
    """Judge the recorded values again: verdicts, part by part. Raises LedgerError after the last part where verdicts,
    reasons or what decided, and with which value, come out otherwise than recorded.
    """
    wrong, first = 0, ""
    compared = ["decided_by", "value", "threshold", "verdict", "reason"]
    for part in ledger.parts(judged_columns(ledger.policy)):
        again = judge(ledger.policy, rows_of_verdicts(ledger.policy, part), ledger.cut)
        both = [one.select(compared) for one in (again, part)]
        if not both[0].equals(both[1]):
            differing = (both[0].hash_rows() != both[1].hash_rows()).arg_true()
            first = first or str(part["sample_id"][int(differing[0])])
            wrong += len(differing)
        yield again
    if wrong:
        raise LedgerError(
            f"{ledger.paths[0].parent}: policy {ledger.policy.name!r} gives {wrong} rows another verdict or reason "
            f"than recorded, first sample {first}; the files were changed, or the code: make the verdicts anew"
        )


def exact_rank(ledger: Ledger, step: int, sample_id: str, value: float) -> int:
    """Rank, 1 is best, of a sample's value among the rows that reached a cut: one count over the pool. Equal values go
    by id."""
    names = [one.rank_by for one in ledger.policy.steps]
    last = {name: number for number, name in enumerate(names)}
    first = {name: names.index(name) for name in names}
    column, worth, rank = signal_column(names[step]), oriented(names[step], value), 1
    for part in ledger.parts(["sample_id", "decided_by", "reason", column]):
        decided = pl.col("decided_by").cast(pl.String)
        is_prefiltered = pl.col("reason").cast(pl.String).str.starts_with("prefilter:").fill_null(False)
        reached = [decided.replace_strict(one, default=None, return_dtype=pl.Int64) for one in (first, last)]
        at = pl.when(is_prefiltered).then(reached[0]).otherwise(reached[1])
        rows = part.filter(at >= step).with_columns(worth=oriented(names[step], pl.col(column)))
        ties = (pl.col("worth") == worth) & (pl.col("sample_id") < sample_id)
        rank += rows.filter((pl.col("worth") > worth) | ties).height
    return rank


def manifests_behind(store: ShardStore, asset: str, shard: str) -> list[Manifest]:
    """Manifests of all tables that a shard's table rests on, and its own, sorted by table."""
    waiting: list[tuple[str, str | None]] = [(asset, shard)]
    found: dict[str, Manifest] = {}
    while waiting:
        name, key = waiting.pop()
        manifest = None if name in found else store.manifest(name, key)
        if manifest is None:
            continue
        found[name] = manifest
        waiting += {(read.asset, read.partition) for read in manifest.inputs if read.partition in (shard, None)}
        if key is None:  # a fit reads all shards of a table, which are one thing here
            waiting += {(read.asset, shard) for read in manifest.inputs if read.partition is not None}
    return [found[name] for name in sorted(found)]

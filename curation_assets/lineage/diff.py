"""The difference between two policies on one pool: overlap, shifts, what each signal decides, nearest misses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from curation_assets.lineage.judging import Judged, judge
from curation_assets.lineage.ledger import LedgerError, ledger_facts, ledger_rows_sha256, signal_column
from curation_assets.lineage.rows import DROPPED, KEPT, STATES, PoolRows, Signal, Texts, uid_texts
from curation_assets.policies import (
    POLICIES_ROOT,
    RANDOM,
    Policy,
    Prefilter,
    load_policies,
    load_policy,
    policy_content,
)
from curation_assets.stores.atomic import write_text_atomically
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.shard_store import ShardStore

#: Upper ends of the groups of caption lengths, in words.
LENGTH_GROUPS = (5, 10, 20, 40)
NEAREST_COUNT = 10
#: A recipe counts as a weighted sum where weights explain its values to this absolute error.
LINEAR_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Overlap:
    """How two subsets of one pool share their samples. Counts are of rows; a sample is kept in one row at most."""

    rows: int
    left: int
    right: int
    both: int

    @classmethod
    def of(cls, left: np.ndarray, right: np.ndarray) -> "Overlap":
        """(N,) bool and (N,) bool over the same rows."""
        if left.shape != right.shape:
            raise ValueError(f"both subsets must be of the same rows, got {left.shape} and {right.shape}")
        return cls(len(left), int(left.sum()), int(right.sum()), int((left & right).sum()))

    @property
    def only_left(self) -> int:
        """Kept by the left policy alone."""
        return self.left - self.both

    @property
    def only_right(self) -> int:
        """Kept by the right policy alone."""
        return self.right - self.both

    @property
    def iou(self) -> float | None:
        """Intersection over union (Jaccard), in [0, 1]; None where both subsets are empty."""
        either = self.left + self.right - self.both
        return self.both / either if either else None

    def chance_iou(self, judged: int) -> float | None:
        """IoU of the expected counts if both had drawn their samples from `judged` ones at random."""
        if not judged or not self.left + self.right:
            return None
        both = self.left * self.right / judged
        return both / (self.left + self.right - both)


@dataclass(frozen=True)
class Difference:
    """Two policies on one pool."""

    left: Policy
    right: Policy
    overlap: Overlap
    judged: int  # rows that raw kept
    transitions: pl.DataFrame  # left_verdict, right_verdict, rows
    shifts: pl.DataFrame  # dimension, group, pool, left, right (rows), left_share, right_share, change
    leave_one_out: pl.DataFrame  # policy, without, kept, iou (with the whole policy)
    nearest: pl.DataFrame  # policy, sample_id, caption, url, decided_by, value, margin, other_verdict

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "left": policy_content(self.left),
            "right": policy_content(self.right),
            "rows": self.overlap.rows,
            "judged": self.judged,
            "kept": {"left": self.overlap.left, "right": self.overlap.right, "both": self.overlap.both},
            "only_left": self.overlap.only_left,
            "only_right": self.overlap.only_right,
            "iou": self.overlap.iou,
            "chance_iou": self.overlap.chance_iou(self.judged),
            "transitions": self.transitions.to_dicts(),
            "shifts": self.shifts.to_dicts(),
            "leave_one_out": self.leave_one_out.to_dicts(),
            "nearest_dropped": self.nearest.to_dicts(),
        }


def compare(rows: PoolRows, left: Policy, right: Policy, *, nearest: int = NEAREST_COUNT) -> Difference:
    """Judge a pool by both policies and say where they differ. Raises what reading a signal raises."""
    judged = [judge(policy, rows) for policy in (left, right)]
    facts = rows.facts(["url", "caption"]).with_columns(_language(rows))
    return Difference(
        left,
        right,
        Overlap.of(judged[0].is_kept, judged[1].is_kept),
        int(rows.is_kept.sum()),
        _transitions(*(one.verdict for one in judged)),
        _shifts(facts.filter(rows.is_kept), *(one.is_kept[rows.is_kept] for one in judged)),
        pl.concat([_leave_one_out(rows, one) for one in judged[: 1 if left == right else 2]]),
        pl.concat([_nearest(rows, facts, judged[i], judged[1 - i], nearest) for i in (0, 1)]),
    )


def iou_at(rows: PoolRows, left: Policy, right: Policy, fractions: Sequence[float]) -> pl.DataFrame:
    """IoU of two rankings at each fraction: fraction, left, right, both, iou, chance_iou. SIEVE §4.2; METHODS §2.5.

    chance_iou: k / (2 − k) for two independent draws of a share k of the samples that raw kept.
    """
    told = []
    judged = int(rows.is_kept.sum())
    for fraction in fractions:
        kept = [judge(policy.with_fraction(fraction), rows).is_kept for policy in (left, right)]
        overlap = Overlap.of(*kept)
        told.append(
            {
                "fraction": fraction,
                "left": overlap.left,
                "right": overlap.right,
                "both": overlap.both,
                "iou": overlap.iou,
                "chance_iou": overlap.chance_iou(judged),
            }
        )
    schema = {"fraction": pl.Float64, "left": pl.Int64, "right": pl.Int64, "both": pl.Int64}
    return pl.DataFrame(told, schema={**schema, "iou": pl.Float64, "chance_iou": pl.Float64}, orient="row")


def compare_ledgers(left: Path, right: Path, store: ShardStore, *, nearest: int = NEAREST_COUNT) -> dict[str, Any]:
    """Overlap, transitions and nearest dropped of two recorded policies, for JSON: seconds for a pool of any size.

    What needs every value or caption again (shifts, leave-one-out) is not among them: see `compare`. Raises LedgerError
    for ledgers of other rows.
    """
    paths = (left, right)
    known = [ledger_rows_sha256(path) for path in paths]
    verdicts = []
    for path in paths:
        verdict = pl.read_parquet(path, columns=["verdict"], hive_partitioning=False)["verdict"]
        verdicts.append(verdict.cast(pl.Enum(STATES)).to_physical().cast(pl.Int8).to_numpy())
    if None in known:  # ledgers of before rows were recorded
        ids = [pl.read_parquet(path, columns=["uid_high", "uid_low"], hive_partitioning=False) for path in paths]
        is_same = ids[0].equals(ids[1])
    else:
        is_same = known[0] == known[1]
    if not is_same:
        raise LedgerError(f"{left} and {right} record different rows; run the pool again so that both are of one pool")
    overlap = Overlap.of(*(one == KEPT for one in verdicts))
    facts = [ledger_facts(path) for path in paths]
    return {
        "left": policy_content(facts[0][0]),
        "right": policy_content(facts[1][0]),
        "rows": overlap.rows,
        "kept": {"left": overlap.left, "right": overlap.right, "both": overlap.both},
        "only_left": overlap.only_left,
        "only_right": overlap.only_right,
        "iou": overlap.iou,
        "transitions": _transitions(*verdicts).to_dicts(),
        "nearest_dropped": [
            row
            for i, pair in enumerate((verdicts, verdicts[::-1]))
            for row in _nearest_recorded(paths[i], facts[i], pair, store, nearest)
        ],
    }


def _nearest_recorded(
    path: Path, facts: tuple[Policy, Any, str, Any], verdicts: Sequence[np.ndarray], store: ShardStore, count: int
) -> list[dict[str, Any]]:
    """Samples just below the last cut of a ledger. `verdicts`: its own and the other ledger's, (N,) each."""
    policy, _, _, counts = facts
    passing = counts[-1][2]
    rank = pl.read_parquet(path, columns=["rank"], hive_partitioning=False)["rank"].fill_null(0).to_numpy()
    at = np.flatnonzero((verdicts[0] == DROPPED) & (rank > passing) & (rank <= passing + count))
    column = signal_column(policy.rank_by)
    wanted = ["uid_high", "uid_low", "shard", "source_row", "decided_by", "reason", "margin", column]
    scan = pl.scan_parquet(path, hive_partitioning=False).select(wanted)
    told = []
    for place in at[np.argsort(rank[at], kind="stable")].tolist():
        found = scan.slice(place, 1).collect()
        (row,) = found.to_dicts()
        if row["reason"] != f"below_cut:{policy.rank_by}":  # a prefilter dropped it, whose ranks are others
            continue
        sample = store.read("raw/samples", row["shard"], ["source_row", "caption", "url"])
        sample = sample.filter(pl.col("source_row") == row["source_row"])
        told.append(
            {
                "policy": policy.name,
                "sample_id": uid_texts(found["uid_high"], found["uid_low"])[0],
                "caption": sample["caption"].first(),
                "url": sample["url"].first(),
                "decided_by": row["decided_by"],
                "value": row[column],
                "margin": row["margin"],
                "other_verdict": STATES[verdicts[1][place]],
            }
        )
    return told


# -- shifts -----------------------------------------------------------------------------------------------------------


def _transitions(left: np.ndarray, right: np.ndarray) -> pl.DataFrame:
    """(N,) and (N,) codes of STATES → rows per pair."""
    counts = np.bincount(left.astype(np.int64) * 3 + right, minlength=9).reshape(3, 3)
    return pl.DataFrame(
        [
            {"left_verdict": STATES[i], "right_verdict": STATES[j], "rows": int(counts[i, j])}
            for i in range(3)
            for j in range(3)
            if counts[i, j]
        ],
        schema={"left_verdict": pl.String, "right_verdict": pl.String, "rows": pl.Int64},
    )


def _language(rows: PoolRows) -> pl.Series:
    """Language of each row where a signals table has a column of that name; else null."""
    for asset in stored_tables(rows.store):
        if asset.startswith("signals/") and rows.store.scan(asset).collect_schema().get("language") == pl.String:
            return rows.column(asset, "language")
    return pl.Series("language", [None] * len(rows), dtype=pl.String)


def host_of(url: pl.Expr) -> pl.Expr:
    """Host of a URL, lower case, without port and user; null where there is none."""
    return url.str.extract(r"^[A-Za-z][A-Za-z0-9+.-]*://(?:[^/?#@]*@)?(\[[^\]]*\]|[^/:?#]+)", 1).str.to_lowercase()


def _length_group(caption: pl.Expr) -> pl.Expr:
    words = caption.fill_null("").str.count_matches(r"\S+")
    lows = (1, *(high + 1 for high in LENGTH_GROUPS))
    group = pl.lit("0 words")
    for low, high in zip(lows, LENGTH_GROUPS, strict=False):
        group = pl.when((words >= low) & (words <= high)).then(pl.lit(f"{low}–{high} words")).otherwise(group)
    return pl.when(words >= lows[-1]).then(pl.lit(f"{lows[-1]}+ words")).otherwise(group)


def _dimensions() -> dict[str, pl.Expr]:
    """What shifts are told by: dimension → group of a row with url, caption and language."""
    return {
        "domain": host_of(pl.col("url")),
        "language": pl.col("language"),
        "caption length": _length_group(pl.col("caption")),
    }


def dimensions_of(rows: PoolRows, facts: pl.DataFrame) -> dict[str, pl.Series]:
    """Dimension → group of each row that raw kept; null in none. `facts`: url and caption of those rows, in order."""
    told = facts.with_columns(_language(rows).filter(pl.Series(rows.is_kept)))
    return {name: told.select(group.alias("group"))["group"] for name, group in _dimensions().items()}


def _shifts(facts: pl.DataFrame, left: np.ndarray, right: np.ndarray) -> pl.DataFrame:
    """One row per dimension and group, the largest changes of share first within a dimension."""
    dimensions = _dimensions()
    marked = facts.with_columns(pl.Series("left", left), pl.Series("right", right))
    parts = []
    for dimension, group in dimensions.items():
        counted = (
            marked.group_by(group.alias("group"))
            .agg(pl.len().cast(pl.Int64).alias("pool"), pl.col("left", "right").sum().cast(pl.Int64))
            .filter(pl.col("group").is_not_null())
            .with_columns(
                pl.lit(dimension).alias("dimension"),
                (pl.col("left") / max(int(left.sum()), 1)).alias("left_share"),
                (pl.col("right") / max(int(right.sum()), 1)).alias("right_share"),
            )
            .with_columns((pl.col("right_share") - pl.col("left_share")).alias("change"))
            .sort(pl.col("change").abs(), "group", descending=[True, False])
        )
        parts.append(counted.select("dimension", pl.exclude("dimension")))
    return pl.concat(parts)


# -- what decides -----------------------------------------------------------------------------------------------------


def _leave_one_out(rows: PoolRows, judged: Judged) -> pl.DataFrame:
    """One row per signal of the policy: how many it keeps without it, and IoU with the whole policy's subset."""
    told: list[dict[str, object]] = []
    for without, policy, provided in _reduced(rows, judged.policy):
        if policy is None:
            told.append({"policy": judged.policy.name, "without": without, "kept": None, "iou": None})
            continue
        kept = judge(policy, provided).is_kept
        told.append(
            {
                "policy": judged.policy.name,
                "without": without,
                "kept": int(kept.sum()),
                "iou": Overlap.of(judged.is_kept, kept).iou,
            }
        )
    schema = {"policy": pl.String, "without": pl.String, "kept": pl.Int64, "iou": pl.Float64}
    return pl.DataFrame(told, schema=schema, orient="row")


def _reduced(rows: PoolRows, policy: Policy) -> list[tuple[str, Policy | None, PoolRows]]:
    """(signal left out, the policy without it, rows to judge). A policy of one signal has nothing to leave out.

    Without a prefilter its cut is not made; without the ranking signal the last prefilter's ranks; without a signal of
    a recipe the others' scores keep their weights. The policy is None where that is not defined.
    """
    reduced: list[tuple[str, Policy | None, PoolRows]] = []
    for place, one in enumerate(policy.prefilters):
        others = policy.prefilters[:place] + policy.prefilters[place + 1 :]
        reduced.append((one.rank_by, replace(policy, prefilters=others), rows))
    if policy.rank_by.startswith("fused."):
        scores = rows.signal(policy.rank_by).scores
        weights = recipe_weights(rows, policy.rank_by)
        for name in scores if len(scores) > 1 else ():
            if weights is None or policy.fraction is None:
                reduced.append((name.removesuffix("_score"), None, rows))
                continue
            rest = np.sum([weights[other] * scores[other] for other in scores if other != name], axis=0)
            # A copy of the rows in which the recipe says something else; nothing is read twice.
            other_rows = rows.with_signal(policy.rank_by, Signal(rest, Texts(np.full(len(rows), -1, np.int32), [])))
            reduced.append((name.removesuffix("_score"), policy, other_rows))
    elif policy.prefilters and policy.rank_by != RANDOM:
        *earlier, last = policy.prefilters
        without = None
        if policy.fraction is not None:  # a threshold of one signal says nothing about another
            without = replace(policy, rank_by=last.rank_by, prefilters=tuple(earlier))
        reduced.append((policy.rank_by, without, rows))
    return reduced


def recipe_weights(rows: PoolRows, reference: str) -> dict[str, float] | None:
    """Weights of the scores in a recipe, read off its values (least squares); None where it is no weighted sum."""
    signal = rows.signal(reference)
    if not signal.scores:
        return None
    scores = np.stack(list(signal.scores.values()), axis=1)  # (N, K)
    complete = np.isfinite(scores).all(axis=1) & np.isfinite(signal.values)
    if not complete.any():
        return None
    weights, *_ = np.linalg.lstsq(scores[complete], signal.values[complete], rcond=None)
    error = np.abs(scores[complete] @ weights - signal.values[complete]).max()
    return dict(zip(signal.scores, weights.tolist(), strict=True)) if error < LINEAR_TOLERANCE else None


def _nearest(rows: PoolRows, facts: pl.DataFrame, judged: Judged, other: Judged, count: int) -> pl.DataFrame:
    """The samples that the policy's last cut dropped by the smallest margin."""
    last = len(judged.cut.cuts) - 1
    dropped = np.flatnonzero((judged.verdict == DROPPED) & (judged.step == last))
    chosen = dropped[np.argsort(judged.rank[dropped], kind="stable")[:count]]
    value = judged.decided_value(rows)[chosen]
    return pl.DataFrame(
        [
            pl.Series("policy", [judged.policy.name] * len(chosen), dtype=pl.String),
            uid_texts(pl.Series(rows.uid_high[chosen]), pl.Series(rows.uid_low[chosen])),
            facts["caption"].gather(chosen),
            facts["url"].gather(chosen),
            pl.Series("decided_by", [judged.policy.rank_by] * len(chosen), dtype=pl.String),
            pl.Series("value", value),
            pl.Series("margin", value - judged.threshold[chosen]).fill_nan(None),
            pl.Series("other_verdict", [STATES[code] for code in other.verdict[chosen]], dtype=pl.String),
        ]
    )


# -- what if ----------------------------------------------------------------------------------------------------------


def what_if(
    policy: Policy,
    *,
    fraction: float | None = None,
    threshold: float | None = None,
    rank_by: str | None = None,
    prefilters: Sequence[Prefilter] | None = None,
) -> Policy:
    """The same policy with another fraction or threshold, ranking signal or prefilters (an empty list: none).

    Raises ValueError for fraction and threshold together, or a value out of range.
    """
    if fraction is not None and threshold is not None:
        raise ValueError(f"give --fraction or --threshold, not both; got {fraction} and {threshold}")
    changed = policy
    if rank_by is not None and rank_by != policy.rank_by:
        changed = replace(changed, rank_by=rank_by, name=f"{changed.name}_by_{rank_by.replace('.', '_')}")
    if prefilters is not None and tuple(prefilters) != policy.prefilters:
        filtered = "_".join(f"{one.rank_by.replace('.', '_')}_{one.fraction:g}" for one in prefilters) or "none"
        name = f"{changed.name}_after_{filtered}".replace(".", "_")
        changed = replace(changed, prefilters=tuple(prefilters), name=name)
    if fraction is not None:
        return replace(changed.with_fraction(fraction), name=f"{changed.name}_{fraction:g}".replace(".", "_"))
    if threshold is not None:
        name = f"{changed.name}_from_{threshold:g}".replace(".", "_").replace("-", "minus_")
        return replace(changed, name=name, fraction=None, count=None, threshold=threshold, semantics="exact")
    return changed


def save_policy(folder: Path, policy: Policy, name: str, description: str = "") -> Path:
    """Write `policy` as `folder`/`name`.yaml, where the pool finds it. Raises ValueError for a name that is taken."""
    if not name.replace("_", "").isalnum() or name != name.lower():
        raise ValueError(f"a policy's name has lower-case letters, digits and underscores, got {name!r}")
    path = folder / f"{name}.yaml"
    saved = replace(policy, name=name, description=description or policy.description)
    if name in load_policies(POLICIES_ROOT) or (path.is_file() and load_policy(path) != saved):
        raise ValueError(f"there is a policy {name!r} already; choose another name")
    write_text_atomically(path, yaml.safe_dump(policy_content(saved), sort_keys=False, allow_unicode=True))
    return path


def find_policy(known: Mapping[str, Policy], name: str) -> Policy:
    """A policy by name. Raises ValueError that lists the names there are."""
    if name not in known:
        raise ValueError(f"no policy {name!r}; known: {', '.join(sorted(known))}")
    return known[name]

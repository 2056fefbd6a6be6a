"""The page beside the report that steps through policies in pairs: what each keeps, as it is and at 5, 10, … 95 %."""

import base64
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.diff import Overlap, what_if
from curation_assets.audit.recorded import cuts_in_force
from curation_assets.audit.shifts import dimensions_of
from curation_assets.core.plain_json import plain
from curation_assets.core.table_names import DUPLICATES, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import holds_in_words, policies_of, worths_of
from curation_assets.flow.worth import domain_in_words
from curation_assets.methods import lower_is_better
from curation_assets.numeric.selection import random_ranking
from curation_assets.outputs.pages import inlined, page_of
from curation_assets.outputs.report.image_texts import clamped
from curation_assets.outputs.thumbnails import thumbnail_of
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import fit_cut, judge, was_dropped_by
from curation_assets.selection.left_out import remaining
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import NOTHING_MORE, ROW_KEY, Frames, Pool, Wanted, with_values
from curation_assets.stores.shard_store import ShardStore

MAX_ROWS = 50_000  # judged samples: each policy is judged once per step
STEPS = (None, *(percent / 100 for percent in range(5, 100, 5)))  # None: each policy as it is
TEXTS = ("url", "caption", "tar", "member")
AT_CUT = 4  # samples on each side of a cut that are shown
GROUPS = 12  # of a dimension, the largest of the pool
PICTURE_PX = 96  # longer side
MAX_PICTURE_BYTES = 3 << 20  # of JPEG, a third more in the page: some 1,000 pictures


def write_compare_page(ctx: PoolContext, path: Path) -> None:
    """Write the page. Raises what reading the pool's signals raises."""
    judged = _kept_count(ctx.store)
    policies = policies_of(ctx)
    data = None
    if judged <= MAX_ROWS:
        kept = kept_rows(ctx.store, policies)
        data = compare_data(ctx.store, kept, policies, cuts_in_force(ctx.store, policies))
        _add_pictures(ctx, kept, data["samples"])
    page = page_of(
        Path(__file__).with_name("compare.html.jinja"),
        pool=ctx.pool.name,
        policies=[policy.name for policy in policies],
        rows=judged,
        limit=MAX_ROWS,
        worths=worths_of(ctx, sorted({reference for policy in policies for reference in policy.references})),
        domain=domain_in_words(ctx.pool.image_domain),
        holds=holds_in_words(ctx),
        steps=len(STEPS) - 1,
        data=None if data is None else inlined(json.dumps(data, ensure_ascii=False, allow_nan=False), is_json=True),
    )
    path.write_text(page, encoding="utf-8")


def _kept_count(store: ShardStore) -> int:
    """Samples that raw kept, each once, as the table of repeats has it; no rows are held."""
    kept = store.scan(SAMPLES).filter(pl.col("status") == "kept").select(pl.len())
    repeats = store.scan(DUPLICATES).select(pl.len()).collect().item() if store.table_path(DUPLICATES).is_file() else 0
    return int(kept.collect(engine="streaming").item()) - int(repeats)


def kept_rows(store: ShardStore, policies: Sequence[Policy]) -> pl.DataFrame:
    """The rows that raw kept, with what the policies read (but for random rankings) and their texts, by sample_id."""
    wanted = functools.reduce(Wanted.__or__, map(Wanted.of, policies), NOTHING_MORE)
    texts = (*wanted.texts, *((SAMPLES, name) for name in TEXTS))
    read = Wanted(tuple(one for one in wanted.references if one != RANDOM), (), texts)
    rows = pl.concat(Pool(store).parts(read)).rename({f"{SAMPLES}:{name}": name for name in TEXTS})
    return rows.filter(pl.col("status") == "kept").sort("sample_id", *ROW_KEY)


@dataclass(frozen=True)
class _Judged:
    """What one policy makes of the rows that raw kept, in their order."""

    policy: Policy
    cut: PolicyCut
    verdicts: pl.DataFrame

    @classmethod
    def of(cls, policy: Policy, kept: pl.DataFrame, cut: PolicyCut | None) -> "_Judged":
        """Kept rows judged by a frozen cut, or one fitted now; ValueError where DataComp's rule has none."""
        if RANDOM in Wanted.of(policy).references:
            kept = with_values(kept, RANDOM, random_ranking(kept["sample_id"].to_list(), policy.seed))
        cut = fit_cut(policy, Frames([kept])) if cut is None else cut
        return cls(policy, cut, judge(policy, remaining(policy, kept), cut))

    @property
    def is_kept(self) -> np.ndarray:
        """(N,) bool."""
        return (self.verdicts["verdict"] == "kept").to_numpy()

    def nearest(self, state: str, count: int = AT_CUT) -> pl.DataFrame:
        """Rows that the last cut kept or dropped by the smallest margin, the nearest first; `row`: their position."""
        rank_by = self.policy.rank_by
        is_dropped = was_dropped_by(rank_by)
        mine = self.verdicts.with_row_index("row").filter(
            pl.col("verdict") == "kept" if state == "kept" else is_dropped
        )
        is_best_first = (state == "dropped") != lower_is_better(rank_by)
        return mine.sort("value", "sample_id", descending=[is_best_first, state == "kept"]).head(count)

    def side(self, dimensions: Mapping[str, tuple[list[str], np.ndarray]]) -> dict[str, Any]:
        """What the policy keeps: kept, threshold of the last cut, share by group, samples at the cut."""
        total = int(self.is_kept.sum())
        groups = {
            name: (_counts(dimension, self.is_kept) / max(total, 1)).tolist() for name, dimension in dimensions.items()
        }
        at_cut = {
            state: self.nearest(state).select("row", "value", "reason").to_dicts() for state in ("kept", "dropped")
        }
        return {"kept": total, "threshold": self.cut.threshold, "groups": groups, "at_cut": at_cut}


def _coded(texts: pl.Series) -> tuple[list[str], np.ndarray]:
    """Different texts, sorted, and (N,) the place of each row's among them; -1 for null."""
    words = texts.drop_nulls().unique().sort().to_list()
    return words, texts.cast(pl.Enum(words)).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()


def _counts(dimension: tuple[list[str], np.ndarray], is_kept: np.ndarray) -> np.ndarray:
    """How many of the rows `is_kept` are of each group."""
    words, codes = dimension
    return np.bincount(codes[is_kept & (codes >= 0)], minlength=len(words))


def compare_data(
    store: ShardStore, kept: pl.DataFrame, policies: Sequence[Policy], cuts: Mapping[str, PolicyCut] | None = None
) -> dict[str, Any]:
    """What the page shows, for JSON. Every number is of `selection.judging`; the page looks up and subtracts.

    `kept`: as `kept_rows` gives them. `steps`: each policy as it is (by its frozen cut of `cuts`, if any), then keeping
    5, 10, … 95 %: `sides`, policy → what it keeps, or the reason why it cannot be cut; `pairs`, "A|B" → both, IoU, IoU
    by chance. `samples`: row → id and caption of those at a cut; `dimensions`: name → groups with their rows, the
    largest first.
    """
    found_groups = dimensions_of(store, store.partitions(SAMPLES), kept.select(*ROW_KEY, "url", "caption"))
    groups = {name: _coded(found) for name, found in found_groups.items()}
    every = np.ones(kept.height, dtype=bool)
    largest = {name: np.argsort(-_counts(coded, every), kind="stable")[:GROUPS] for name, coded in groups.items()}
    steps, shown = [], set[int]()
    for share in STEPS:
        sides: dict[str, Any] = {}
        found: dict[str, _Judged] = {}
        for policy in policies:
            try:
                changed = policy if share is None else what_if(policy, fraction=share)
                judged = _Judged.of(changed, kept, (cuts or {}).get(policy.name) if share is None else None)
            except ValueError as error:  # DataComp's rule on a pool without any value
                sides[policy.name] = {"error": str(error)}
                continue
            sides[policy.name] = side = judged.side(groups)
            side["groups"] = {name: [side["groups"][name][code] for code in largest[name]] for name in groups}
            shown |= {sample["row"] for at_cut in side["at_cut"].values() for sample in at_cut}
            found[policy.name] = judged
        pairs = {}
        for left, right in combinations(found, 2):
            overlap = Overlap.of(found[left].is_kept, found[right].is_kept)
            reached = max(int(found[name].verdicts["decided_by"].count()) for name in (left, right))
            pairs[f"{left}|{right}"] = [overlap.both, overlap.iou, overlap.chance_iou(reached)]
        steps.append({"share": share, "sides": sides, "pairs": pairs})
    content: dict[str, Any] = {
        "n": kept.height,
        "dimensions": {
            name: [[words[code], int(_counts((words, codes), every)[code])] for code in largest[name]]
            for name, (words, codes) in groups.items()
        },
        "samples": {
            row: {"id": kept["sample_id"][row], "caption": clamped(kept["caption"][row])} for row in sorted(shown)
        },
    }
    return content | {"steps": plain(steps)}


def _add_pictures(ctx: PoolContext, kept: pl.DataFrame, samples: dict[int, dict[str, Any]]) -> None:
    """`picture` of samples: base64 of a JPEG, until MAX_PICTURE_BYTES are full."""
    facts = kept.select("sample_id", "tar", "member")
    load_image, size = ctx.image_loader(few=True), 0
    for row, sample in samples.items():
        fact = facts.row(row, named=True)
        data, _ = thumbnail_of(load_image, fact, PICTURE_PX, quality=75)
        if data is None:
            continue
        if (size := size + len(data)) > MAX_PICTURE_BYTES:
            break
        sample["picture"] = base64.b64encode(data).decode()

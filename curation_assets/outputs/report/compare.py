"""The page beside the report that steps through policies in pairs: what each keeps, as it is and at 5, 10, … 95 %."""

import base64
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
from curation_assets.outputs.report.image_texts import clamped
from curation_assets.outputs.report.page import inlined, page_of
from curation_assets.outputs.thumbnails import jpeg_thumbnail
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import Judged, judge
from curation_assets.selection.policy import Policy
from curation_assets.selection.rows import DROPPED, KEPT, STATES, PoolRows, Texts
from curation_assets.stores.images import ImageRejected
from curation_assets.stores.shard_store import ShardStore

MAX_ROWS = 50_000  # judged samples: each policy is judged once per step
STEPS = (None, *(percent / 100 for percent in range(5, 100, 5)))  # None: each policy as it is
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
        rows = PoolRows.read(ctx.store)
        data = compare_data(rows, policies, cuts_in_force(ctx.store, policies))
        _add_pictures(ctx, rows, data["samples"])
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
    kept = store.scan(SAMPLES).filter(pl.col("status") == STATES[KEPT]).select(pl.len())
    repeats = store.scan(DUPLICATES).select(pl.len()).collect().item() if store.table_path(DUPLICATES).is_file() else 0
    return int(kept.collect(engine="streaming").item()) - int(repeats)


@dataclass(frozen=True)
class _Judge:
    """Judges policies of one pool for the page. `dimensions`: name → groups of the rows that raw kept."""

    rows: PoolRows
    dimensions: Mapping[str, Texts]

    def side(self, judged: Judged, shown: set[int]) -> dict[str, Any]:
        """What one policy keeps: kept, threshold of the last cut, share by group, samples at the cut."""
        kept = judged.is_kept[self.rows.is_kept]
        groups = {
            name: [float(count) / max(int(kept.sum()), 1) for count in _counts(texts, kept)]
            for name, texts in self.dimensions.items()
        }
        at_cut = {
            STATES[state]: [self._sample(judged, row, shown) for row in nearest(judged, state)]
            for state in (KEPT, DROPPED)
        }
        return {
            "kept": int(kept.sum()),
            "threshold": judged.cut.cuts[-1].threshold,
            "groups": groups,
            "at_cut": at_cut,
        }

    def _sample(self, judged: Judged, row: int, shown: set[int]) -> dict[str, Any]:
        shown.add(row)
        reason = judged.reason.codes[row]
        value = float(judged.value_in(slice(row, row + 1))[0])
        return {"row": row, "value": value, "reason": None if reason < 0 else judged.reason.words[reason]}


def nearest(judged: Judged, state: int, count: int = AT_CUT) -> list[int]:
    """Rows that the last cut of a policy kept or dropped by the smallest margin, the nearest first."""
    last = judged.step == len(judged.cut.cuts) - 1
    at = np.flatnonzero(last & (judged.verdict == state) & (judged.rank > 0))
    by_rank = at[np.argsort(judged.rank[at], kind="stable")]
    chosen = by_rank[:count] if state == DROPPED else by_rank[::-1][:count]
    return [int(row) for row in chosen]


def _counts(texts: Texts, kept: np.ndarray) -> np.ndarray:
    """How many of the rows `kept` are of each group."""
    return np.bincount(texts.codes[kept & (texts.codes >= 0)], minlength=len(texts.words))


def compare_data(
    rows: PoolRows, policies: Sequence[Policy], cuts: Mapping[str, PolicyCut] | None = None
) -> dict[str, Any]:
    """What the page shows, for JSON. Every number is of `selection.judging`; the page looks up and subtracts.

    `steps`: each policy as it is (by its frozen cut of `cuts`, if any), then keeping 5, 10, … 95 %: `sides`, policy →
    what it keeps, or the reason why it cannot be cut; `pairs`, "A|B" → both, IoU, IoU by chance. `samples`: row → id
    and caption of those at a cut; `dimensions`: name → groups with their rows, the largest first.
    """
    judged_rows = int(rows.is_kept.sum())
    facts = rows.facts(["url", "caption"])
    groups = {name: Texts.of(found) for name, found in dimensions_of(rows, facts.filter(rows.is_kept)).items()}
    every = np.ones(judged_rows, dtype=bool)
    largest = {name: np.argsort(-_counts(texts, every), kind="stable")[:GROUPS] for name, texts in groups.items()}
    of_page, shown = _Judge(rows, groups), set[int]()
    steps = []
    for share in STEPS:
        sides: dict[str, Any] = {}
        found: dict[str, Judged] = {}
        for policy in policies:
            try:
                changed = policy if share is None else what_if(policy, fraction=share)
                judged = judge(changed, rows, (cuts or {}).get(policy.name) if share is None else None)
            except ValueError as error:  # DataComp's rule on a pool without any value
                sides[policy.name] = {"error": str(error)}
                continue
            sides[policy.name] = side = of_page.side(judged, shown)
            side["groups"] = {name: [side["groups"][name][code] for code in largest[name]] for name in groups}
            found[policy.name] = judged
        pairs = {}
        for left, right in combinations(found, 2):
            overlap = Overlap.of(found[left].is_kept, found[right].is_kept)
            reached = max(found[name].counts[0][0] for name in (left, right))
            pairs[f"{left}|{right}"] = [overlap.both, overlap.iou, overlap.chance_iou(reached)]
        steps.append({"share": share, "sides": sides, "pairs": pairs})
    ids = rows.sample_ids
    content: dict[str, Any] = {
        "n": judged_rows,
        "dimensions": {
            name: [[texts.words[code], int(_counts(texts, every)[code])] for code in largest[name]]
            for name, texts in groups.items()
        },
        "samples": {row: {"id": ids[row], "caption": clamped(facts["caption"][row])} for row in sorted(shown)},
    }
    return content | {"steps": plain(steps)}


def _add_pictures(ctx: PoolContext, rows: PoolRows, samples: dict[int, dict[str, Any]]) -> None:
    """`picture` of samples: base64 of a JPEG, until MAX_PICTURE_BYTES are full."""
    facts = rows.facts(["sample_id", "tar", "member"])
    load_image, size = ctx.image_loader(few=True), 0
    for row, sample in samples.items():
        fact = facts.row(row, named=True)
        if fact["member"] is None:
            continue
        try:
            data = jpeg_thumbnail(load_image(fact), PICTURE_PX, quality=75)
        except (FileNotFoundError, KeyError, ImageRejected):  # the owner's tar is missing or has changed since
            continue
        if (size := size + len(data)) > MAX_PICTURE_BYTES:
            break
        sample["picture"] = base64.b64encode(data).decode()

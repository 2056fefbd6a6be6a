"""The interactive page beside the report: two policies side by side, with what-ifs, computed in the browser."""

import base64
import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.audit.diff import NEAREST_COUNT
from curation_assets.audit.recorded import cuts_in_force
from curation_assets.audit.shifts import dimensions_of
from curation_assets.core.plain_json import plain
from curation_assets.core.table_names import DUPLICATES, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import holds_in_words, policies_of, worths_of
from curation_assets.flow.worth import domain_in_words
from curation_assets.methods import lower_is_better
from curation_assets.outputs.report.image_texts import MAX_LETTERS
from curation_assets.outputs.report.page import inlined, page_of
from curation_assets.outputs.thumbnails import jpeg_thumbnail
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import judge
from curation_assets.selection.leave_one_out import recipe_weights
from curation_assets.selection.left_out import remaining
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import DROPPED, FAILED, KEPT, STATES, PoolRows, Texts
from curation_assets.stores.images import ImageRejected
from curation_assets.stores.shard_store import ShardStore

MAX_ROWS = 50_000  # judged samples that the page holds: about 150 B each and 8 B per signal
CAPTION_LETTERS = 160
PICTURE_PX = 96  # longer side
MAX_PICTURE_BYTES = 3 << 20  # of JPEG, a third more in the page: some 1,000 pictures


def write_compare_page(ctx: PoolContext, path: Path) -> None:
    """Write the page. Raises what reading the pool's signals raises."""
    judged = _kept_count(ctx.store)
    policies = policies_of(ctx)
    cuts = cuts_in_force(ctx.store, policies)
    worths = worths_of(ctx, sorted({reference for policy in policies for reference in policy.references}))
    data = None
    if judged <= MAX_ROWS:
        rows = PoolRows.read(ctx.store)
        data = compare_data(rows, policies, ctx.pool.name, cuts)
        data["pictures"] = _pictures(ctx, rows, near_cuts(rows, policies, cuts))
    page = page_of(
        Path(__file__).with_name("compare.html.jinja"),
        pool=ctx.pool.name,
        rows=judged,
        limit=MAX_ROWS,
        max_letters=MAX_LETTERS,
        worths=worths,
        domain=domain_in_words(ctx.pool.image_domain),
        holds=holds_in_words(ctx),
        data_pictures=0 if data is None else len(data["pictures"]),
        data=None if data is None else inlined(json.dumps(data, ensure_ascii=False), is_json=True),
        script=inlined((Path(__file__).parent / "compare.js").read_text(encoding="utf-8")),
    )
    path.write_text(page, encoding="utf-8")


def _kept_count(store: ShardStore) -> int:
    """Samples that raw kept, each once, as the table of repeats has it; no rows are held."""
    kept = store.scan(SAMPLES).filter(pl.col("status") == STATES[KEPT]).select(pl.len())
    repeats = store.scan(DUPLICATES).select(pl.len()).collect().item() if store.table_path(DUPLICATES).is_file() else 0
    return int(kept.collect(engine="streaming").item()) - int(repeats)


def compare_data(
    rows: PoolRows, policies: Sequence[Policy], pool: str = "", cuts: Mapping[str, PolicyCut] | None = None
) -> dict[str, Any]:
    """What compare.js needs, for JSON: the rows that raw kept, sorted by sample_id, with every policy's values.

    `cuts`: policy → its frozen cut; a policy without one is fitted in the page.
    """
    kept = rows.is_kept
    facts = rows.facts(["url", "caption"]).filter(kept)
    references = sorted({name for policy in policies for name in (policy.rank_by, *policy.references)} - {RANDOM})
    seeds = sorted({policy.seed for policy in policies if any(step.rank_by == RANDOM for step in policy.steps)})
    values = {reference: rows.signal(reference).values[kept] for reference in references}
    values |= {f"{RANDOM}:{seed}": rows.signal(RANDOM, seed).values[kept] for seed in seeds}
    return {
        "pool": pool,
        "n": int(kept.sum()),
        "raw": {"dropped": int((rows.status == DROPPED).sum()), "failed": int((rows.status == FAILED).sum())},
        "policies": [_policy(policy, rows, (cuts or {}).get(policy.name)) for policy in policies],
        "values": {name: _packed(numbers) for name, numbers in values.items()},
        "lower": [reference for reference in references if lower_is_better(reference)],
        "recipes": {
            name: {
                "weights": recipe_weights(rows, name),
                "scores": {score: _packed(numbers[kept]) for score, numbers in scores.items()},
            }
            for name in references
            if (scores := rows.scores(name))
        },
        "dimensions": [_dimension(name, groups) for name, groups in dimensions_of(rows, facts).items()],
        "ids": rows.sample_ids.filter(kept).to_list(),
        "captions": facts["caption"].fill_null("").str.slice(0, CAPTION_LETTERS).to_list(),
    }


def near_cuts(rows: PoolRows, policies: Sequence[Policy], cuts: Mapping[str, PolicyCut]) -> list[int]:
    """Positions, among the rows that raw kept, in the order in which their pictures matter: nearest to a cut first.

    Of each policy in turn: what its last cut dropped by the smallest margin, then what it kept so, further and further
    away. Moving a cut in the page shows these next.
    """
    kept = np.flatnonzero(rows.is_kept)
    place = np.full(len(rows), -1)
    place[kept] = np.arange(len(kept))
    orders = []
    for policy in policies:
        try:
            judged = judge(policy, rows, cuts.get(policy.name))
        except ValueError:  # DataComp's rule on a pool without any value: the page states it
            continue
        last = judged.step == len(judged.cut.cuts) - 1
        sides = []
        for verdict, is_best_first in ((DROPPED, True), (KEPT, False)):
            at = np.flatnonzero(last & (judged.verdict == verdict))
            by_rank = at[np.argsort(judged.rank[at], kind="stable")]
            sides.append((by_rank if is_best_first else by_rank[::-1]).tolist())
        dropped, passed = sides
        orders.append([*dropped[:NEAREST_COUNT], *_alternating(dropped[NEAREST_COUNT:], passed)])
    return [int(place[row]) for row in dict.fromkeys(_alternating(*orders))]


def _alternating(*lists: Sequence[int]) -> list[int]:
    """The first of each list, the second of each …; a list that is shorter ends earlier."""
    return [one for group in zip_longest(*lists) for one in group if one is not None]


def _pictures(ctx: PoolContext, rows: PoolRows, wanted: Sequence[int]) -> dict[int, str]:
    """Position among the rows that raw kept → base64 of a JPEG, until MAX_PICTURE_BYTES are full."""
    facts = rows.facts(["sample_id", "tar", "member"]).filter(rows.is_kept)
    load_image, found, size = ctx.image_loader(few=True), {}, 0
    for position in wanted:
        row = facts.row(position, named=True)
        if row["member"] is None:
            continue
        try:
            data = jpeg_thumbnail(load_image(row), PICTURE_PX, quality=75)
        except (FileNotFoundError, KeyError, ImageRejected):  # the owner's tar is missing or has changed since
            continue
        if (size := size + len(data)) > MAX_PICTURE_BYTES:
            break
        found[position] = base64.b64encode(data).decode()
    return found


def _policy(policy: Policy, rows: PoolRows, cut: PolicyCut | None = None) -> dict[str, Any]:
    cuts = None if cut is None else cut.to_dict()["cuts"]
    content: dict[str, Any] = plain({**policy.recorded(), "cuts": cuts, **_left_out(policy, rows)})
    return content


def _left_out(policy: Policy, rows: PoolRows) -> dict[str, Any]:
    """Of the rows that raw kept, those that the policy leaves out before its first cut, if any."""
    left = remaining(policy, rows)
    if left is rows:
        return {}
    codes = np.where(left.status == KEPT, -1, left.raw_reason.codes)[rows.is_kept]
    return {"left_out": {"words": left.raw_reason.words, "codes": codes.tolist()}}


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(values.astype("<f8").tobytes()).decode()


def _dimension(name: str, groups: pl.Series) -> dict[str, Any]:
    texts = Texts.of(groups)
    return {"name": name, "words": texts.words, "codes": texts.codes.tolist()}

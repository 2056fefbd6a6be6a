"""The interactive page beside the report: two policies side by side, with what-ifs, computed in the browser."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from curation_assets.audit.recorded import cuts_in_force
from curation_assets.audit.shifts import dimensions_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of, worths_of
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.leave_one_out import recipe_weights
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import DROPPED, FAILED, PoolRows, Texts

MAX_ROWS = 50_000  # judged samples that the page holds: about 150 B each and 8 B per signal
CAPTION_LETTERS = 160


def write_compare_page(ctx: PoolContext, path: Path) -> None:
    """Write the page. Raises what reading the pool's signals raises."""
    rows = PoolRows.read(ctx.store)
    judged = int(rows.is_kept.sum())
    policies = policies_of(ctx)
    cuts = cuts_in_force(ctx.store, policies)
    data = compare_data(rows, policies, ctx.pool.name, cuts) if judged <= MAX_ROWS else None
    worths = worths_of(ctx, sorted({reference for policy in policies for reference in policy.references}))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("compare.html.jinja").render(
        pool=ctx.pool.name,
        rows=judged,
        limit=MAX_ROWS,
        worths=worths,
        domain=ctx.pool.image_domain,
        data=None if data is None else _inline(json.dumps(data, ensure_ascii=False), is_json=True),
        script=_inline((Path(__file__).parent / "compare.js").read_text(encoding="utf-8")),
    )
    path.write_text(page, encoding="utf-8")


def _inline(text: str, *, is_json: bool = False) -> Markup:
    """Text that may stand inside a script element: no caption can end it."""
    if is_json:
        return Markup(text.replace("<", "\\u003c"))
    assert not any(end in text for end in ("</", "<!--")), "the script would end its own element"
    return Markup(text)


def compare_data(
    rows: PoolRows, policies: Sequence[Policy], pool: str = "", cuts: Mapping[str, PolicyCut] | None = None
) -> dict[str, Any]:
    """What compare.js needs, for JSON: the rows that raw kept, sorted by sample_id, with every policy's values.

    `cuts`: policy → its frozen cut; a policy without one is fitted in the page.
    """
    kept = rows.is_kept
    facts = rows.facts(["url", "caption"]).filter(kept)
    references = sorted({name for policy in policies for name in (policy.rank_by, *policy.references)} - {RANDOM})
    seeds = sorted({policy.seed for policy in policies if policy.rank_by == RANDOM or _uses_random(policy)})
    values = {reference: rows.signal(reference).values[kept] for reference in references}
    values |= {f"{RANDOM}:{seed}": rows.signal(RANDOM, seed).values[kept] for seed in seeds}
    return {
        "pool": pool,
        "n": int(kept.sum()),
        "raw": {"dropped": int((rows.status == DROPPED).sum()), "failed": int((rows.status == FAILED).sum())},
        "policies": [_policy(policy, (cuts or {}).get(policy.name)) for policy in policies],
        "values": {name: _packed(numbers) for name, numbers in values.items()},
        "recipes": {
            name: {
                "weights": recipe_weights(rows, name),
                "scores": {score: _packed(numbers[kept]) for score, numbers in rows.signal(name).scores.items()},
            }
            for name in references
            if rows.signal(name).scores
        },
        "dimensions": [_dimension(name, groups) for name, groups in dimensions_of(rows, facts).items()],
        "ids": rows.sample_ids.filter(kept).to_list(),
        "captions": facts["caption"].fill_null("").str.slice(0, CAPTION_LETTERS).to_list(),
    }


def _uses_random(policy: Policy) -> bool:
    return any(prefilter.rank_by == RANDOM for prefilter in policy.prefilters)


def _policy(policy: Policy, cut: PolicyCut | None = None) -> dict[str, Any]:
    cuts = None if cut is None else cut.to_dict()["cuts"]
    return {**asdict(policy), "prefilters": [asdict(prefilter) for prefilter in policy.prefilters], "cuts": cuts}


def _packed(values: np.ndarray) -> str:
    return base64.b64encode(values.astype("<f8").tobytes()).decode()


def _dimension(name: str, groups: pl.Series) -> dict[str, Any]:
    texts = Texts.of(groups)
    return {"name": name, "words": texts.words, "codes": texts.codes.tolist()}

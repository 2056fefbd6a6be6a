"""Answers to what an agent may ask about the pools of a home. Nothing here writes.

Texts that came with samples (captions, URLs, names of creators and domains) stand under `untrusted`
and nowhere else. Texts of samples on the denylist are left out, whether they are purged already or
not.
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from curation_assets.audit.cost import per_kept_sample, stage_costs, table_costs
from curation_assets.audit.diff import find_policy, policy_comparison, what_if
from curation_assets.audit.index import Index
from curation_assets.audit.ledger import verdict_table
from curation_assets.audit.origin import lineage_of
from curation_assets.audit.origin import summary as lineage_summary
from curation_assets.audit.why import explain
from curation_assets.core.errors import EXPECTED_ERRORS
from curation_assets.core.settings import Settings
from curation_assets.core.table_names import REPORT, SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of, policy_names
from curation_assets.flow.graph import tables_of
from curation_assets.operations.planning import facts_of, make_plan, trainings_of
from curation_assets.sources.declaration import list_pools, load_pool
from curation_assets.stores.catalog import stored_tables
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.queries import Denied, select
from curation_assets.stores.shard_store import ShardStore

Answer = dict[str, Any]
PAGES = ("report", "compare")
MAX_ROWS, MAX_SECONDS = 1000, 60
MAX_GROUPS = 50  # per dimension of `diff`: a pool of the web may have as many domains as rows
#: Parts of a report that are no text: scripts, styles, and pictures within the page.
_NO_TEXT = re.compile(r"<(script|style|svg)\b.*?</\1>|\b(?:src|href)=\"data:[^\"]*\"", re.DOTALL)


@dataclass(frozen=True)
class Home:
    """The pools of a home, as they are now."""

    settings: Settings

    def pools(self) -> Answer:
        """Declared pools: sources, how many samples are kept, dropped and failed, what each policy keeps."""
        return {"pools": [self._pool(name) for name in list_pools(self.settings)]}

    def _pool(self, name: str) -> Answer:
        try:
            ctx = self._open(name)
            policies = [policy.name for policy in policies_of(ctx)]
        except EXPECTED_ERRORS as error:
            return {"pool": name, "error": str(error)}
        stored = set(stored_tables(ctx.store))
        samples = {}
        if SAMPLES in stored:
            samples = dict(sorted(ctx.store.scan(SAMPLES).group_by("status").len().collect().iter_rows()))
        kept: dict[str, dict[str, int]] = {policy: {} for policy in policies}
        for policy in policies:
            if f"filtered/{policy}" in stored:
                rows = ctx.store.scan(f"filtered/{policy}").filter(pl.col("verdict") == "kept")
                kept[policy]["kept"] = rows.select(pl.len()).collect().item()
        return {
            "pool": name,
            "kind": ctx.pool.kind_in_words,
            "source": str(ctx.pool.source or "planted"),
            "profile": ctx.pool.profile,
            "shards": len(ctx.store.partitions(SAMPLES)),
            "samples": samples,
            "policies": kept,
        }

    def tables(self, pool: str) -> Answer:
        """Tables of a pool: rows, columns, name in SQL, and how many parts are stale, by reason.

        An edit of the source itself shows when the next run registers it.
        """
        ctx = self._open(pool)
        declared, stored = tables_of(ctx), set(stored_tables(ctx.store))
        facts = facts_of(ctx, declared, compare_sources=False)
        index = Index.read(ctx.store.root / "index", ctx.store.partitions(SAMPLES), trainings_of(facts))
        plan = make_plan(facts, index)
        rows = []
        for name, table in declared.items():
            reasons = Counter(why for _, why in plan.partitions(name))
            row: Answer = {"table": name, "title": table.title, "rows": None, "stale": dict(reasons), "sql": None}
            if name in stored:
                scan = ctx.store.scan(name)
                row["rows"] = scan.select(pl.len()).collect().item()
                row["sql"] = f"{pool}.{name.replace('/', '_')}"
                row["columns"] = {column: str(dtype) for column, dtype in scan.collect_schema().items()}
            rows.append(row)
        return {"pool": pool, "tables": rows, "stale": [row["table"] for row in rows if row["stale"]]}

    def why(self, sample: str, pool: str | None = None) -> Answer:
        """Why a sample was kept or dropped: every policy's verdict with values, threshold, margin and models.

        `sample`: its id (32 hex digits), the sha256 of its image, its URL, or its key in a tar (pool:key).
        """
        entries = []
        known = partial(policy_names, self.settings)
        for entry in explain(self.settings, sample, None if pool is None else [self._known(pool)], known):
            denied = self._denied(entry["pool"])
            texts = {name: entry.pop(name) for name in ("caption", "url", "origin")}
            # A reason may name what a row brought, such as its source; so does the group of a mixture.
            texts["reasons"] = {"raw": entry["raw"].pop("reason")}
            texts["reasons"] |= {verdict["policy"]: verdict.pop("reason") for verdict in entry["policies"]}
            texts["mixtures"] = {verdict["policy"]: verdict.pop("mixture") for verdict in entry["policies"]}
            is_denied = entry["sample_id"] in set(denied.ids)
            entries.append({**entry, "is_on_denylist": is_denied, "untrusted": {} if is_denied else texts})
        return {"samples": entries}

    def diff(
        self,
        pool: str,
        left: str,
        right: str | None = None,
        fraction: float | None = None,
        threshold: float | None = None,
        rank_by: str | None = None,
    ) -> Answer:
        """How two policies' subsets differ; without `right`, a policy and itself with another cut or signal.

        `fraction`: share of the pool that is kept, in (0, 1]; `threshold`: in the signal's unit; `rank_by`: such as
        signals.clip_score. `shifts`: the 50 largest of each dimension.
        """
        ctx = self._open(pool)
        known = {policy.name: policy for policy in policies_of(ctx)}
        other = what_if(find_policy(known, right or left), fraction=fraction, threshold=threshold, rank_by=rank_by)
        content = policy_comparison(ctx.store, find_policy(known, left), other).whole().to_dict()
        denied = set(self._denied(pool).ids)
        nearest = [row for row in content.pop("nearest_dropped") if row["sample_id"] not in denied]
        groups, shifts = Counter[str](), []
        for row in content.pop("shifts"):  # the largest of a dimension first
            groups[row["dimension"]] += 1
            if groups[row["dimension"]] <= MAX_GROUPS:
                shifts.append(row)
        return {**content, "groups": dict(groups), "untrusted": {"nearest_dropped": nearest, "shifts": shifts}}

    def lineage(self, pool: str, table: str) -> Answer:
        """What a table (stage/name) or a policy's subset was made from: tables, data versions, code, models, runs."""
        ctx = self._open(pool)
        target = table if "/" in table else verdict_table(ctx.store, table)
        rows = lineage_summary(lineage_of(ctx.store, target, pool=pool)).drop("dagster").to_dicts()
        return {"pool": pool, "target": target, "tables": rows}

    def cost(self, pool: str) -> Answer:
        """What a pool has cost so far: seconds and bytes per stage and table, and per kept sample of each policy."""
        ctx = self._open(pool)
        costs = table_costs(ctx.store, tables_of(ctx))
        policies = sorted(self._pool(pool)["policies"].items())
        kept = {name: per_kept_sample(ctx.store, name) for name, row in policies if row.get("kept")}
        return {"stages": stage_costs(costs).to_dicts(), "tables": costs.to_dicts(), "per_kept_sample": kept}

    def sql(self, query: str, max_rows: int = 100, seconds: float = 10) -> Answer:
        """Rows of one SELECT (DuckDB) over tables such as photos.signals_icc; `tables` has their names and columns.

        `max_rows`: 1 to 1,000. `seconds`: at most 60. `is_cut_off`: there are more rows than these, or than fit.
        """
        if not (1 <= max_rows <= MAX_ROWS and 0 < seconds <= MAX_SECONDS):
            raise ValueError(
                f"expected max_rows from 1 to {MAX_ROWS:,} and seconds up to {MAX_SECONDS}, got {max_rows}, {seconds:g}"
            )
        stores = {name: ShardStore(self.settings.work(name)) for name in list_pools(self.settings)}
        names, rows, more = select(query, stores, self._denied, max_rows=max_rows, seconds=seconds)
        return {"columns": names, "is_cut_off": more, "untrusted": {"rows": rows}}

    def report(self, pool: str, page: str) -> str:
        """A page of the report as HTML without pictures and scripts. Raises ValueError where there is none to show."""
        if page not in PAGES:
            raise ValueError(f"no page {page!r}; there are {' and '.join(PAGES)}")
        ctx = self._open(pool)
        path = ctx.store.folder_path(REPORT) / f"{page}.html"
        if not path.is_file():
            raise ValueError(f"pool {pool} has no {page} yet; `curate run {pool}` writes it")
        if self._denied(pool).ids:
            raise ValueError(
                f"the report of pool {pool} may show samples that are on the denylist by now; `curate takedown apply` "
                "purges them and writes it anew"
            )
        return _NO_TEXT.sub("", ctx.store.checked_file(REPORT, path.name).read_text(encoding="utf-8"))

    def _open(self, pool: str) -> PoolContext:
        return PoolContext.open(self.settings, self._known(pool))

    def _known(self, pool: str) -> str:
        """The name of a declared pool. Raises ValueError that names the declared ones for another."""
        declared = list_pools(self.settings)
        if pool not in declared:
            raise ValueError(f"no pool {pool!r}; declared: {', '.join(declared) or 'none'}")
        return pool

    def _denied(self, pool: str) -> Denied:
        denylist = Denylist.load(self.settings.home, load_pool(self.settings, pool).implied_source)
        return Denied.of(ShardStore(self.settings.work(pool)), denylist)

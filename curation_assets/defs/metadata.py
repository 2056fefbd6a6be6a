"""What Dagster's UI shows beside a table: of each run, of each check, and what columns and papers mean."""

import re
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl

from curation_assets.audit.origin import combined_version
from curation_assets.core.errors import few
from curation_assets.flow.conservation import Rows, counts_by_state
from curation_assets.flow.context import PoolContext
from curation_assets.flow.run_table import ENOUGH_SUCCEEDED, CheckResult, ShardResult, TableResult
from curation_assets.flow.table import Table
from curation_assets.outputs.report.previews import plot_of, preview_of
from curation_assets.stores.shard_store import WHOLE, named

SHOWN_SHARDS = 50  # of a failed check, by name; the store has the others

ROW_COUNT = "dagster/partition_row_count"  # of the table it is dagster/row_count
SHARDS = "shards"  # of the metadata of a block: shard → content_sha256
WRONG = "what is wrong"  # of the metadata of a failed check
CHECKS, TOO_FEW, PASSED = "blocking checks", "too few rows", "passed"

#: As methods and policies cite them (a section may follow §) → where to read them.
PAPERS = {
    "ICC: Image Caption Concreteness": "https://arxiv.org/abs/2403.01306",
    "ICC paper": "https://arxiv.org/abs/2403.01306",
    "ICC §": "https://arxiv.org/abs/2403.01306",
    "SIEVE §": "https://arxiv.org/abs/2310.02110",
    "DataComp §": "https://arxiv.org/abs/2304.14108",
    "Alper et al. 2023": "https://arxiv.org/abs/2303.12513",
    "Brysbaert, Warriner & Kuperman 2014": "https://doi.org/10.3758/s13428-013-0403-5",
    "Compress & Align": "https://arxiv.org/abs/2312.06726",
    "EcoDatum (Xu et al. 2025, arXiv 2502.08211)": "https://arxiv.org/abs/2502.08211",
    "Gadre et al. 2023": "https://arxiv.org/abs/2304.14108",
    "HYPE (Kim et al. 2024, arXiv 2404.17507)": "https://arxiv.org/abs/2404.17507",
    "Hessel et al. 2021": "https://arxiv.org/abs/2104.08718",
    "Mahmoud et al. 2024": "https://arxiv.org/abs/2310.02110",
    "Maini et al. 2023": "https://arxiv.org/abs/2307.03132",
    "Pech-Pacheco et al. 2000": "https://doi.org/10.1109/ICPR.2000.903548",
    "Radenovic et al. 2023": "https://arxiv.org/abs/2301.02280",
    "Rao et al.": "https://openaccess.thecvf.com/content_CVPRW_2020/html/w56/"
    "Rao_Quality_and_Relevance_Metrics_for_Selection_of_Multimodal_Pretraining_Data_CVPRW_2020_paper.html",
    "Schuhmann et al. 2022": "https://arxiv.org/abs/2210.08402",
    "Sharma et al. 2018": "https://doi.org/10.18653/v1/P18-1238",
    "Wang et al. 2024 (MLM-Filter": "https://arxiv.org/abs/2403.02677",
    "Wang et al. 2024 (arXiv 2402.02055)": "https://arxiv.org/abs/2402.02055",
    "Wang et al. 2024 (arXiv 2405.19547)": "https://arxiv.org/abs/2405.19547",
    "Wu & Smith 2023": "https://arxiv.org/abs/2306.03168",
}
CITED = re.compile(rf"({'|'.join(map(re.escape, PAPERS))})((?<=§)[\d.]*\d)?")

#: What a column means, in whichever table it is.
COLUMNS = {
    "sample_id": "Identity of the sample, 32 hex digits, the same in every table.",
    "source_row": "Row of the shard in the pool's source, from 0.",
    "shard": "Key of the shard.",
    "url": "Where the image came from.",
    "caption": "The text that came with the image.",
    "tar": "Tar that holds the image.",
    "member": "Name of the image in its tar.",
    "original_width": "Before any scaling, in px.",
    "original_height": "Before any scaling, in px.",
    "status": "kept, dropped or failed.",
    "verdict": "kept, dropped or failed by the policy.",
    "reason": "Why there is no value, or why the row is not kept; null otherwise.",
    "value": "In the unit that the description names; null where there is a reason.",
    "quality": "Fused score, higher is better; null where there is a reason.",
    "drop_reason": "Why a cut by this table drops the row, in words; null: the value says it all.",
    "chosen_caption": "The caption to train on.",
    "caption_source": "raw, or generated and its number.",
    "decided_by": "Signal of the cut that decided.",
    "threshold": "Worst value that passes.",
    "margin": "How far the value is better than the threshold.",
    "rank_by": "Signal that the cut ranks by.",
    "policy_version": "Changes whenever the verdicts may.",
    "rating": "By a person.",
    "metric": "What was measured.",
}


def described(description: str) -> str:
    """A table's description with links to the papers that it cites, but for the SQL below it."""
    text, fence, script = description.partition("\n\n```")
    return CITED.sub(lambda cited: f"[{cited[0]}]({PAPERS[cited[1]]})", text) + fence + script


def column_schema(frame: Rows) -> dg.TableSchema:
    """Columns with their types and, where known, what they mean."""
    types = {  # of an Enum, whose values may be many, its name alone
        name: "Enum" if isinstance(dtype, pl.Enum) else str(dtype) for name, dtype in frame.collect_schema().items()
    }
    return dg.TableSchema([dg.TableColumn(name, type_, COLUMNS.get(name)) for name, type_ in types.items()])


def run_metadata(
    ctx: PoolContext, table: Table, result: ShardResult, frame: Rows | None, *, with_schema: bool
) -> dict[str, Any]:
    """What the materialisation of a shard (or whole-pool table) that is done records."""
    assert result.done is not None, named(table.name, result.shard)
    manifest = result.done.manifest
    metadata: dict[str, Any] = {
        _counted(table): manifest.row_count,
        CHECKS: "; ".join((*result.lost_rows, *result.failures)) or PASSED,
        **({TOO_FEW: "; ".join(result.warnings)} if result.warnings else {}),  # and the pool goes on
    }
    if frame is None:
        folder = ctx.store.folder_path(table.name)
        metadata["folder"] = dg.MetadataValue.path(_in_home(ctx, folder))
        if (folder / "report.html").is_file():
            metadata["report"] = dg.MetadataValue.path(_in_home(ctx, folder / "report.html"))
    else:
        metadata |= {f"rows {state}": count for state, count in counts_by_state(frame).items()}
        plot = plot_of(table.name, frame)
        if plot is not None:
            metadata[plot[0]] = dg.MetadataValue.md(plot[1])
        metadata["preview"] = dg.MetadataValue.md(preview_of(frame))
        metadata["file"] = dg.MetadataValue.path(_in_home(ctx, ctx.store.table_path(table.name, manifest.partition)))
        if with_schema:
            metadata["dagster/column_schema"] = column_schema(frame)
    if manifest.models:
        metadata["models"] = dg.MetadataValue.table([dg.TableRecord(dict(model)) for model in manifest.models])
    return metadata | {
        "compute seconds": round(manifest.seconds, 3),
        "reused": result.done.is_reused,
        "content_sha256": manifest.content_sha256,
        "peak memory MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def _counted(table: Table) -> str:
    """What the `row_count` of a manifest of a table counts."""
    if table.is_folder:
        return "files"
    return "dagster/row_count" if table.grain == "pool" else ROW_COUNT


def together(first: dict[str, Any] | None, then: dict[str, Any]) -> dict[str, Any]:
    """Metadata of two shards of a block: numbers of rows and seconds added, what is shown of one as in the second."""
    if first is None:
        return then
    added = [name for name, value in then.items() if name.startswith("rows ") and isinstance(value, int)]
    said: dict[str, list[str]] = {
        name: [metadata[name] for metadata in (first, then) if metadata.get(name, PASSED) != PASSED]
        for name in {CHECKS, TOO_FEW} & (first.keys() | then.keys())
    }
    return {
        **first,
        **then,
        **{name: first.get(name, 0) + then[name] for name in added},
        "compute seconds": round(first["compute seconds"] + then["compute seconds"], 3),
        "reused": first["reused"] and then["reused"],
        **{name: "; ".join(sentences) or PASSED for name, sentences in said.items()},
    }


def metadata_of_block(ctx: PoolContext, table: Table, stored: Sequence[str], made: int) -> dict[str, Any]:
    """What stands for `content_sha256` and rows of a block of which a run made or looked at `made` shards: all that are
    `stored`, as a run of some of them must not hide the others."""
    manifests = {shard: manifest for shard in stored if (manifest := ctx.store.manifest(table.name, shard)) is not None}
    versions = {shard: manifest.content_sha256 for shard, manifest in manifests.items()}
    return {
        ROW_COUNT: sum(manifest.row_count for manifest in manifests.values()),
        "shards of this run": f"{made} of {len(stored)}",
        "content_sha256": combined_version(versions.values()),
        SHARDS: dg.MetadataValue.json(versions),
    }


def _in_home(ctx: PoolContext, path: Path) -> str:
    """A path as metadata holds it: relative to the home, which may be copied or moved."""
    return path.relative_to(ctx.settings.home).as_posix()


def check_result(ctx: PoolContext, outcome: CheckResult, result: TableResult) -> dg.AssetCheckResult:
    """As Dagster shows it: a check that blocks fails, another one warns; what is wrong by shard.

    One result for all shards of a run: one for each would double the cost of a run (decision 0030).
    """
    is_blocking, wrong = outcome.check.is_blocking, outcome.violations
    metadata: dict[str, Any] = {}
    if is_blocking:
        metadata["shards checked"] = len(result.shards)
        blocked = ctx.store.blocked(result.table.name).keys() - {of_shard.shard or WHOLE for of_shard in result.shards}
        if blocked:
            metadata["blocked since earlier runs"] = few(sorted(blocked), SHOWN_SHARDS)
    description = _summary(wrong, result) if wrong else None
    warned = {one.shard or WHOLE: "; ".join(one.warnings) for one in result.shards if one.warnings}
    if outcome.check.name == ENOUGH_SUCCEEDED and warned:
        metadata["shards with too few rows"] = wrong_table(warned)
        shown = few(warned, SHOWN_SHARDS)
        passes = f"the pool as a whole passes, {len(warned)} of {len(result.shards)} shards do not: {shown}"
        description = "; ".join(filter(None, (description, passes)))
    if wrong and (is_blocking or len(wrong) > 1 or result.table.grain != "pool"):  # else its sentence is all there is
        metadata[WRONG] = wrong_table(wrong)
    if outcome.evidence is not None:
        metadata["evidence"] = dg.MetadataValue.md(preview_of(outcome.evidence, rows=outcome.evidence.height))
    return dg.AssetCheckResult(
        check_name=outcome.check.name,
        passed=outcome.passed,
        severity=dg.AssetCheckSeverity.ERROR if is_blocking else dg.AssetCheckSeverity.WARN,
        description=description,
        metadata=metadata,
    )


def evaluation(key: dg.AssetKey, result: dg.AssetCheckResult, *, is_blocking: bool) -> dg.AssetCheckEvaluation:
    """The event of a result that no step returns."""
    assert result.check_name is not None, key
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=result.check_name,
        passed=result.passed,
        metadata=result.metadata,
        severity=result.severity,
        description=result.description,
        blocking=is_blocking,
    )


def wrong_table(wrong: Mapping[str, str]) -> dg.TableMetadataValue:
    """The first of what is wrong, by shard or other place."""
    shown = list(wrong.items())[:SHOWN_SHARDS]
    return dg.MetadataValue.table([dg.TableRecord({"where": where, "what": sentence}) for where, sentence in shown])


def _summary(wrong: Mapping[str, str], result: TableResult) -> str:
    """Which shards fail; of a whole-pool table, what is wrong."""
    if result.table.grain == "pool":
        return next(iter(wrong.values())) + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")
    return f"{len(wrong)} of {len(result.shards)} fail: {few(wrong, SHOWN_SHARDS)}"

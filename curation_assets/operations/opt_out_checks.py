"""Opt-outs that came after the download: all that is read at a download, of stored images, read again night by night.

Each night takes what was found before and the next kept samples in the order of their ids, `opt_out_checks` in all.
What may not be used now is proposed (`opt_outs.jsonl` of the pool's work folder); a person puts it on the denylist with
`curate takedown add --proposed POOL`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass

import polars as pl

from curation_assets.core.json_files import read_json_lines
from curation_assets.core.progress import ProgressReporter
from curation_assets.core.seal import sealed_line
from curation_assets.core.table_names import SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.operations.options import OperationsOptions
from curation_assets.sources.download.download import image_fetcher
from curation_assets.sources.download.fetch_shard import MAX_MESSAGE
from curation_assets.sources.download.image_fetch import ImageFetcher
from curation_assets.sources.download.reasons import reason_of
from curation_assets.sources.shards import ROBOTS_FOLDER
from curation_assets.stores.documents import remove_document, save_text
from curation_assets.stores.manifest import utc_now

PROPOSED = "opt_outs.jsonl"
CURSOR, CURSOR_DIGITS = "opt_outs.cursor", 12  # how far the last night came: the first digits of an id
FORBIDDEN = ("opt_out", "robots_txt")  # reasons by which an owner forbids the use
_ROWS = pl.Schema({"sample_id": pl.String, "url": pl.String})


@dataclass(frozen=True)
class OptOut:
    """A stored image whose owner forbids its use now."""

    sample_id: str
    url: str
    reason: str  # opt_out or robots_txt
    message: str
    found_at: str

    def __str__(self) -> str:
        return f"{self.url} (sample {self.sample_id}): {self.message}"


@dataclass(frozen=True)
class OptOutCheck:
    """What one night looked at."""

    looked_at: int
    proposed: list[OptOut]  # all that wait for a person, found this night or before
    withdrawn: int  # found before, and allowed again
    unanswered: dict[str, int]  # reason → images that gave no answer; a later night asks again


def can_be_checked(ctx: PoolContext) -> bool:
    """Whether the pool's images were downloaded from strangers' servers, and its option allows requests to them."""
    is_of_strangers = ctx.pool.opens_urls and not ctx.pool.is_planted
    return is_of_strangers and OperationsOptions.of(ctx).opt_out_checks > 0


def check_opt_outs(ctx: PoolContext, progress: ProgressReporter | None = None) -> OptOutCheck:
    """Look at the next images of a pool and write what is proposed. Asks for `opt_out_checks` images at most."""
    limit = OperationsOptions.of(ctx).opt_out_checks
    proposed = {item.sample_id: item for item in proposed_opt_outs(ctx)}
    again = pl.DataFrame(
        [(item.sample_id, item.url) for item in proposed.values()][: (limit + 1) // 2], schema=_ROWS, orient="row"
    )
    after = _next_rows(ctx, limit - again.height, without=list(proposed))
    rows = pl.concat([again, after])
    withdrawn, unanswered = 0, dict[str, int]()
    outcomes = _ask(_fetcher(ctx), rows, ctx.pool.download.threads, progress or ctx.progress)
    for (sample_id, url), (reason, message) in zip(rows.iter_rows(), outcomes, strict=True):
        if reason in FORBIDDEN:
            proposed.setdefault(sample_id, OptOut(sample_id, url, reason, message, utc_now()))
        elif reason is not None:
            unanswered[reason] = unanswered.get(reason, 0) + 1
        elif proposed.pop(sample_id, None) is not None:
            withdrawn += 1
    waiting = pl.DataFrame([(item.sample_id, item.url) for item in proposed.values()], schema=_ROWS, orient="row")
    denied = set(waiting.filter(ctx.denylist.denied(waiting))["sample_id"])
    left = [item for item in proposed.values() if item.sample_id not in denied]
    _write(ctx, left)
    if after.height:
        save_text(ctx.store.root / CURSOR, after["sample_id"][-1][:CURSOR_DIGITS])
    return OptOutCheck(rows.height, left, withdrawn, dict(sorted(unanswered.items())))


def proposed_opt_outs(ctx: PoolContext) -> list[OptOut]:
    """What earlier nights found and no person has put on the denylist, oldest first."""
    advice = "remove the file: what it proposed is found again (`curate verify --nightly`)"
    return read_json_lines(ctx.store.root / PROPOSED, lambda line: OptOut(**line), advice=advice)


def forget_proposed(ctx: PoolContext) -> None:
    """Empty the list: a person has put it on the denylist."""
    _write(ctx, [])


def _write(ctx: PoolContext, proposed: Sequence[OptOut]) -> None:
    path = ctx.store.root / PROPOSED
    if proposed:
        save_text(path, "".join(sealed_line(asdict(item)) + "\n" for item in proposed))
    else:
        remove_document(path)


def _next_rows(ctx: PoolContext, limit: int, *, without: Sequence[str]) -> pl.DataFrame:
    """(sample_id, url) of the next kept samples in the order of their ids; from the first again after the last."""
    if limit <= 0 or not ctx.store.partitions(SAMPLES):
        return pl.DataFrame(schema=_ROWS)
    path = ctx.store.root / CURSOR
    cursor = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
    kept = (
        ctx.store.scan(SAMPLES)
        .filter((pl.col("status") == "kept") & pl.col("url").is_not_null() & ~pl.col("sample_id").is_in(list(without)))
        .select("sample_id", "url")
        .unique("sample_id")
    )
    # behind the cursor are ids that begin with it, too: "~" sorts after every hex digit
    is_after = pl.col("sample_id") > (f"{cursor}~" if cursor else "")
    rows = kept.filter(is_after).sort("sample_id").head(limit).collect()
    if rows.height < limit and cursor:
        first = kept.filter(~is_after).sort("sample_id").head(limit - rows.height).collect()
        rows = pl.concat([rows, first])
    return rows


def _fetcher(ctx: PoolContext) -> ImageFetcher:
    settings = ctx.pool.download
    folder = ctx.settings.home / ROBOTS_FOLDER
    return image_fetcher(settings, ctx.pool.allow_hosts, folder, ctx.progress.note, max_age_seconds=0)


def _ask(
    fetcher: ImageFetcher, rows: pl.DataFrame, threads: int, progress: ProgressReporter
) -> list[tuple[str | None, str]]:
    """(reason, message) per row; (None, '') where the image may be used."""

    def ask(url: str) -> tuple[str | None, str]:
        try:
            fetcher.check(url)
        except Exception as error:  # whatever a stranger's server does is an answer, with its reason
            return reason_of("failed_to_download", str(error)), str(error)[:MAX_MESSAGE]
        return None, ""

    outcomes = []
    with progress.task("opt-outs", rows.height) as advance, ThreadPoolExecutor(threads) as executor:
        for outcome in executor.map(ask, rows["url"]):
            outcomes.append(outcome)
            advance(1)
    return outcomes

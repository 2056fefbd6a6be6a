"""Tables of a shard's images: those that a run makes of the same rows are computed in one pass over the images.

docs/decisions/0039.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from curation_assets.core.table_names import SAMPLES
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date, materialise_table
from curation_assets.flow.table import OfImages, Table, Tables
from curation_assets.scoring.batches import Steps
from curation_assets.scoring.decoded_images import DecodedImages
from curation_assets.stores.costs import cpu_seconds, note_lent_cpu, note_lent_wall
from curation_assets.stores.shard_store import Materialised

logger = logging.getLogger(__name__)

MAX_DECODE_THREADS = 16


def materialise_with_images(ctx: PoolContext, table: Table, shard: str, *, tables: Tables) -> Materialised:
    """As `materialise_table`, of a table that reads images: takes along those of `ctx.planned` that read the same rows.

    They are written as their own turn would write them, which then finds them up to date; one that fails is left to
    its turn, where its error counts. CPU and wall time are each table's own.
    """
    done = _with_others(ctx, table, shard, tables)
    made_here = bool(ctx.run_id) and done.manifest.run_id == ctx.run_id  # by the pass of another table of this run
    return replace(done, is_reused=done.is_reused and not made_here)


def _with_others(ctx: PoolContext, table: Table, shard: str, tables: Tables) -> Materialised:
    frames: dict[str, pl.DataFrame | Exception] = {}
    cpu: defaultdict[str, float] = defaultdict(float)
    wall: defaultdict[str, float] = defaultdict(float)

    def compute_all(ctx: PoolContext, shard: str) -> pl.DataFrame:
        others = [
            other
            for other in tables.values()
            if other.name in ctx.planned
            and other.name != table.name
            and isinstance(other.compute, OfImages)
            and other.inputs == table.inputs  # so that they are there, and checked
            and _is_stale(ctx, other, shard, tables)
        ]
        frames.update(compute_together(ctx, [table, *others], shard, cpu, wall))
        note_lent_cpu(-sum(cpu[other.name] for other in others))
        note_lent_wall(-sum(wall[other.name] for other in others))
        own = frames.pop(table.name)
        if isinstance(own, Exception):
            raise own
        return own

    try:
        return materialise_table(ctx, replace(table, compute=compute_all), shard, tables=tables)
    finally:
        for name, frame in frames.items():
            _write_other(ctx, tables[name], shard, frame, (cpu[name], wall[name]), tables)


def _is_stale(ctx: PoolContext, table: Table, shard: str, tables: Tables) -> bool:
    try:
        return not is_up_to_date(ctx, table, shard, tables=tables)
    except Exception:  # such as a model that is not on this disk: its own turn says so
        return False


def _write_other(
    ctx: PoolContext,
    table: Table,
    shard: str,
    frame: pl.DataFrame | Exception,
    spent: tuple[float, float],
    tables: Tables,
) -> None:
    def computed(ctx: PoolContext, shard: str) -> pl.DataFrame:
        note_lent_cpu(spent[0])
        note_lent_wall(spent[1])
        if isinstance(frame, Exception):
            raise frame
        return frame

    try:
        materialise_table(ctx, replace(table, compute=computed), shard, tables=tables)
    except Exception as error:  # its own turn, later in this run, meets it again and reports it
        logger.warning("%s %s: %s: %s; computed again in its turn", table.name, shard, type(error).__name__, error)


def compute_together(
    ctx: PoolContext,
    together: Sequence[Table],
    shard: str,
    cpu: defaultdict[str, float],
    wall: defaultdict[str, float],
) -> dict[str, pl.DataFrame | Exception]:
    """The rows of each table, or why there are none. `cpu`, `wall`: get the seconds of each.

    The table that has passed the fewest rows computes its next batch, so no more images are held than the largest
    batch has. Batches are those of a table that is computed alone.
    """
    images = DecodedImages(ctx.store.read(SAMPLES, shard), ctx.image_loader(), decode_threads(ctx, together))
    computing: dict[str, Steps[pl.DataFrame]] = {}
    passed: dict[str, int] = {}  # rows
    frames: dict[str, pl.DataFrame | Exception] = {}
    try:
        for table in together:
            assert isinstance(table.compute, OfImages), table.name
            computing[table.name], passed[table.name] = table.compute.steps(ctx, shard, images.load), 0
        while computing:
            name = min(computing, key=passed.__getitem__)
            before, began = cpu_seconds(), time.perf_counter()
            try:
                passed[name] = next(computing[name])
            except StopIteration as end:
                frames[name] = end.value
            except Exception as error:  # of one table: the others go on
                frames[name] = error
            cpu[name] += cpu_seconds() - before
            wall[name] += time.perf_counter() - began
            if name in frames:
                del computing[name]
            images.forget(min((passed[left] for left in computing), default=0))
    finally:
        for steps in computing.values():
            steps.close()  # stopped by hand: they save what they have
        images.close()
    return frames


def decode_threads(ctx: PoolContext, together: Sequence[Table]) -> int:
    """Threads that decode while a GPU computes; none on a CPU, where they would take the model's own time."""
    from curation_assets.engines import resolve_device

    if not any(table.needs.roles for table in together) or resolve_device(ctx.profile.device) == "cpu":
        return 0
    return max(1, min(ctx.settings.threads // ctx.settings.workers, MAX_DECODE_THREADS))

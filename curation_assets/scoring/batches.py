"""A function of columns run over samples batch by batch: one row out per row in, a reason for every gap."""

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.methods import Columns, Values
from curation_assets.scoring.upstream import upstream_reason
from curation_assets.stores.caption_text import is_blank
from curation_assets.stores.images import ImageRejected
from curation_assets.stores.saved_rows import SavedRows

LOGGER = logging.getLogger(__name__)

LoadImage = Callable[[dict[str, Any]], Image.Image]
Progress = Callable[[int], None]
Result = TypeVar("Result")
#: A computation batch by batch: after each it yields how many rows it has passed, and at last returns its result.
Steps = Generator[int, None, Result]

DEFAULT_BATCH = 64  # samples

#: A batch of at least as many samples that fail one by one means a broken engine, not as many broken samples.
BROKEN_ENGINE_BATCH = 8

#: Columns that distinguish two rows of one sample_id; carried through so that tables can be joined row by row.
ROW_COLUMNS = ("source_row",)

#: Columns of whole numbers, which text files bring as text.
NUMBER_COLUMNS = ("original_width", "original_height")


class BrokenEngineError(RuntimeError):
    """An engine fails whatever it is given."""


class OutOfBoundsError(ValueError):
    """A method returned a value outside its declared bounds."""


class ContractError(RuntimeError):
    """A method or an engine broke its contract: a bug, never a sample's fault."""


def row_identity(samples: pl.DataFrame) -> pl.DataFrame:
    return samples.select("sample_id", *(name for name in ROW_COLUMNS if name in samples.columns))


@dataclass
class _Run:
    """State of one pass over the samples."""

    value: np.ndarray  # (N,)
    reason: list[str | None]
    details: Columns
    is_done: np.ndarray  # (N,) bool
    has_answered: bool = False  # an engine has answered at least once
    first_error: Exception | None = None
    is_batch_error_logged: bool = False


def result_of(steps: Steps[Result]) -> Result:
    """What a computation returns once all its batches are done. Raises what it raises."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def evaluate(
    samples: pl.DataFrame,
    columns: Sequence[str],
    call: Callable[[Columns], Values],
    *,
    load_image: LoadImage | None,
    batch_size: int,
    progress: Progress | None,
    label: str,
    blank_caption: str | None = None,
    saved: SavedRows | None = None,
    detail_types: Mapping[str, pl.DataType] | None = None,
) -> Steps[Values]:
    """Values of every sample, batch by batch: `call` gets the columns of the rows of a batch that can be computed.

    Batches are the same windows of `batch_size` rows whatever else is computed meanwhile, and after a kill: a row that
    `saved` holds is taken from there, and `saved` takes whole batches. `detail_types`: of the details that it keeps.
    Raises as `score_samples` does.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    needed = {"sample_id", *columns} - {"image"}
    absent = sorted(needed - set(samples.columns))
    if absent:
        raise ValueError(f"{label} reads the columns {sorted(needed)}; samples lack {absent}")
    n = samples.height
    run = _Run(np.full(n, np.nan), _upstream_reasons(samples, columns), {}, np.zeros(n, dtype=bool))
    if saved is not None:
        _restore(run, saved.read())
    unsaved: list[int] = []
    try:
        for start in range(0, n, batch_size):
            stop = min(start + batch_size, n)
            batch = _read_batch(samples, start, stop, columns, run, load_image, blank_caption)
            if batch:
                _score_batch(batch, call, run, label)
                unsaved += [i for i, _ in batch]
            if saved is not None and unsaved and saved.is_due():
                saved.add(_rows_to_save(run, unsaved, detail_types or {}))
                unsaved = []
            if progress is not None:
                progress(stop - start)
            yield stop
    except (KeyboardInterrupt, GeneratorExit):  # somebody stops the run by hand: whole batches are worth keeping
        if saved is not None and unsaved:
            saved.add(_rows_to_save(run, unsaved, detail_types or {}))
        raise
    if run.first_error is not None and not run.has_answered:
        raise _broken(label, run.first_error, "every sample") from run.first_error
    return Values(run.value, run.reason, run.details)


def _rows_to_save(run: _Run, rows: list[int], detail_types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Row number in the table, value, reason and details of finished rows."""
    columns = [
        pl.Series("row", rows, dtype=pl.Int64),
        pl.Series("value", run.value[rows], dtype=pl.Float64),
        pl.Series("reason", [run.reason[i] for i in rows], dtype=pl.String),
    ]
    for name, dtype in detail_types.items():
        detail = run.details.get(name)
        columns.append(series_of(f"detail_{name}", [detail[i] if detail else None for i in rows], dtype))
    return pl.DataFrame(columns)


def series_of(name: str, entries: Sequence[Any], dtype: pl.DataType) -> pl.Series:
    """A column of entries, None among them. Vectors as NumPy arrays become lists without a Python number per value."""
    vectors = [entry for entry in entries if isinstance(entry, np.ndarray)]
    if not vectors:
        return pl.Series(name, entries, dtype=dtype)
    indices = iter(range(len(vectors)))
    rows = pl.Series([None if entry is None else next(indices) for entry in entries], dtype=pl.UInt32)
    return pl.Series(name, np.stack(vectors)).arr.to_list().cast(dtype).gather(rows)


def _restore(run: _Run, rows: pl.DataFrame | None) -> None:
    if rows is None:
        return
    positions = rows["row"].to_list()
    run.value[positions] = rows["value"].to_numpy()
    run.is_done[positions] = True
    run.has_answered = bool(np.isfinite(run.value).any())
    for i, reason in zip(positions, rows["reason"], strict=True):
        run.reason[i] = reason
    for name in rows.columns:
        if name.startswith("detail_"):
            column = run.details.setdefault(name.removeprefix("detail_"), [None] * len(run.reason))
            is_vector = rows.schema[name] == pl.List(pl.Float32)
            entries = [each if each is None else each.to_numpy() for each in rows[name]] if is_vector else rows[name]
            for i, value in zip(positions, entries, strict=True):
                column[i] = value


def _upstream_reasons(samples: pl.DataFrame, columns: Sequence[str]) -> list[str | None]:
    """Why a row cannot be scored at all: not kept upstream, or a null column."""
    reasons: list[str | None] = [None] * samples.height
    if "status" in samples.columns:
        why = "reason" if "reason" in samples.columns else pl.lit(None, pl.String).alias("reason")
        reasons = samples.select("status", why).select(upstream_reason())[:, 0].to_list()
    for name in columns:
        if name == "image":
            continue
        is_null = samples[name].is_null().to_list()
        given = f"{name}_reason"
        causes = samples[given].to_list() if given in samples.columns else [None] * samples.height
        for i, null in enumerate(is_null):
            if null and reasons[i] is None:
                reasons[i] = causes[i] or f"no_{name}"
    return reasons


def _read_batch(
    samples: pl.DataFrame,
    start: int,
    stop: int,
    columns: Sequence[str],
    run: _Run,
    load_image: LoadImage | None,
    blank_caption: str | None,
) -> list[tuple[int, dict[str, Any]]]:
    """Rows of a slice that can be scored with their column values, images loaded; the others get their reason."""
    batch = []
    for i, row in enumerate(samples.slice(start, stop - start).iter_rows(named=True), start=start):
        if run.reason[i] is not None or run.is_done[i]:
            continue
        inputs = {name: row[name] for name in columns if name != "image"}
        if "image" in columns:
            if load_image is None or row.get("has_image") is False:
                run.reason[i] = "no_image"
                continue
            try:
                inputs["image"] = load_image(row)
            except ImageRejected as error:
                run.reason[i] = error.reason if error.reason == "no_image" else f"image_{error.reason}"
                continue
        if blank_caption is not None and is_blank(inputs["caption"]):
            run.reason[i] = blank_caption
            continue
        batch.append((i, inputs))
    return batch


def _score_batch(
    batch: list[tuple[int, dict[str, Any]]],
    call: Callable[[Columns], Values],
    run: _Run,
    label: str,
) -> None:
    failures: list[Exception] = []

    def attempt(part: list[tuple[int, dict[str, Any]]]) -> None:
        try:
            values = call({name: [inputs[name] for _, inputs in part] for name in part[0][1]})
        except (ContractError, OutOfBoundsError):
            raise
        except Exception as error:  # an engine may raise anything; the sample keeps the type as its reason
            if len(part) == 1:
                failures.append(error)
                run.first_error = run.first_error or error
                run.reason[part[0][0]] = f"engine_error:{type(error).__name__}"
                return
            if not run.is_batch_error_logged:  # a batch path that always fails costs as many calls as there are samples
                run.is_batch_error_logged = True
                LOGGER.warning(
                    "%s failed on a batch of %d samples (%s: %s); it is halved until the failing sample is alone. "
                    "Further failing batches are not logged",
                    label, len(part), type(error).__name__, error,
                )  # fmt: skip
            middle = len(part) // 2
            attempt(part[:middle])
            attempt(part[middle:])
            return
        if len(values.value) != len(part):
            raise ContractError(f"{label} returned {len(values.value)} values for {len(part)} samples")
        run.has_answered = True
        for k, (i, _) in enumerate(part):
            run.value[i], run.reason[i] = values.value[k], values.reason[k]
            for name, column in values.details.items():
                run.details.setdefault(name, [None] * len(run.reason))[i] = column[k]

    attempt(batch)
    if len(failures) == len(batch) and len(batch) >= (2 if not run.has_answered else BROKEN_ENGINE_BATCH):
        raise _broken(label, failures[0], f"all {len(batch)} samples of a batch") from failures[0]


def _broken(label: str, error: Exception, what: str) -> BrokenEngineError:
    return BrokenEngineError(
        f"{label} failed on {what}, so its engine is broken rather than the samples; the first error was "
        f"{type(error).__name__}: {error}"
    )

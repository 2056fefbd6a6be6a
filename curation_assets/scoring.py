"""Scoring: run a method over a table of samples, or over a file. One row out per row in, a reason for every gap."""

import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.methods import Method, Values
from curation_assets.numeric.identity import is_sample_id, sample_id_of, seed_of
from curation_assets.ratings import read_table
from curation_assets.roles import Captioner, ObjectDetector
from curation_assets.stores.atomic import remove_path, replacing
from curation_assets.stores.content_hash import config_sha256, file_sha256, frame_sha256
from curation_assets.stores.images import ImageRejected, decode_image, tar_index
from curation_assets.stores.saved_rows import DEFAULT_SECONDS, SavedRows

LoadImage = Callable[[dict[str, Any]], Image.Image]
Progress = Callable[[int], None]

DEFAULT_BATCH = 64  # samples
DEFAULT_CAPTION_COUNT = 4  # generated captions per image; SIEVE §4 uses 8 (METHODS §2.2: 4 → 33.7, 8 → 34.0)

#: A batch of at least as many samples that fail one by one means a broken engine, not as many broken samples.
BROKEN_ENGINE_BATCH = 8

BOUNDS_TOLERANCE = 1e-6  # float32 dot products of unit vectors overshoot 1 by about 1e-7

#: Columns that tell two rows of one sample_id apart; carried through so that tables can be joined row by row.
ROW_COLUMNS = ("source_row",)

#: Columns of whole numbers, which text files bring as text.
NUMBER_COLUMNS = ("original_width", "original_height")

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")


class BrokenEngineError(RuntimeError):
    """An engine fails whatever it is given."""


class OutOfBoundsError(ValueError):
    """A method returned a value outside its declared bounds."""


def with_parameters(method: Method, **parameters: Any) -> Method:
    """The same method with keyword settings fixed, e.g. `with_parameters(get_method("sieve"), masking="repo")`.

    A setting that names a file (the method's `file_settings`) is read here. Raises ValueError for a keyword that the
    function lacks, or that is a column or a role; what `ratings.read_table` raises for a file.
    """
    names = set(inspect.signature(method.function).parameters) - set(method.columns) - set(method.roles)
    names = names - {file.parameter for file in method.file_settings.values()} | set(method.file_settings)
    unknown = sorted(set(parameters) - names)
    if unknown:
        raise ValueError(f"method {method.name!r} has no settings {unknown}; it has {sorted(names) or 'none'}")
    for setting, file in method.file_settings.items():
        if setting in parameters:
            path = Path(str(parameters.pop(setting))).expanduser()
            stat = path.stat() if path.is_file() else None
            stamp = (stat.st_size, stat.st_mtime_ns) if stat else None
            parameters[file.parameter] = _parsed_file(path, stamp, file.parse, file.is_list)
    return replace(method, function=partial(method.function, **parameters))


def described_settings(method: Method, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`settings` of a method, and the sha256 of every file that they name: equal where the values must be equal."""
    files = {f"{name}_sha256": file_sha256(Path(str(settings[name])).expanduser())
             for name in method.file_settings if name in settings}  # fmt: skip
    return {**settings, **files}


@lru_cache(maxsize=8)
def _parsed_file(
    path: Path, stamp: tuple[int, int] | None, parse: Callable[[dict[str, list[Any]]], Any], is_list: bool
) -> Any:
    """What `parse` makes of a file; `stamp` (size, modification time) tells its versions apart."""
    if is_list:
        lines = path.read_text(encoding="utf-8").splitlines()
        return parse({"line": [line.strip() for line in lines if line.strip()]})
    return parse(read_table(path).to_dict(as_series=False))


def score_samples(
    method: Method,
    samples: pl.DataFrame,
    roles: Mapping[str, Any],
    *,
    load_image: LoadImage | None = None,
    batch_size: int = DEFAULT_BATCH,
    progress: Progress | None = None,
    saved: SavedRows | None = None,
) -> pl.DataFrame:
    """The method's value of every sample: sample_id, value (null with a reason), reason, and the method's details.

    `samples`: sample_id, the method's columns, and optionally status and reason (rows that are not kept become
    `upstream_<status>:<reason>`) and source_row (carried through). One row out per row in, in the same order.
    `roles`: engines by role name. `load_image`: row → RGB image, raising ImageRejected; None means that no sample has
    an image (`no_image`). A column that a role can write (`DERIVING_ROLES`) and the method asks for, and `samples`
    lacks, is derived first. `progress` is told how many more rows are done. `saved`: rows that an earlier, killed call
    finished are taken from there and not asked about again; this call adds its own on the way.

    An engine's exception costs only the sample it belongs to (`engine_error:<type>`), found by halving the batch.
    Raises ValueError for missing columns or roles, BrokenEngineError when an engine fails on everything, and
    OutOfBoundsError for a value beyond the method's bounds.
    """
    samples = _with_derived(method, samples, roles, load_image, batch_size)
    missing = [role for role in method.roles if role not in roles]
    if missing:
        raise ValueError(f"method {method.name!r} needs the roles {missing}; got {sorted(roles)}")
    given = {role: roles[role] for role in method.roles}
    values = _evaluate(
        samples,
        method.columns,
        lambda columns: _checked(method, method.function(**columns, **given)),
        load_image=load_image,
        batch_size=batch_size,
        progress=progress,
        label=f"method {method.name!r}",
        saved=saved,
        detail_types=_detail_schema(method),
    )
    columns = [
        pl.Series("value", [None if math.isnan(v) else v for v in values.value], dtype=pl.Float64),
        pl.Series("reason", values.reason, dtype=pl.String),
    ]
    for name, dtype in _detail_schema(method).items():
        columns.append(pl.Series(name, values.details.get(name, [None] * samples.height), dtype=dtype))
    return _row_identity(samples).with_columns(columns)


def generate_captions(
    samples: pl.DataFrame,
    captioner: Captioner,
    *,
    count: int = DEFAULT_CAPTION_COUNT,
    load_image: LoadImage | None = None,
    batch_size: int = DEFAULT_BATCH,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """Captions sampled from every image: sample_id, generated_captions (null with a reason), reason.

    Seeds come from the sample_ids, so a caption depends on its own image and id only. Rows as in `score_samples`.
    Raises ValueError for count < 1, BrokenEngineError when the captioner fails on everything.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")

    def caption_batch(columns: dict[str, list[Any]]) -> Values:
        seeds = [seed_of(sample_id, "generated_captions") for sample_id in columns["sample_id"]]
        captions = captioner.sample_captions(columns["image"], seeds, count)
        short = [found for found in captions if len(found) != count]
        if len(captions) != len(seeds) or short:
            raise ContractError(
                f"the captioner must return {count} captions for each of {len(seeds)} images; "
                f"got {len(captions)} lists, {len(short)} of another length"
            )
        return Values.of(np.zeros(len(seeds)), generated_captions=captions)

    values = _evaluate(
        samples,
        ("image", "sample_id"),
        caption_batch,
        load_image=load_image,
        batch_size=batch_size,
        progress=progress,
        label="role 'captioner'",
    )
    captions = values.details.get("generated_captions", [None] * samples.height)
    return _row_identity(samples).with_columns(
        pl.Series("generated_captions", captions, dtype=pl.List(pl.String)),
        pl.Series("reason", values.reason, dtype=pl.String),
    )


def detect_objects(
    samples: pl.DataFrame,
    object_detector: ObjectDetector,
    *,
    load_image: LoadImage | None = None,
    batch_size: int = DEFAULT_BATCH,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """Distinct labels of every image, best first: sample_id, detected_objects, detection_scores (lists), reason.

    Both lists are null with a reason where there is no image; an image without a detection has empty ones. The score
    of a label is that of its best detection. Rows as in `score_samples`; raises BrokenEngineError when the detector
    fails on everything.
    """

    def detect_batch(columns: dict[str, list[Any]]) -> Values:
        best: list[dict[str, float]] = []
        for found in object_detector.detect_objects(columns["image"]):
            ranked = sorted(found, key=lambda one: (-one.score, one.label))
            best.append({one.label: one.score for one in reversed(ranked)})
        ordered = [sorted(labels.items(), key=lambda pair: (-pair[1], pair[0])) for labels in best]
        return Values.of(
            np.zeros(len(ordered)),
            detected_objects=[[label for label, _ in pairs] for pairs in ordered],
            detection_scores=[[float(score) for _, score in pairs] for pairs in ordered],
        )

    values = _evaluate(
        samples,
        ("image",),
        detect_batch,
        load_image=load_image,
        batch_size=batch_size,
        progress=progress,
        label="role 'object_detector'",
    )
    nothing = [None] * samples.height
    return _row_identity(samples).with_columns(
        pl.Series("detected_objects", values.details.get("detected_objects", nothing), dtype=pl.List(pl.String)),
        pl.Series("detection_scores", values.details.get("detection_scores", nothing), dtype=pl.List(pl.Float64)),
        pl.Series("reason", values.reason, dtype=pl.String),
    )


@dataclass(frozen=True)
class DerivedColumn:
    """A column that a model makes of each image, once, for every method that asks for it."""

    role: str | None  # who makes it; None: no model is needed
    derive: Callable[[dict[str, list[Any]], Any], list[Any]]  # (columns of a batch, engine) → one entry per sample
    dtype: pl.DataType
    description: str


def derive_column(
    name: str,
    samples: pl.DataFrame,
    engine: Any,
    *,
    load_image: LoadImage | None = None,
    batch_size: int = DEFAULT_BATCH,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """A column of DERIVED_COLUMNS for every sample: sample_id, the column (null with a reason), reason.

    Rows as in `score_samples`. Raises BrokenEngineError when the engine fails on everything.
    """
    column = DERIVED_COLUMNS[name]

    def derive_batch(columns: dict[str, list[Any]]) -> Values:
        entries = column.derive(columns, engine)
        return Values.of(np.zeros(len(entries)), **{name: entries})

    values = _evaluate(
        samples,
        ("image", "sample_id"),
        derive_batch,
        load_image=load_image,
        batch_size=batch_size,
        progress=progress,
        label=f"role {column.role!r}" if column.role else name,
    )
    return _row_identity(samples).with_columns(
        pl.Series(name, values.details.get(name, [None] * samples.height), dtype=column.dtype),
        pl.Series("reason", values.reason, dtype=pl.String),
    )


def _perceptual_hashes(columns: dict[str, list[Any]], engine: None) -> list[str]:
    import imagehash

    return [str(imagehash.phash(image)) for image in columns["image"]]  # 8 × 8 bits, 16 hex digits


#: Column name → how it is made. A method names the column; its pool then has a table `signals/<name>`.
DERIVED_COLUMNS: dict[str, DerivedColumn] = {
    "text_boxes": DerivedColumn(
        "text_spotter",
        lambda columns, engine: [
            [{**vars(box), "polygon": list(box.polygon)} for box in boxes]
            for boxes in engine.spot_text(columns["image"])
        ],
        pl.List(pl.Struct({"text": pl.String, "confidence": pl.Float64, "polygon": pl.List(pl.Float64)})),
        "One row per sample: boxes of text in its image with what was read in them (OCR).",
    ),
    "image_embedding": DerivedColumn(
        "image_text_encoder",
        lambda columns, engine: engine.embed_images(columns["image"]).tolist(),
        pl.List(pl.Float32),
        "One row per sample: the unit vector of its image, for clusters and near-duplicates.",
    ),
    "perceptual_hash": DerivedColumn(
        None,
        _perceptual_hashes,
        pl.String(),
        "One row per sample: the 64-bit perceptual hash of its image (pHash, 16 hex digits).",
    ),
}
#: Role that makes a column where the samples lack it.
DERIVING_ROLES: dict[str, str] = {"generated_captions": "captioner", "detected_objects": "object_detector"} | {
    name: column.role for name, column in DERIVED_COLUMNS.items() if column.role
}


def _with_derived(
    method: Method,
    samples: pl.DataFrame,
    roles: Mapping[str, Any],
    load_image: LoadImage | None,
    batch_size: int,
) -> pl.DataFrame:
    """The samples with the derived columns that the method asks for and they lack."""
    for name in method.columns:
        role = DERIVING_ROLES.get(name)
        if name in samples.columns or (name not in DERIVED_COLUMNS and role is None):
            continue
        if role is not None and role not in roles:
            raise ValueError(f"method {method.name!r} reads {name}: give samples that column, or the role {role}")
        if name == "generated_captions":
            made = generate_captions(samples, roles["captioner"], load_image=load_image, batch_size=batch_size)
        elif name == "detected_objects":
            made = detect_objects(samples, roles["object_detector"], load_image=load_image, batch_size=batch_size)
        else:
            engine = roles[role] if role else None
            made = derive_column(name, samples, engine, load_image=load_image, batch_size=batch_size)
        samples = samples.with_columns(made[name], made["reason"].alias(f"{name}_reason"))
    return samples


class ContractError(RuntimeError):
    """A method or an engine broke its contract: a bug, never a sample's fault."""


def _checked(method: Method, values: Values) -> Values:
    """`values` in float64 within bounds, every NaN with a reason. Raises ContractError, OutOfBoundsError."""
    value = np.asarray(values.value, dtype=np.float64).copy()
    reason = list(values.reason)
    lengths = {len(value), len(reason), *(len(column) for column in values.details.values())}
    if value.ndim != 1 or len(lengths) != 1:
        raise ContractError(f"method {method.name!r} returned columns of different lengths {sorted(lengths)}")
    for i in np.flatnonzero(~np.isfinite(value)):
        reason[i] = reason[i] or "not_a_number"
        value[i] = np.nan
    both = [i for i, why in enumerate(reason) if why is not None and not math.isnan(value[i])]
    if both:
        raise ContractError(f"method {method.name!r} returned value {value[both[0]]} with reason {reason[both[0]]!r}")
    low, high = method.bounds
    outside = value[(value < low - BOUNDS_TOLERANCE) | (value > high + BOUNDS_TOLERANCE)]
    if len(outside):
        raise OutOfBoundsError(
            f"method {method.name!r} promises {method.unit} in [{low:g}, {high:g}], got {outside[0]} "
            f"({len(outside)} such values); correct its bounds, or the engine that answers"
        )
    return Values(np.clip(value, low, high), reason, values.details)


def _row_identity(samples: pl.DataFrame) -> pl.DataFrame:
    return samples.select("sample_id", *(name for name in ROW_COLUMNS if name in samples.columns))


def _detail_schema(method: Method) -> dict[str, pl.DataType]:
    """Column types of the method's details, read off its worked example: a shard full of nulls has the same schema."""
    worked = method.example
    example = method.function(**worked.columns, **worked.roles, **worked.settings)
    return {name: pl.Series(column, strict=False).dtype for name, column in example.details.items()}


@dataclass
class _Run:
    """State of one pass over the samples."""

    value: np.ndarray  # (N,)
    reason: list[str | None]
    details: dict[str, list[Any]]
    is_done: np.ndarray  # (N,) bool
    has_answered: bool = False  # an engine has answered at least once
    first_error: Exception | None = None


def _evaluate(
    samples: pl.DataFrame,
    columns: Sequence[str],
    call: Callable[[dict[str, list[Any]]], Values],
    *,
    load_image: LoadImage | None,
    batch_size: int,
    progress: Progress | None,
    label: str,
    saved: SavedRows | None = None,
    detail_types: Mapping[str, pl.DataType] | None = None,
) -> Values:
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
            batch = _read_batch(samples, start, stop, columns, run, load_image)
            if batch:
                _score_batch(batch, call, run, label)
                unsaved += [i for i, _ in batch]
            if saved is not None and unsaved and saved.is_due():
                saved.add(_rows_to_save(run, unsaved, detail_types or {}))
                unsaved = []
            if progress is not None:
                progress(stop - start)
    except KeyboardInterrupt:  # somebody stops the run by hand: whole batches are worth keeping
        if saved is not None and unsaved:
            saved.add(_rows_to_save(run, unsaved, detail_types or {}))
        raise
    if run.first_error is not None and not run.has_answered:
        raise _broken(label, run.first_error, "every sample") from run.first_error
    return Values(run.value, run.reason, run.details)


def _rows_to_save(run: _Run, rows: list[int], detail_types: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Place in the table, value, reason and details of finished rows."""
    columns = [
        pl.Series("row", rows, dtype=pl.Int64),
        pl.Series("value", run.value[rows], dtype=pl.Float64),
        pl.Series("reason", [run.reason[i] for i in rows], dtype=pl.String),
    ]
    for name, dtype in detail_types.items():
        found = run.details.get(name)
        columns.append(pl.Series(f"detail_{name}", [found[i] if found else None for i in rows], dtype=dtype))
    return pl.DataFrame(columns)


def _restore(run: _Run, rows: pl.DataFrame | None) -> None:
    if rows is None:
        return
    places = rows["row"].to_list()
    run.value[places] = rows["value"].to_numpy()
    run.is_done[places] = True
    run.has_answered = bool(np.isfinite(run.value).any())
    for i, reason in zip(places, rows["reason"], strict=True):
        run.reason[i] = reason
    for name in rows.columns:
        if name.startswith("detail_"):
            column = run.details.setdefault(name.removeprefix("detail_"), [None] * len(run.reason))
            for i, value in zip(places, rows[name].to_list(), strict=True):
                column[i] = value


def _upstream_reasons(samples: pl.DataFrame, columns: Sequence[str]) -> list[str | None]:
    """Why a row cannot be asked about at all: not kept upstream, or a null column."""
    reasons: list[str | None] = [None] * samples.height
    if "status" in samples.columns:
        why = samples["reason"] if "reason" in samples.columns else pl.Series([None] * samples.height)
        reasons = [
            None if status == "kept" else f"upstream_{status or 'unknown'}:{reason or 'no_reason'}"
            for status, reason in zip(samples["status"], why, strict=True)
        ]
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
) -> list[tuple[int, dict[str, Any]]]:
    """Askable rows of a slice with their column values, images loaded; the others get their reason."""
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
        batch.append((i, inputs))
    return batch


def _score_batch(
    batch: list[tuple[int, dict[str, Any]]],
    call: Callable[[dict[str, list[Any]]], Values],
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


def score_file(
    method: Method,
    input_path: Path,
    out: Path,
    roles: Mapping[str, Any],
    *,
    batch_size: int = DEFAULT_BATCH,
    progress: Progress | None = None,
    made_by: Mapping[str, Any] | None = None,
    save_every_seconds: float = DEFAULT_SECONDS,
    details: bool = False,
) -> pl.DataFrame:
    """Score a file and write it again with two more columns: `<method>` and `<method>_reason`. Returns the table.

    Input: .txt (one caption per line), .tsv (no quoting), .csv or .parquet with a column caption and, for methods
    that look at images, a column image (paths, relative to the file's folder); or a webdataset .tar, or a folder of
    tars. Sizes (original_width, original_height) that a method asks for are columns, or what a tar's .json says, or
    those of the images as they are. Output by suffix: .parquet, .csv, .tsv, .jsonl. Rows keep their order and number,
    columns their names; lists are JSON in .csv and .tsv.
    `details`: the method's further columns too, as `<method>_<detail>`: which rule dropped a sample, the best caption.
    `made_by`: what decides the values beside file and method (models, settings; JSON-able). With it, finished rows are
    saved every `save_every_seconds` beside `out` (`unfinished_folder`), and a call with the same goes on from there.
    Raises ValueError for an unknown suffix, a missing column, or a column that already has the method's name.
    """
    input_path, out = Path(input_path), Path(out)
    if out.suffix not in _WRITERS:
        raise ValueError(f"output must end in one of {', '.join(_WRITERS)}, got {out.name!r}")
    table = read_captions(input_path)
    new = {"value": method.name, "reason": f"{method.name}_reason"}
    if details:
        new |= {name: f"{method.name}_{name}" for name in _detail_schema(method)}
    taken = [name for name in new.values() if name in table.columns]
    if taken:
        raise ValueError(f"{input_path} already has the columns {taken}; rename them, or score another file")
    made = [name for name in method.columns if name in DERIVING_ROLES and name not in table.columns]
    if ("image" in method.columns or made) and not {"image", "member"} & set(table.columns):
        instead = f"the column{'s' * (len(made) > 1)} {' and '.join(made)}, or " * ("image" not in method.columns)
        raise ValueError(
            f"method {method.name!r} looks at images: {input_path} needs {instead}a column 'image' with paths, or must "
            f"be a webdataset tar; it has {table.columns}"
        )
    samples = _with_sizes(method, input_path, as_samples(table))
    saved = None
    if made_by is not None:
        images = _image_stamps(input_path, samples) if "image" in method.columns else []
        made_from = [frame_sha256(samples), images, method.name, method.version, dict(made_by)]
        saved = SavedRows(unfinished_folder(out) / config_sha256({"made_from": made_from})[:32], save_every_seconds)
    scored = score_samples(
        method,
        samples,
        roles,
        load_image=partial(load_row_image, input_path),
        batch_size=batch_size,
        progress=progress,
        saved=saved,
    )
    result = table.with_columns(scored[name].alias(column) for name, column in new.items())
    with replacing(out) as temporary:
        _WRITERS[out.suffix](result, temporary)
    if saved is not None:
        remove_path(unfinished_folder(out))
    return result


def _with_sizes(method: Method, input_path: Path, samples: pl.DataFrame) -> pl.DataFrame:
    """The samples with sizes of their images, where the method asks for sizes and the file has no such columns."""
    if not set(NUMBER_COLUMNS) <= set(method.columns) - set(samples.columns):
        return samples
    if not {"image", "member"} & set(samples.columns):
        raise ValueError(
            f"method {method.name!r} reads the size of images: {input_path} needs the columns "
            f"{' and '.join(NUMBER_COLUMNS)}, or a column 'image' with paths, or must be a webdataset tar"
        )
    sizes: list[tuple[int, int] | tuple[None, None]] = []
    reasons: list[str | None] = []
    for row in samples.iter_rows(named=True):
        size: tuple[int, int] | tuple[None, None] = (None, None)
        reason = None
        try:
            size = _size_in_json(row) or load_row_image(input_path, row).size
        except ImageRejected as error:
            reason = error.reason if error.reason == "no_image" else f"image_{error.reason}"
        sizes.append(size)
        reasons.append(reason)
    for place, name in enumerate(NUMBER_COLUMNS):
        samples = samples.with_columns(
            pl.Series(name, [size[place] for size in sizes], dtype=pl.Int64),
            pl.Series(f"{name}_reason", reasons, dtype=pl.String),
        )
    return samples


def _size_in_json(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """Width and height of the original as img2dataset noted them in the tar; None where it did not."""
    if not row.get("tar") or f"{row['key']}.json" not in (index := tar_index(Path(row["tar"]))).members:
        return None
    try:
        told = json.loads(index.read(f"{row['key']}.json"))
    except (ValueError, ImageRejected):  # the image itself still has a size
        return None
    found = [told.get(name) if isinstance(told, dict) else None for name in NUMBER_COLUMNS]
    width, height = (size if type(size) is int and size > 0 else None for size in found)
    return None if width is None or height is None else (width, height)


def unfinished_folder(out: Path) -> Path:
    """Where a file's finished rows wait until all are there; a stopped `score_file` leaves it."""
    return out.with_name(f".{out.name}.unfinished")


def _image_stamps(input_path: Path, samples: pl.DataFrame) -> list[tuple[str, int, int]]:
    """Path, size and modification time of every file that holds images: another picture is another sample."""
    name = "tar" if "tar" in samples.columns else "image"
    paths = sorted({text for text in samples[name].cast(pl.String).to_list() if text})
    files = [Path(text) if name == "tar" else input_path.parent / text for text in paths]
    return [(str(file), stat.st_size, stat.st_mtime_ns) for file in files if file.is_file() and (stat := file.stat())]


def read_captions(path: Path) -> pl.DataFrame:
    """Table of a captions file (see `score_file`), at least with a column caption.

    Raises ValueError for an unknown kind of file or no column caption, FileNotFoundError where there is none.
    """
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path}")
    if path.is_dir() or path.suffix == ".tar":
        tars = sorted(path.glob("*.tar")) if path.is_dir() else [path]
        if not tars:
            raise ValueError(f"{path}: expected a folder of webdataset .tar files, found none")
        rows = [row for tar in tars for row in _webdataset_rows(tar)]
        schema = {"key": pl.String, "caption": pl.String, "tar": pl.String, "member": pl.String}
        return pl.DataFrame(rows, schema=schema)
    if path.suffix == ".txt":
        lines = path.read_text(encoding="utf-8").split("\n")  # not splitlines: other separators belong to a caption
        lines = lines[:-1] if lines[-1] == "" else lines
        return pl.DataFrame({"caption": [line.removesuffix("\r") for line in lines]}, schema={"caption": pl.String})
    if path.suffix == ".parquet":
        table = pl.read_parquet(path, glob=False)
    elif path.suffix in (".tsv", ".csv"):
        table = pl.read_csv(
            path,
            separator="\t" if path.suffix == ".tsv" else ",",
            quote_char=None if path.suffix == ".tsv" else '"',
            infer_schema=False,  # every column stays the text it was
            empty_string_is_null=False,
            glob=False,
        )
    else:
        raise ValueError(f"{path}: expected .txt, .tsv, .csv, .parquet, a webdataset .tar or a folder of tars")
    if "caption" not in table.columns:
        raise ValueError(f"{path}: expected a column 'caption', got {table.columns}; rename yours")
    return table


def _webdataset_rows(tar: Path) -> Iterator[dict[str, Any]]:
    """One row per key of a tar, in its order: the caption from .txt, the image's member name; null where absent."""
    members: dict[str, dict[str, str]] = {}
    for name in tar_index(tar).members:
        folder, _, file = name.rpartition("/")
        stem, _, suffix = file.partition(".")
        members.setdefault(f"{folder}/{stem}" if folder else stem, {})[f".{suffix.lower()}"] = name
    for key, parts in members.items():
        try:
            caption = tar_index(tar).read(parts[".txt"]).decode("utf-8", "replace") if ".txt" in parts else None
        except ImageRejected:  # the tar is cut inside this member: the row stays, without a caption
            caption = None
        image = next((parts[suffix] for suffix in IMAGE_SUFFIXES if suffix in parts), None)
        yield {"key": key, "caption": caption, "tar": str(tar), "member": image}


def as_samples(table: pl.DataFrame) -> pl.DataFrame:
    """The table with a sample_id per row: its own sample_id or uid where valid, else from image or url and caption."""
    own = next((name for name in ("sample_id", "uid") if name in table.columns), None)
    place = next((name for name in ("url", "image", "key") if name in table.columns), None)
    ids = [
        row[own]
        if own and is_sample_id(row[own])
        else sample_id_of(None if place is None else str(row[place]), row["caption"])
        for row in table.iter_rows(named=True)
    ]
    # Status and reason of a file are its own business: every row is asked about.
    rest = table.drop("sample_id", "status", "reason", strict=False)
    rest = rest.with_columns(
        pl.col(name).cast(pl.Int64, strict=False) for name in NUMBER_COLUMNS if rest.schema.get(name) == pl.String
    )
    rest = rest.with_columns(
        pl.Series(name, [_as_list(cell) for cell in rest[name]], dtype=pl.List(pl.String))
        for name in ("generated_captions", "detected_objects")
        if rest.schema.get(name) == pl.String
    )
    return rest.with_columns(pl.Series("sample_id", ids, dtype=pl.String), pl.col("caption").cast(pl.String))


def _as_list(cell: str | None) -> list[str] | None:
    """A text file's cell of several texts: a JSON list, else one text; empty for none. Null where it is empty."""
    if cell is None or not cell.strip():
        return None
    try:
        parsed = json.loads(cell) if cell.lstrip().startswith("[") else [cell]
    except json.JSONDecodeError:  # a caption that begins with a bracket
        parsed = [cell]
    return [text for text in parsed if isinstance(text, str)]


def load_row_image(input_path: Path, row: dict[str, Any]) -> Image.Image:
    if row.get("member") is not None:
        return decode_image(tar_index(Path(row["tar"])).read(row["member"]))
    if not row.get("image"):
        raise ImageRejected("no_image", f"sample {row['sample_id']} names no image")
    path = input_path.parent / row["image"]
    if not path.is_file():
        raise ImageRejected("not_found", f"no file {path}")
    return decode_image(path.read_bytes())


_WRITERS: dict[str, Callable[[pl.DataFrame, Path], None]] = {
    ".parquet": lambda table, path: table.write_parquet(path),
    ".csv": lambda table, path: _lists_as_json(table).write_csv(path),
    ".tsv": lambda table, path: _write_tsv(table, path),
    ".jsonl": lambda table, path: table.write_ndjson(path),
}


def _lists_as_json(table: pl.DataFrame) -> pl.DataFrame:
    """Text has no lists: they become what `_as_list` reads."""
    nested = [name for name, dtype in table.schema.items() if dtype.is_nested()]
    as_text = {
        name: [None if cell is None else json.dumps(cell, ensure_ascii=False) for cell in table[name].to_list()]
        for name in nested
    }
    return table.with_columns(pl.Series(name, cells, dtype=pl.String) for name, cells in as_text.items())


def _write_tsv(table: pl.DataFrame, path: Path) -> None:
    """Tab-separated without quoting. Raises ValueError where a text holds a tab or a line break."""
    table = _lists_as_json(table)
    for name, dtype in table.schema.items():
        if dtype == pl.String and table[name].str.contains(r"[\t\n\r]").any():
            raise ValueError(f"column {name!r} holds tabs or line breaks, which .tsv cannot; write .parquet or .jsonl")
    table.write_csv(path, separator="\t", quote_style="never")

"""Scoring a file: captions, pairs or a tar in, one row per sample out, resumable."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl
from PIL import Image

from curation_assets.methods import Method
from curation_assets.numeric.identity import is_sample_id, sample_id_of
from curation_assets.scoring.batches import DEFAULT_BATCH, NUMBER_COLUMNS, LoadImage, Progress
from curation_assets.scoring.derived import DERIVED_COLUMNS, DERIVING_ROLES
from curation_assets.scoring.samples import detail_schema, score_samples
from curation_assets.sources.image_columns import CAPTION_NAMES, FILE_NAMES
from curation_assets.sources.text_columns import named_columns, texts_of
from curation_assets.stores.atomic import check_new, remove_path, writing_new
from curation_assets.stores.caption_text import caption_texts, is_encodable
from curation_assets.stores.content_hash import config_sha256, frame_sha256
from curation_assets.stores.damaged_tables import ROW_REASON, read_sound_rows, schema_of, sound_parts
from curation_assets.stores.documents import save_frame
from curation_assets.stores.file_hash import FileState
from curation_assets.stores.images import ImageRejected, decode_image, printable, tar_index
from curation_assets.stores.parquet import parquet_rows, scan_parquet
from curation_assets.stores.saved_rows import DEFAULT_SECONDS, SavedRows
from curation_assets.stores.tar_samples import find_tars, members_by_key, text_of
from curation_assets.stores.text_format import table_suffix
from curation_assets.stores.text_tables import TEXT_SUFFIXES, read_lines, unescaped, write_text_table

OUT_SUFFIXES = (".parquet", ".csv", ".tsv", ".jsonl")


def score_file(
    method: Method,
    input_path: Path,
    out: Path,
    roles: Mapping[str, Any],
    *,
    batch_size: int = DEFAULT_BATCH,
    progress: Progress | None = None,
    made_by: Mapping[str, Any] = MappingProxyType({}),
    save_every_seconds: float = DEFAULT_SECONDS,
    details: bool = False,
    raw: bool = False,
    returned: Sequence[str] | None = None,
) -> pl.DataFrame:
    """Score a file and write it again with two more columns: `<method>` and `<method>_reason`. Returns the table, or
    its columns `returned`.

    Input: .txt (one caption per line), .tsv (no quoting), .csv or .parquet with a column caption and, for methods
    that look at images, a column image (paths, relative to the file's folder), or called by CAPTION_NAMES and
    FILE_NAMES; or a webdataset .tar, or a folder of tars. Sizes (original_width, original_height)
    that a method needs are columns, or from a tar's .json, or those of the images as they are. Output by suffix:
    .parquet, .csv, .tsv, .jsonl. Rows keep their order and number, columns their names; lists are JSON in .csv and
    .tsv. From Parquet to Parquet a part of the rows is in memory.
    `details`: the method's further columns too, as `<method>_<detail>`: which rule dropped a sample, the best caption.
    `made_by`: what decides the values beside file and method (models, settings; JSON-able). Finished rows are saved
    every `save_every_seconds` in `unfinished_folder(out)`, and a call with the same goes on from there.
    `raw`: cells of .csv and .tsv that a spreadsheet takes for formulas stay as they are (`stores/text_tables.py`).
    Raises ValueError for an unknown suffix, a missing column, a column that already has the method's name, an `out`
    that exists (it is never overwritten), and where no row has a value for want of images, which writes nothing.
    """
    input_path, out = Path(input_path), Path(out)
    check_out(out)
    theirs = {ours: name for name, ours in _our_names(input_path).items()}
    load_image = partial(load_row_image, input_path)
    folder, written = unfinished_folder(out), list[Path]()
    for table in _parts(input_path):
        new = _new_columns(method, table.columns, input_path, details=details)
        samples = samples_to_score(method, table, input_path, load_image)
        images = _image_stamps(input_path, samples) if "image" in method.columns else []
        made_from = [frame_sha256(samples), images, method.name, method.version, details, dict(made_by)]
        saved = SavedRows(folder / config_sha256({"made_from": made_from})[:32], save_every_seconds)
        written.append(folder / f"{len(written):06d}-{saved.folder.name}.parquet")
        if written[-1].is_file():
            if progress is not None:
                progress(table.height)
            continue
        scored = score_samples(
            method,
            samples,
            roles,
            load_image=load_image,
            batch_size=batch_size,
            progress=progress,
            saved=saved,
        )
        result = table.drop(ROW_REASON, strict=False).with_columns(scored[name].alias(col) for name, col in new.items())
        result = result.rename(theirs)
        save_frame(written[-1], result)
        remove_path(saved.folder)
    whole = scan_parquet(written)
    counts = dict(whole.group_by(new["reason"]).len().collect().iter_rows())
    if counts.keys() == {"image_not_found"}:
        remove_path(folder)
        raise ValueError(
            f"{input_path}: not one of its {counts['image_not_found']:,} images is there; paths of column "
            f"{theirs.get('image', 'image')} must count from {input_path.absolute().parent}"
        )
    with writing_new(out) as temporary:
        _write(whole, temporary, out.suffix, raw=raw)
    kept = (whole if returned is None else whole.select(pl.col(theirs.get(n, n)).alias(n) for n in returned)).collect()
    remove_path(folder)
    return kept


def _parts(path: Path) -> Iterator[pl.DataFrame]:
    """A captions file: of Parquet some rows at a time, of others all. Raises as `read_captions`."""
    if table_suffix(path) != ".parquet":
        yield read_captions(path)
        return
    columns_and_rows(path)
    yield from (part.rename(_our_names(path)) for part in sound_parts(path))


def check_out(out: Path) -> None:
    """Raise ValueError for an output that exists, or whose name ends in none of OUT_SUFFIXES."""
    if out.suffix not in OUT_SUFFIXES:
        raise ValueError(f"output must end in one of {', '.join(OUT_SUFFIXES)}, got {out.name!r}")
    check_new(out)


def columns_and_rows(path: Path) -> tuple[list[str], int]:
    """Our names of the columns of a captions file, and how many rows it has. Raises as `read_captions`."""
    if table_suffix(path) == ".parquet" and path.is_file():
        names = _our_names(path)
        return [names.get(name, name) for name in schema_of(path)], parquet_rows(path)
    table = read_captions(path)
    return table.drop(ROW_REASON, strict=False).columns, table.height


def _our_names(path: Path) -> dict[str, str]:
    """A table's columns of captions and of images' paths → our names, where they are others. Raises ValueError for no
    captions.
    """
    if not table_suffix(path):
        return {}
    schema = schema_of(path)
    usual = {"caption": CAPTION_NAMES, "image": FILE_NAMES}
    found = {ours: named_columns(schema, (ours, *names), ()) for ours, names in usual.items()}
    if not found["caption"]:
        raise ValueError(f"{path}: expected a column of {list(CAPTION_NAMES)}, got {list(schema)}; rename yours")
    return {names[0]: ours for ours, names in found.items() if names and ours not in schema}


def _new_columns(method: Method, names: Sequence[str], source: Path, *, details: bool) -> dict[str, str]:
    """Column of a scored table → its name in the file. Raises ValueError where the file has such a column."""
    new = {"value": method.name, "reason": f"{method.name}_reason"}
    if details:
        new |= {name: f"{method.name}_{name}" for name in detail_schema(method)}
    taken = [name for name in new.values() if name in names]
    if taken:
        raise ValueError(f"{source} already has the columns {taken}; rename them, or score another file")
    return new


def samples_to_score(
    method: Method, table: pl.DataFrame, source: Path, load_image: LoadImage | None = None
) -> pl.DataFrame:
    """The rows of `table` as samples: sample_id, and the sizes of images where the method reads them.

    Raises as `check_columns`.
    """
    check_columns(method, table.columns, source)
    return _with_sizes(method, source, as_samples(table), load_image)


def check_columns(method: Method, columns: Sequence[str], source: Path | str) -> None:
    """Raise ValueError, which names `source`, where the method looks at images and these columns name none."""
    made = [name for name in method.columns if name in DERIVING_ROLES and name not in columns]
    if ("image" in method.columns or made) and not {"image", "member"} & set(columns):
        instead = f"the column{'s' * (len(made) > 1)} {' and '.join(made)}, or " * ("image" not in method.columns)
        raise ValueError(
            f"method {method.name!r} looks at images: {source} needs {instead}a column 'image' with paths (or "
            f"file_name, path …), or must be a webdataset tar; it has {list(columns)}"
        )


def _with_sizes(method: Method, source: Path, samples: pl.DataFrame, load_image: LoadImage | None) -> pl.DataFrame:
    """The samples with sizes of their images, where the method needs sizes and the file has no such columns."""
    if not set(NUMBER_COLUMNS) <= set(method.columns) - set(samples.columns):
        return samples
    if load_image is None or not {"image", "member"} & set(samples.columns):
        raise ValueError(
            f"method {method.name!r} reads the size of images: {source} needs the columns "
            f"{' and '.join(NUMBER_COLUMNS)}, or a column 'image' with paths, or must be a webdataset tar"
        )
    sizes: list[tuple[int, int] | tuple[None, None]] = []
    reasons: list[str | None] = []
    for row in samples.iter_rows(named=True):
        size: tuple[int, int] | tuple[None, None] = (None, None)
        reason = None
        try:
            size = _size_in_json(row) or load_image(row).size
        except ImageRejected as error:
            reason = error.reason if error.reason == "no_image" else f"image_{error.reason}"
        sizes.append(size)
        reasons.append(reason)
    for axis, name in enumerate(NUMBER_COLUMNS):
        samples = samples.with_columns(
            pl.Series(name, [size[axis] for size in sizes], dtype=pl.Int64),
            pl.Series(f"{name}_reason", reasons, dtype=pl.String),
        )
    return samples


def _size_in_json(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """Width and height of the original as img2dataset noted them in the tar; None where it did not."""
    if not row.get("tar") or f"{row['key']}.json" not in (index := tar_index(Path(row["tar"]))).members:
        return None
    try:
        metadata = json.loads(index.read(f"{row['key']}.json"))
    except (ValueError, RecursionError, ImageRejected):  # the image itself still has a size
        return None
    sizes = [metadata.get(name) if isinstance(metadata, dict) else None for name in NUMBER_COLUMNS]
    width, height = (size if type(size) is int and size > 0 else None for size in sizes)
    return None if width is None or height is None else (width, height)


def unfinished_folder(out: Path) -> Path:
    """Where a file's finished rows wait until all are done; a stopped `score_file` leaves it."""
    return out.with_name(f".{out.name}.unfinished")


def _image_stamps(input_path: Path, samples: pl.DataFrame) -> list[tuple[object, ...]]:
    """Path and state of every file that holds images: another picture is another sample."""
    name = "tar" if "tar" in samples.columns else "image"
    paths = sorted({text for text in samples[name].cast(pl.String).to_list() if text})
    files = [Path(text) if name == "tar" else input_path.parent / text for text in paths]
    return [(str(file), *astuple(FileState.of(file))) for file in files if file.is_file()]


def read_captions(path: Path) -> pl.DataFrame:
    """Table of a captions file (see `score_file`), at least with a column caption; with ROW_REASON where rows cannot be
    read.

    Raises ValueError for an unknown kind of file or no column of captions, FileNotFoundError where there is none.
    """
    if not path.exists():
        raise FileNotFoundError(f"no file or folder {path}")
    if path.is_dir() or path.suffix == ".tar":
        tars = find_tars(path) if path.is_dir() else [path]
        if not tars:
            given = min(filter(table_suffix, path.iterdir()), default=None)
            instead = f"; give its table: {given}" if given else ""
            raise ValueError(f"{path}: expected a folder of webdataset .tar files, got none{instead}")
        rows = [row for tar in tars for row in _webdataset_rows(tar)]
        schema = dict.fromkeys(("key", "caption", "tar", "member", ROW_REASON), pl.String)
        return pl.DataFrame(rows, schema=schema)
    if path.suffix == ".txt":
        return pl.DataFrame({"caption": read_lines(path)}, schema={"caption": pl.String})
    suffix = table_suffix(path)
    if not suffix:
        raise ValueError(f"{path}: expected .txt, .tsv, .csv, .jsonl, .parquet, a webdataset .tar or a folder of tars")
    table = read_sound_rows(path)
    if suffix in TEXT_SUFFIXES:
        is_sound = pl.col(ROW_REASON).is_null()
        cells = pl.exclude(ROW_REASON)
        table = unescaped(table).with_columns(pl.when(is_sound).then(cells.fill_null("")).otherwise(cells))
    return table.rename(_our_names(path))


def _webdataset_rows(tar: Path) -> Iterator[dict[str, Any]]:
    """One row per key of a tar, in its order: the caption from .txt, the image's member name; null where absent."""
    index = tar_index(tar)
    if index.damage is not None and not index.members:
        raise ValueError(f"{index.damage.sentence} (in {tar.parent})")
    for key, sample in members_by_key(index).items():
        caption, reason = text_of(index, sample.text)
        image = sample.image
        member = image if image is not None and is_encodable(image) else None  # no table can hold another name
        key = key if is_encodable(key) else printable(key)
        reason = None if reason == "missing_txt" else reason  # no_caption, as in a table
        yield {"key": key, "caption": caption, "tar": str(tar), "member": member, ROW_REASON: reason}


def as_samples(table: pl.DataFrame) -> pl.DataFrame:
    """The table with a sample_id per row: its own sample_id or uid where valid, else from image or url and caption.

    A caption that cannot be read, or is too long, is null, and caption_reason says why.
    """
    table = _with_caption_reasons(table)
    own = next((name for name in ("sample_id", "uid") if name in table.columns), None)
    identifying = next((name for name in ("url", "image", "key") if name in table.columns), None)
    ids = [
        row[own]
        if own and is_sample_id(row[own])
        else sample_id_of(None if identifying is None else str(row[identifying]), row["caption"])
        for row in table.iter_rows(named=True)
    ]
    # Status and reason of a file are its own business: every row is scored.
    rest = table.drop("sample_id", "status", "reason", strict=False)
    rest = rest.with_columns(
        pl.col(name).cast(pl.Int64, strict=False) for name in NUMBER_COLUMNS if rest.schema.get(name) == pl.String
    )
    rest = rest.with_columns(
        pl.Series(name, [_as_list(cell) for cell in rest[name]], dtype=pl.List(pl.String))
        for name, column in DERIVED_COLUMNS.items()
        if column.dtype == pl.List(pl.String) and rest.schema.get(name) == pl.String
    )
    return rest.with_columns(pl.Series("sample_id", ids, dtype=pl.String))


def _with_caption_reasons(table: pl.DataFrame) -> pl.DataFrame:
    texts, reasons = texts_of(table, "caption")
    for name in ("caption_reason", ROW_REASON):
        if name in table.columns:
            reasons = pl.select(pl.coalesce(table[name], reasons)).to_series()
    table = table.drop(ROW_REASON, strict=False)
    table = table.with_columns(pl.select(caption_texts(pl.lit(texts))).to_series().alias("caption"))
    return table if reasons.null_count() == table.height else table.with_columns(reasons.alias("caption_reason"))


def _as_list(cell: str | None) -> list[str] | None:
    """A text file's cell of several texts: a JSON list, else one text; empty for none. Null where it is empty."""
    if cell is None or not cell.strip():
        return None
    try:
        parsed = json.loads(cell) if cell.lstrip().startswith("[") else [cell]
    except (json.JSONDecodeError, RecursionError):  # a caption that begins with a bracket, or with thousands
        parsed = [cell]
    return [text for text in parsed if isinstance(text, str)]


def load_row_image(input_path: Path, row: Mapping[str, Any]) -> Image.Image:
    """The image of a row: a member of its tar, or the file that it names, relative to `input_path`'s folder.

    Raises ImageRejected(reason).
    """
    if row.get("member") is not None:
        return decode_image(tar_index(Path(row["tar"])).read(row["member"]))
    if not row.get("image"):
        raise ImageRejected("no_image", f"sample {row['sample_id']} names no image")
    path = input_path.parent / row["image"]
    if not path.is_file():
        raise ImageRejected("not_found", f"no file {path}")
    return decode_image(path.read_bytes())


def _write(table: pl.LazyFrame, path: Path, suffix: str, *, raw: bool) -> None:
    if suffix == ".parquet":
        table.sink_parquet(path)
    elif suffix == ".jsonl":
        table.sink_ndjson(path)
    else:
        write_text_table(table.collect(), path, raw=raw, suffix=suffix)

"""Which tables lie in a source; and what lies there instead, with what to do about it."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from curation_assets.stores.text_format import SUFFIXES, table_suffix

_LOOKED_AT = 10_000  # files below a folder that are looked at to say what lies there
_PACKED = (".gz", ".tgz", ".bz2", ".xz", ".zst", ".zip", ".7z", ".rar")


def tables_of(source: Path) -> list[Path]:
    """The tables of a file or folder, sorted by name: those in it, else those in folders KEY=VALUE (Hive's layout).

    Raises ValueError for several formats, and for a table whose log says which of its files count.
    """
    if source.is_file():
        return [source] if table_suffix(source) else []
    _check_no_log(source)
    files = _tables_in(source)
    if not files:
        folders = [path for path in source.iterdir() if "=" in path.name and path.is_dir()]  # Hive's
        files = sorted(table for folder in folders for table in tables_of(folder))
    suffixes = sorted({table_suffix(path) for path in files})
    if len(suffixes) > 1:
        raise ValueError(f"{source}: expected files of one format, got {suffixes}; give one file, or move some")
    return files


def _tables_in(folder: Path) -> list[Path]:
    entries = (path for path in folder.iterdir() if table_suffix(path) and not path.name.startswith("."))
    return sorted(path for path in entries if not path.is_dir())


#: Tables that are more than their files: what lies in them → (their name, how to write one out).
_LOGS = {
    "_delta_log": ("a Delta table", "DuckDB, copy (from delta_scan('FOLDER')) to 'FILE.parquet'"),
    "metadata/*.metadata.json": (
        "an Iceberg table",
        "DuckDB, copy (from iceberg_scan('FOLDER')) to 'FILE.parquet'",
    ),
    ".hoodie": ("a Hudi table", 'spark.read.format("hudi").load(FOLDER).write.parquet("NEW_FOLDER")'),
    "_versions/*.manifest": (
        "a Lance data set",
        'pyarrow.parquet.write_table(lance.dataset(FOLDER).to_table(), "FILE.parquet")',
    ),
}


def _check_no_log(folder: Path) -> None:
    """Raise ValueError for a folder of such a table, or one inside it: its files hold deleted and older rows, too."""
    place = folder.absolute()
    while place.name == "data" or "=" in place.name:
        place = place.parent
    for where in {folder.absolute(), place}:
        for pattern, (name, cure) in _LOGS.items():
            if any(where.glob(pattern)):
                raise ValueError(
                    f"{folder} is {name}: its log says which rows of its files count, and it is not read; expected "
                    f"plain files: write them with {cure}, and give those"
                )


def partition_values(path: Path) -> dict[str, str | None]:
    """Columns that a file has by the folders KEY=VALUE that it lies in (Hive's layout): name → value of all rows."""
    values = {}
    for folder in path.absolute().parents:
        key, mark, value = folder.name.partition("=")
        if not mark:
            break
        values[unquote(key)] = None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
    return values


def no_tables(source: Path) -> ValueError:
    """The error that a source has no tables, tars or images: what was expected, what lies there,
    what to do."""
    expected = f"expected {', '.join(SUFFIXES[:3])} files, got none"
    return ValueError(f"{source}: {expected}; {what_lies_in(source)}")


def what_lies_in(source: Path) -> str:
    """What lies in a source that is no pool, and what to do about it; or what a pool is."""
    if source.is_file():
        return _advice(source.name, source.suffix.lower()) or "text also as .gz; of images give the folder"
    names = {path.name for path in source.iterdir()}
    if names & {"dataset_dict.json", "state.json", "dataset_info.json"}:
        return (
            "it was written by save_to_disk of Hugging Face's datasets: write Parquet files, "
            'load_from_disk(FOLDER).to_parquet("FILE.parquet") of each split, and give those'
        )
    for path in sorted(source.iterdir()):
        if path.is_file() and (advice := _advice(path.name, path.suffix.lower())):
            return advice
    counted = Counter(
        (path.parent.relative_to(source).as_posix(), "tars" if path.suffix == ".tar" else "tables")
        for path in _files_below(source)
        if path.suffix == ".tar" or table_suffix(path)
    )
    if counted:
        (example, kind), _ = min(counted.items())
        listed = ", ".join(f"{folder} ({count} {kind})" for (folder, kind), count in sorted(counted.items())[:5])
        return (
            f"its {kind} lie in {len(counted)} folders below it: {listed}; add each as a pool of its own "
            f"({source / example}), or move the files into one folder"
        )
    return f"a pool is a folder of tars, of tables ({', '.join(SUFFIXES)}, text also as .gz) or of images with captions"


def _files_below(source: Path) -> list[Path]:
    found = []
    for number, path in enumerate(source.rglob("*")):
        if number >= _LOOKED_AT:
            break
        found.append(path)
    return found


def _advice(name: str, suffix: str) -> str | None:
    if name.lower().endswith((".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")):
        return f"{name} is a compressed tar: unpack it to a .tar (images do not shrink), and give its folder"
    if suffix in _PACKED:
        return f"{name} is compressed: unpack it; only .csv.gz, .tsv.gz and .jsonl.gz are read as they are"
    if suffix in (".arrow", ".feather"):
        return f"{name} is an Arrow file: write it as Parquet (polars.read_ipc_stream or read_ipc, then write_parquet)"
    if suffix in (".xlsx", ".xls", ".ods"):
        return f"{name} is a spreadsheet: save it as csv (UTF-8)"
    if suffix == ".json":
        return f'{name} is one JSON document: write a line per sample (.jsonl), such as {{"url": …, "caption": …}}'
    if suffix == ".tar":
        return f"{name} ends in {Path(name).suffix}: tars are files that end in .tar"
    return None


#: Words in names of files and folders → the part of a data set that they stand for.
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval"), "test"),
}


def names_of_tables(source: Path) -> list[str]:
    """Names of the tables and folders of a folder, which may be parts of a data set."""
    if not source.is_dir():
        return []
    entries = sorted(path for path in source.iterdir() if not path.name.startswith("."))
    return [path.name for path in entries if path.is_dir() or table_suffix(path)]


def split_notes(names: Iterable[str]) -> list[str]:
    """A sentence where files or folders of a source are named as several parts of a data set: they are one pool."""
    examples: dict[str, str] = {}
    for name in names:
        for word in re.findall("[a-z]+", name.lower()):
            if word in SPLITS:
                examples.setdefault(SPLITS[word], name)
    if len(examples) < 2:
        return []
    named, parts = ", ".join(sorted(examples.values())), ", ".join(sorted(examples))
    return [
        f"{named} look like parts of a data set ({parts}); they are one pool, and any of them may be selected. To keep "
        "them apart: a folder and a pool for each"
    ]

"""A search of a whole home for a sample that was taken down: every file, hidden ones too, as it lies and decoded."""

import base64
import hashlib
import html
import json
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, quote_plus

import duckdb
import polars as pl

from curation_assets.numeric.identity import sample_id_of
from curation_assets.outputs.report.report import THUMBNAIL_PX
from curation_assets.outputs.thumbnails import jpeg_thumbnail
from curation_assets.stores.images import ImageLimits, decode_image
from tests.support.lineage_pools import jpeg
from tests.torture.homes import CANARY, CANARY_CAPTION, CANARY_URL

#: Of caption and URL, so that a text that was cut or wrapped is met, too. No other sample has them.
FRAGMENTS = ("feather – 50 % off", "canary.example")
MIN_BASE64 = 12  # letters; shorter ones turn up by chance
SUBSET_FILES = (".npy", ".tsv", ".html")  # files that must not even hold its id; tables keep it, with its reason


def forms(text: str) -> set[bytes]:
    """A text as programs write it."""
    texts = {
        text, json.dumps(text)[1:-1], json.dumps(json.dumps(text))[3:-3], json.dumps(text, ensure_ascii=False)[1:-1],
        html.escape(text), html.escape(text, quote=False), quote(text), quote(text, safe=""), quote_plus(text),
        repr(text)[1:-1], text.replace('"', '""'), text.replace("'", "''"),
    }  # fmt: skip
    encoded = {one.encode(code) for one in texts for code in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le")}
    return {*encoded, *_base64(text.encode()), text.encode().hex().encode()}


def _base64(data: bytes) -> set[bytes]:
    """What base64 makes of some bytes, at each of the three offsets at which it looks otherwise, without its ends."""
    inner = {base64.b64encode(bytes(offset) + data)[4:-4] for offset in range(3)}
    return {letters for letters in inner if len(letters) >= MIN_BASE64}


def needles() -> dict[str, set[bytes]]:
    """What → its forms."""
    image = jpeg(CANARY)
    digest = hashlib.sha256(image).hexdigest()
    found = {name: forms(text) for name, text in (("url", CANARY_URL), ("caption", CANARY_CAPTION))}
    found |= {f"part {text!r}": forms(text) for text in FRAGMENTS}
    for name, data in (("image", image), ("thumbnail", _thumbnail(image))):
        middle = data[len(data) // 2 :][:120]  # JPEGs of one encoder begin alike
        found[name] = {middle, *_base64(middle), middle.hex().encode()}
    found["image hash"] = {digest.encode(), bytes.fromhex(digest), base64.b64encode(bytes.fromhex(digest)).rstrip(b"=")}
    return found


def _thumbnail(image: bytes) -> bytes:
    """As the report shows it."""
    return jpeg_thumbnail(decode_image(image, ImageLimits()), THUMBNAIL_PX)


def id_forms() -> set[bytes]:
    """The sample_id as hex, and packed as two 64-bit numbers in either byte order."""
    text = sample_id_of(CANARY_URL, CANARY_CAPTION)
    halves = [int(text[:16], 16), int(text[16:], 16)]
    packed = {b"".join(half.to_bytes(8, order) for half in halves) for order in ("little", "big")}  # type: ignore[arg-type]
    return {text.encode(), bytes.fromhex(text), *packed, *(str(half).encode() for half in halves)}


def traces(home: str, pool: str) -> list[str]:
    """'FILE: what' for everything that is left of the canary, but for its id where tables keep it."""
    left = []
    of_id = id_forms()
    for path in sorted(Path(home).rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        for how, data in decoded(path):
            for what, written in needles().items():
                if any(form in data for form in written):
                    left.append(f"{path.relative_to(home)} ({how}): {what}")  # `denied` reads this form
            if path.suffix in SUBSET_FILES and any(form in data for form in of_id):
                left.append(f"{path.relative_to(home)} ({how}): sample_id")
    return left


def decoded(path: Path) -> Iterator[tuple[str, bytes]]:
    """How a file can be read, and its bytes read so."""
    raw = path.read_bytes()
    yield "bytes", raw
    if path.suffix == ".parquet":
        frame = pl.read_parquet(path, hive_partitioning=False)
        kinds = {name: kind for name, kind in frame.schema.items() if kind == pl.Binary}
        yield "rows", frame.drop(list(kinds)).write_json().encode()
        yield "words", repr(frame.drop(list(kinds)).to_dicts()).encode()
        yield "footer", repr(pl.read_parquet_metadata(path)).encode()
        for name in kinds:
            yield name, b"\0".join(frame[name].drop_nulls())
    elif path.suffix == ".arrow":
        yield "rows", pl.read_ipc(path, memory_map=False).write_json().encode()
    elif path.suffix == ".tar":
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                yield member.name, b"" if file is None else file.read()
    elif raw.startswith(b"SQLite format 3"):
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            yield "rows", "\n".join(connection.iterdump()).encode("utf-8", "surrogateescape")
    elif path.suffix == ".duckdb":
        with duckdb.connect(str(path), read_only=True) as connection:
            yield "views", repr(connection.execute("select * from duckdb_views()").fetchall()).encode()


def certificates(home: str, pool: str) -> list[dict[str, object]]:
    """Every certificate of the pool, oldest first."""
    paths = sorted((Path(home) / "takedown" / "certificates").glob(f"{pool}-*.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

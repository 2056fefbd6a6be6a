"""Images of one's own: Hugging Face Parquet, folders with a table, folders with texts; every row ends with a reason."""

import csv
import io
import json
import struct
import tarfile
import zlib
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from curation_assets.core.settings import Settings, load_settings
from curation_assets.numeric.identity import sample_id_of
from curation_assets.sources.declaration import Pool, add_pool, load_pool
from curation_assets.sources.image_columns import image_cells
from curation_assets.sources.kinds.image_table import understood
from curation_assets.sources.kinds.webdataset import check_images
from curation_assets.sources.local_images import extension_of
from curation_assets.sources.shards import build_samples, discover_shards, download, register_shard, source_fingerprint
from curation_assets.sources.tables import unused_images
from curation_assets.stores.denylist import add_to_denylist
from curation_assets.stores.images import decode_image, read_member
from tests.support.paths import SHARED_DATA
from tests.support.tars import encoded, tar_of

PHOTOS = SHARED_DATA / "photos"
HF_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(tmp_path / "home", "embedded")


def drawn(colour: Any = (200, 30, 30), mode: str = "RGB", form: str = "PNG", size: tuple[int, int] = (40, 30)) -> bytes:
    return encoded(Image.new(mode, size, colour), form)


def animation() -> bytes:
    buffer = io.BytesIO()
    frames = [Image.new("P", (40, 30), colour) for colour in range(3)]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def huge_png() -> bytes:
    """A header of 3.6 billion pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")


def write_hf(path: Path, images: list[Any], features: dict[str, Any] | None = None, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"image": pa.array(images, type=HF_IMAGE), **columns})
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=3)
    return path


def samples_of(pool: Pool, settings: Settings) -> pl.DataFrame:
    """raw/samples of all shards."""
    made = []
    for shard in discover_shards(pool, settings):
        registered = register_shard(pool, shard, settings)
        downloads = download(pool, shard, registered, settings)
        samples = build_samples(pool, shard, registered, downloads, settings)
        made.append(samples)
        assert downloads["reason"].is_null().to_list() == (downloads["status"] == "kept").to_list()
    rows = pl.concat(made)
    assert rows["reason"].is_null().to_list() == (rows["status"] == "kept").to_list()
    return rows


def test_hugging_face_parquet_is_read_as_images(tmp_path: Path, settings: Settings) -> None:
    folder = tmp_path / "set" / "data"
    folder.mkdir(parents=True)
    (folder / "beside.png").write_bytes(drawn((0, 0, 9)))
    cells: list[tuple[Any, str | None]] = [
        ({"bytes": drawn((1, 0, 0)), "path": "1.png"}, None),
        ({"bytes": drawn((9, 80, 20, 3), "CMYK", "JPEG"), "path": None}, None),
        ({"bytes": drawn((9, 80, 20, 3), "RGBA"), "path": None}, None),
        ({"bytes": animation(), "path": "a.gif"}, None),
        ({"bytes": None, "path": "beside.png"}, None),
        ({"bytes": b"", "path": "beside.png"}, None),  # another caption for it
        ({"bytes": b"junk", "path": "j.png"}, "image_undecodable"),
        ({"bytes": drawn(form="JPEG", size=(300, 300))[:-400], "path": None}, "image_truncated"),
        ({"bytes": huge_png(), "path": None}, "image_too_many_pixels"),
        ({"bytes": drawn(form="TIFF"), "path": None}, "image_format_not_allowed"),
        ({"bytes": bytes(50_001), "path": None}, "image_too_many_bytes"),
        ({"bytes": None, "path": "../../x.png"}, "image_path_refused"),
        ({"bytes": None, "path": "/data/uploaded/x.png"}, "image_path_refused"),
        ({"bytes": None, "path": "C:\\x.png"}, "image_path_refused"),
        ({"bytes": None, "path": "nowhere.png"}, "image_not_found"),
        ({"bytes": None, "path": None}, "missing_image"),
        (None, "missing_image"),
        ({"bytes": drawn((1, 0, 0)), "path": "again.png"}, "duplicate_sample_id"),  # same bytes, same caption
    ]
    captions = [[f"caption {number}", "another"] for number in range(len(cells) - 1)]
    captions.append(captions[0])
    write_hf(folder / "train-00000-of-00001.parquet", [cell for cell, _ in cells], caption=pa.array(captions))
    pool = add_pool(settings, "hf", tmp_path / "set", shard_size=4, download={"max_bytes": 50_000})  # finds data/
    assert (pool.kind, pool.has_images, dict(pool.columns)) == (
        "image_table", True, {"image": "image", "caption": "caption"},
    )  # fmt: skip
    assert load_pool(settings, "hf") == pool
    samples = samples_of(pool, settings)
    assert samples["reason"].to_list() == [reason for _, reason in cells]
    assert samples["caption"][:2].to_list() == ["caption 0", "caption 1"]
    kept = samples.filter(pl.col("status") == "kept")
    assert set(zip(kept["width"], kept["height"], strict=True)) == {(40, 30)}
    work = settings.work("hf")
    first = kept.row(0, named=True)
    assert read_member(work / first["tar"], first["member"]) == cells[0][0]["bytes"]  # byte for byte
    assert first["image_sha256"] == first["original_sha256"]
    third = kept.row(2, named=True)
    assert decode_image(read_member(work / third["tar"], third["member"])).mode == "RGB"
    assert kept["member"].str.extract(r"\.(.+)$").to_list() == ["png", "jpg", "png", "gif", "png", "png"]
    shown = understood(pool, pool.source_kind.split(pool, settings))
    assert shown.startswith("Understood: 18 rows, 12 images (10 in Parquet, 2 in files)")
    assert "18 captions in column caption (lists: the first of each)" in shown
    assert "image_path_refused 3, missing_image 2, image_not_found 1" in shown


def test_the_schemas_metadata_names_the_image_column(tmp_path: Path, settings: Settings) -> None:
    """Two columns of its form: the declared one counts, else the usual name, else what --image-column says."""
    image = pa.array([{"bytes": drawn((1, 1, 1)), "path": None}], type=HF_IMAGE)
    mask = pa.array([{"bytes": drawn((2, 2, 2)), "path": None}], type=HF_IMAGE)
    features = {"scan": {"_type": "Image"}, "text": {"_type": "Value"}}
    source = write_hf(tmp_path / "a.parquet", mask.to_pylist(), features, scan=image, text=["a cat"])
    assert add_pool(settings, "stated", source).columns["image"] == "scan"
    plain = write_hf(tmp_path / "b.parquet", image.to_pylist(), None, mask=mask, text=["a cat"])
    assert add_pool(settings, "usual", plain).columns["image"] == "image"
    assert add_pool(settings, "named", plain, columns={"image": "mask"}).columns["image"] == "mask"
    odd = tmp_path / "c.parquet"
    pq.write_table(pa.table({"jpg": [drawn()], "thumbnail": [b"x"], "txt": ["a cat"]}), odd)
    assert add_pool(settings, "binary", odd).columns == {"image": "jpg", "caption": "txt"}
    captions_alone = add_pool(settings, "texts", odd, columns={"image": None})
    assert (captions_alone.kind, captions_alone.has_images) == ("url_table", False)
    with pytest.raises(ValueError, match=r"has no column 'picture' for image; it has .*--image-column"):
        add_pool(settings, "x", odd, columns={"image": "picture"})
    pq.write_table(pa.table({"image": [1], "txt": ["a cat"]}), odd)
    with pytest.raises(ValueError, match="must hold image bytes, struct"):
        add_pool(settings, "x", odd, columns={"image": "image"})
    pq.write_table(pa.table({"image": [drawn()], "label": [3]}), odd)
    with pytest.raises(ValueError, match=r"no caption column; expected one of \['caption', 'text'.*--caption-column"):
        add_pool(settings, "x", odd)
    pq.write_table(pa.table({"image": pa.array([], pa.binary()), "text": pa.array([], pa.string())}), odd)
    with pytest.raises(ValueError, match="holds no rows; expected images with captions"):
        add_pool(settings, "x", odd)


def test_cells_are_read_from_the_row_groups_that_hold_them(tmp_path: Path) -> None:
    images = [{"bytes": bytes([number]), "path": None} for number in range(11)]
    path = write_hf(tmp_path / "a.parquet", images)
    assert [data for data, _ in image_cells(path, "image")] == [bytes([number]) for number in range(11)]
    assert [data for data, _ in image_cells(path, "image", [2, 3, 10])] == [b"\x02", b"\x03", b"\x0a"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"cannot be read as parquet: .*; repair it or leave it out"):
        list(image_cells(path, "image"))


def folder_of_images(folder: Path, names: list[str]) -> Path:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(drawn((60 * number, 0, 0), form="JPEG" if name.endswith("jpg") else "PNG"))
    return folder


def write_csv(path: Path, header: list[str], rows: list[tuple[str, ...]], encoding: str = "utf-8") -> Path:
    with path.open("w", encoding=encoding, newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def test_a_folder_with_a_table_of_file_names(tmp_path: Path, settings: Settings) -> None:
    folder = folder_of_images(tmp_path / "photos", ["a.jpg", "sub/b.png", "c.jpg", "unlisted.jpg"])
    (folder / "way_out.jpg").symlink_to("/etc/hostname")
    (folder / "way_round.jpg").symlink_to("a.jpg")
    rows = [
        ("a.jpg", "a cat", None),
        ("sub/b.png", "a dog", None),
        ("./c.jpg", "a cow", None),
        ("a.jpg", "another caption of it", None),
        ("way_round.jpg", "a link inside", None),
        ("a.jpg", "a cat", "duplicate_sample_id"),
        ("c.jpg", " ", "empty_caption"),
        ("c.jpg", "", "empty_caption"),
        ("absent.jpg", "a hen", "image_not_found"),
        ("sub", "a folder", "image_not_found"),
        ("x" * 300 + ".jpg", "a long name", "image_not_found"),
        ("../photos/a.jpg", "outside", "image_path_refused"),
        (str(folder / "a.jpg"), "absolute", None),
        ((folder / "sub" / "b.png").as_uri(), "a URL of a file", None),
        ("/etc/hostname", "absolute elsewhere", "image_path_refused"),
        ("file:///etc/hostname", "a URL elsewhere", "image_path_refused"),
        ("file://server/a.jpg", "of another machine", "image_path_refused"),
        ("way_out.jpg", "a link", "image_path_refused"),
        ("", "no name", "missing_image"),
    ]
    write_csv(folder / "metadata.csv", ["file_name", "text"], [row[:2] for row in rows])
    write_csv(folder / "notes.csv", ["n"], [("1",)])  # metadata.* goes first
    pool = add_pool(settings, "photos", folder)
    samples = samples_of(pool, settings)
    assert samples["reason"].to_list() == [row[2] for row in rows]
    assert "images of the folder that no row names, left out: " in understood(
        pool, pool.source_kind.split(pool, settings)
    )
    digest = samples["image_sha256"][0]
    assert samples["sample_id"][0] == sample_id_of(f"sha256:{digest}", "a cat")
    # a file that changes or comes back is another version of its shard; the same again is the same
    before = source_fingerprint(pool, "photos-000000", settings)
    assert source_fingerprint(pool, "photos-000000", settings) == before
    (folder / "absent.jpg").write_bytes(drawn((7, 7, 7), form="JPEG"))
    assert source_fingerprint(pool, "photos-000000", settings) != before
    assert samples_of(pool, settings)["status"][8] == "kept"


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_every_kind_of_table_names_files(tmp_path: Path, settings: Settings, suffix: str) -> None:
    folder = folder_of_images(tmp_path / "photos", ["a.jpg", "b.jpg"])
    table = pl.DataFrame({"image": ["a.jpg", "b.jpg"], "caption": ["a café", "a dog"], "n": [1, 2]})
    path = folder / f"list.{suffix}"
    match suffix:
        case "csv":
            path.write_bytes(table.write_csv().encode("latin-1"))
        case "tsv":
            table.write_csv(path, separator="\t")
        case "jsonl":
            table.write_ndjson(path)
        case _:
            table.write_parquet(path)
    if suffix == "csv":
        with pytest.raises(ValueError, match=r"it was read as utf-8; name another with --encoding"):
            add_pool(settings, "p", path)
    pool = add_pool(settings, "p", path, encoding="latin-1" if suffix == "csv" else "utf-8")  # the file, not its folder
    samples = samples_of(pool, settings)
    assert (pool.kind, samples["caption"][0], samples["status"].to_list()) == ("image_table", "a café", ["kept"] * 2)


def test_a_cell_in_another_encoding_names_the_option(tmp_path: Path, settings: Settings) -> None:
    folder = folder_of_images(tmp_path / "p", ["a.jpg", "b.jpg", "c.jpg"])
    (folder / "t.csv").write_bytes("file,caption\na.jpg,a\nb.jpg,b\nc.jpg,café\n".encode("latin-1"))
    pool = add_pool(settings, "p", folder)
    notes = [note.text for note in pool.source_kind.describe(pool, settings, {})]
    assert any("cell_not_decodable 1 (another encoding: --encoding)" in note for note in notes)


def test_texts_beside_images(tmp_path: Path, settings: Settings) -> None:
    folder = folder_of_images(tmp_path / "p", ["a.jpg", "b/c.png", "lonely.jpg", "latin.jpg"])
    (folder / "a.txt").write_text("a cat\n")
    (folder / "b" / "c.txt").write_text("a dog")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / "orphan.txt").write_text("a text alone")
    (folder / ".hidden.jpg").write_bytes(b"")
    pool = add_pool(settings, "beside", folder)
    samples = samples_of(pool, settings)
    assert list(zip(samples["caption"], samples["reason"], strict=True)) == [
        ("a cat", None),
        ("a dog", None),
        (None, "txt_not_utf8"),
        (None, "missing_txt"),
        ("a text alone", "missing_image"),
    ]
    before = source_fingerprint(pool, "beside-000000", settings)
    (folder / "lonely.txt").write_text("no longer")
    assert source_fingerprint(pool, "beside-000000", settings) != before


def test_wrong_folders_are_answered_with_what_was_expected(tmp_path: Path, settings: Settings) -> None:
    folder = folder_of_images(tmp_path / "p", ["a.jpg"])
    with pytest.raises(ValueError, match=r"1 images such as a.jpg and no captions; expected a table .* or a.txt for"):
        add_pool(settings, "x", folder)
    table = write_csv(folder / "t.csv", ["who", "words"], [("x", "y")])
    with pytest.raises(ValueError, match=r"no column of their names; expected one of \['file_name'.*'who', 'words'"):
        add_pool(settings, "x", folder)
    write_csv(table, ["file_name", "caption"], [("x.jpg", "y")])
    with pytest.raises(ValueError, match=r"its column file_name has 'x.jpg', the folder 'a.jpg'"):
        add_pool(settings, "x", folder)
    write_csv(table, ["file_name", "label"], [("a.jpg", "y")])
    with pytest.raises(ValueError, match=r"no caption column; .* got \['file_name', 'label'\]"):
        add_pool(settings, "x", folder)
    table.write_text("file,caption\na.jpg;y\n")
    with pytest.raises(ValueError, match=r"no cell of its column file .* as a.jpg; .*separator comma.*the rows alike"):
        add_pool(settings, "x", folder)
    with pytest.raises(ValueError, match=r"has an image: csv_too_few_cells 1 \(separate the header and the rows alike"):
        discover_shards(add_pool(settings, "x", folder, columns={"image": "file"}), settings)
    table.write_text("file;caption, long\na.jpg;y\n")
    with pytest.raises(ValueError, match=r"got \['file;caption', ' long'\]; .* separator comma.*another: --separator"):
        add_pool(settings, "x", folder)
    table.write_text("a.jpg,y\n")
    with pytest.raises(ValueError, match=r"no header: .* a.jpg; give --no-header --image-column column_0"):
        add_pool(settings, "x", folder)
    (folder / "t.jsonl").write_text("{}")
    with pytest.raises(ValueError, match="files of one format"):
        add_pool(settings, "x", folder)
    (tmp_path / "x.zip").write_bytes(b"PK")
    with pytest.raises(ValueError, match="expected a folder of tars or of images with captions, or a file"):
        add_pool(settings, "x", tmp_path / "x.zip")


def test_a_taken_down_image_is_dropped_and_the_others_stay_as_they_are(tmp_path: Path, settings: Settings) -> None:
    folder = folder_of_images(tmp_path / "p", ["a.jpg", "b.jpg", "c.jpg"])
    write_csv(folder / "metadata.csv", ["file_name", "text"], [(f"{k}.jpg", f"picture {k}") for k in "abc"])
    pool = add_pool(settings, "p", folder)
    before = samples_of(pool, settings)
    add_to_denylist(settings.home, [("sha256", before["image_sha256"][1])])
    after = samples_of(pool, settings)
    assert after["reason"].to_list() == [None, "takedown", None]
    assert after[[0, 2]].equals(before[[0, 2]])
    registered = register_shard(pool, "p-000000", settings)
    assert registered.row(1, named=True)["image_file"] is registered.row(1, named=True)["image_sha256"] is None


def test_formats_go_by_their_first_bytes() -> None:
    assert [extension_of(drawn(form=form)) for form in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")] == [
        "jpg", "png", "gif", "bmp", "webp", "bin",
    ]  # fmt: skip


@pytest.mark.skipif(not (PHOTOS / "000005.tar").is_file(), reason="../shared/data/photos is not here")
def test_photographs_in_a_folder_are_those_of_their_tar(tmp_path: Path, settings: Settings) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    rows = []
    with tarfile.open(PHOTOS / "000005.tar") as tar:
        for member in sorted(name for name in tar.getnames() if name.endswith(".jpg"))[:20]:
            (folder / member).write_bytes(tar.extractfile(member).read())  # type: ignore[union-attr]
            caption = tar.extractfile(member.replace(".jpg", ".txt")).read().decode()  # type: ignore[union-attr]
            rows.append((member, caption))
    write_csv(folder / "captions.csv", ["image", "caption"], rows)
    samples = samples_of(add_pool(settings, "photos", folder), settings)
    assert samples["status"].to_list() == ["kept"] * 20
    assert samples["caption"].to_list() == [caption for _, caption in rows]


def _tars(folder: Path) -> None:
    """With img2dataset's table beside the tar."""
    tar_of(folder / "00000.tar", (("000000000.jpg", drawn(form="JPEG")), ("000000000.txt", b"a red square")))
    row = {"key": ["000000000"], "status": ["success"], "url": [None], "caption": ["a red square"]}
    pl.DataFrame(row, schema_overrides={"url": pl.String}).write_parquet(folder / "00000.parquet")


def _hugging_face(folder: Path) -> None:
    images = pa.array([{"bytes": drawn(), "path": None}], HF_IMAGE)
    pq.write_table(pa.table({"image": images, "text": ["a red square"]}), folder / "part [0].parquet")


def _listed_images(folder: Path) -> None:
    (folder / "a [1].png").write_bytes(drawn())
    pl.DataFrame({"file_name": ["a [1].png"], "caption": ["a red square"]}).write_csv(folder / "metadata.csv")


def _listed_in_jsonl(folder: Path) -> None:
    (folder / "a [1].png").write_bytes(drawn())
    (folder / "metadata [x].jsonl").write_text(json.dumps({"file_name": "a [1].png", "caption": "a red square"}) + "\n")


def _texts_beside(folder: Path) -> None:
    (folder / "a*.png").write_bytes(drawn())
    (folder / "a*.txt").write_text("a red square")


def _captions(suffix: str) -> Any:
    def write(folder: Path) -> None:
        frame = pl.DataFrame({"caption": ["a red square"]})
        {".parquet": frame.write_parquet, ".csv": frame.write_csv}[suffix](folder / f"captions [x]{suffix}")

    return write


@pytest.mark.parametrize("folder", ["exp [a-b] 1 é", "st*r", "what?", "seed=3"])
@pytest.mark.parametrize(
    "write",
    [_tars, _hugging_face, _listed_images, _listed_in_jsonl, _texts_beside, *map(_captions, (".parquet", ".csv"))],
)
def test_a_source_in_a_folder_whose_name_is_a_pattern(
    tmp_path: Path, settings: Settings, folder: str, write: Any
) -> None:
    source = tmp_path / folder
    source.mkdir()
    write(source)
    add_pool(settings, "mine", source)
    pool = load_pool(settings, "mine")
    (shard,) = discover_shards(pool, settings)
    registered = register_shard(pool, shard, settings)
    samples = build_samples(pool, shard, registered, download(pool, shard, registered, settings), settings)
    assert samples.select("caption", "status", "reason").rows() == [("a red square", "kept", None)]
    assert source_fingerprint(pool, shard, settings)


# -- what is brought is used, refused or named ------------------------------------------------------------------------


def image_type(listed: bool = False) -> pa.DataType:
    inner = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.list_(inner) if listed else inner


def brought(path: Path, columns: dict[str, Any], features: dict[str, Any] | None = None) -> Path:
    """A Parquet file of two rows with captions and some more columns."""
    table = pa.table({"caption": ["a cat", "a dog"], **columns})
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)
    return path


CELLS = [drawn((1, 2, 3)), drawn((9, 2, 3))]
STRUCTS = [{"bytes": cell, "path": None} for cell in CELLS]


@pytest.mark.parametrize(
    ("columns", "features", "named"),
    [
        ({"images": pa.array([[one] for one in STRUCTS], image_type(listed=True))}, None, "images"),
        ({"pages": pa.array([[one] for one in STRUCTS], image_type(listed=True))}, None, "pages"),
        ({"views": pa.array([[cell] for cell in CELLS], pa.list_(pa.binary()))}, None, "views"),
        ({"jpg_0": CELLS, "jpg_1": CELLS}, None, "jpg_0 .*jpg_1"),
        ({"front": CELLS, "back": CELLS}, None, "front .*back"),
        ({"scan": pa.array([{"bytes": cell} for cell in CELLS])}, None, "scan"),
        ({"images": [["a.jpg"], ["b.jpg"]]}, None, "images"),
        ({"shots": [["a.jpg"], ["b.jpg"]]}, {"shots": [{"_type": "Image"}]}, "shots"),
        ({"shots": [["a.jpg"], ["b.jpg"]]}, {"shots": {"_type": "List", "feature": {"_type": "Image"}}}, "shots"),
    ],
)
def test_images_that_are_no_column_of_one_image_a_row_are_refused(
    tmp_path: Path, settings: Settings, columns: dict[str, Any], features: dict[str, Any] | None, named: str
) -> None:
    path = brought(tmp_path / "set" / "0.parquet", columns, features)
    with pytest.raises(ValueError, match=rf"{named}.*--image-column"):
        add_pool(settings, "brought", path)
    assert add_pool(settings, "captions", path, columns={"image": None}).kind == "url_table"
    one = next((name for name in columns if pa.types.is_binary(pq.read_schema(path).field(name).type)), None)
    if one is not None:
        assert samples_of(add_pool(settings, "named", path, columns={"image": one}), settings)["has_image"].all()


@pytest.mark.parametrize("name", ["jpg_0", "scan", "content", "thumbnail"])
def test_the_one_column_of_bytes_that_are_images_is_taken(tmp_path: Path, settings: Settings, name: str) -> None:
    other = {"embedding": [b"\1\2\3\4", b"\5\6\7\0"]}
    pool = add_pool(settings, "bytes", brought(tmp_path / "0.parquet", {name: CELLS, **other}))
    assert pool.columns["image"] == name
    assert samples_of(pool, settings)["has_image"].all()


def test_bytes_that_are_no_images_leave_a_pool_of_captions(tmp_path: Path, settings: Settings) -> None:
    columns = {"embedding": [b"\1\2", b"\3\4"], "note": [b"BMW", b"a car"]}
    pool = add_pool(settings, "captions", brought(tmp_path / "0.parquet", columns))
    assert not pool.has_images
    assert unused_images(pool) == []


def test_images_beside_urls_or_beside_others_are_named(tmp_path: Path, settings: Settings) -> None:
    urls = ["http://a.example/0", "http://a.example/1"]
    beside_urls = add_pool(settings, "urls", brought(tmp_path / "0.parquet", {"url": urls, "thumbnail": CELLS}))
    assert beside_urls.kind == "url_table"
    assert ["thumbnail" in note and "--image-column" in note for note in unused_images(beside_urls)] == [True]
    two = {"image": pa.array(STRUCTS, image_type()), "mask": pa.array(STRUCTS, image_type())}
    several = add_pool(settings, "several", brought(tmp_path / "several" / "0.parquet", two))
    assert several.columns["image"] == "image"
    assert ["mask" in note for note in unused_images(several)] == [True]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["http://a.example/0.jpg", "http://a.example/1.jpg"], "holds URLs .*--url-column image"),
        (["/somewhere/0.jpg", "/somewhere/1.jpg"], "names files outside of"),
        (["file:///somewhere/0.jpg", "file:///somewhere/1.jpg"], "names files outside of"),
        (["../0.jpg", "../1.jpg"], "names files outside of"),
    ],
)
def test_a_column_of_images_elsewhere_is_refused(
    tmp_path: Path, settings: Settings, values: list[str], message: str
) -> None:
    path = write_csv(tmp_path / "t.csv", ["image", "caption"], [(value, "a cat") for value in values])
    with pytest.raises(ValueError, match=message):
        add_pool(settings, "elsewhere", path)


def test_names_of_files_that_are_not_there_are_told(tmp_path: Path, settings: Settings) -> None:
    path = write_csv(tmp_path / "t.csv", ["file_name", "caption"], [("0.jpg", "a cat"), ("1.jpg", "a dog")])
    pool = add_pool(settings, "absent", path)
    assert ["file_name" in note for note in unused_images(pool)] == [True]


def test_a_source_without_one_image_is_refused_with_its_reasons(tmp_path: Path, settings: Settings) -> None:
    cells = [{"bytes": None, "path": "gone.png"}, {"bytes": None, "path": None}]
    path = brought(tmp_path / "0.parquet", {"image": pa.array(cells, image_type())})
    with pytest.raises(ValueError, match=r"none of its 2 rows has an image: .*image_not_found 1, missing_image 1"):
        add_pool(settings, "none", path)
    tars = tmp_path / "tars"
    tars.mkdir()
    with tarfile.open(tars / "0.tar", "w") as tar:
        tar.add(path, "0.npy")
        tar.add(path, "0.txt")
    with pytest.raises(ValueError, match=r"no tar has a file that is an image .*\.npy 1"):
        check_images(tars)


@pytest.mark.parametrize("text", ["{key}.caption", "{key}.text", "{key}/caption.txt", "{key}/prompt.text"])
def test_captions_beside_images_by_other_names(tmp_path: Path, settings: Settings, text: str) -> None:
    for key in ("one", "two"):
        image = tmp_path / "set" / (f"{key}/image.png" if "/" in text else f"{key}.png")
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(drawn((len(key), key == "one", 7)))
        (tmp_path / "set" / text.format(key=key)).write_text(f"the {key}")
    samples = samples_of(add_pool(settings, "beside", tmp_path / "set"), settings)
    assert samples.select("caption", "status").rows() == [("the one", "kept"), ("the two", "kept")]

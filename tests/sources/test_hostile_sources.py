"""One bad sample, row or tar: it fails by name, is never lost, and harms no neighbour."""

import csv
import functools
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as checked_with
from hypothesis import strategies as st

from curation_assets.audit.ledger import recorded_ledger
from curation_assets.flow.conservation import success_rate
from curation_assets.scoring.files import read_captions
from curation_assets.selection.rows import Pool
from curation_assets.sources.kinds.webdataset import read_tar_rows, tar_notes
from curation_assets.sources.shards import source_fingerprint
from curation_assets.stages.raw.deliveries import pool_notes, shard_notes
from curation_assets.stores.damaged_tables import ROW_REASON, read_sound_rows
from curation_assets.stores.images import TarIndex
from curation_assets.stores.tar_samples import find_tars, sample_keys
from tests.support.command import curate
from tests.support.hostile_sources import (
    harmed,
    header_offsets,
    pool_of,
    samples_by_shard,
    sound_members,
    stand_ins,
    tar_bytes,
    unaccounted,
    url_of,
)
from tests.support.ledgers import replay
from tests.support.lineage_pools import bring_up_to_date, webdataset_pool
from tests.support.tars import tar_of

#: A tar of a few milliseconds; one folder serves all examples of a test.
FUZZED = checked_with(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SOUND = sound_members(4)
MEMORY = Path("/proc/self/mem")  # a file that nobody can read from its begin, root neither


def reasons(tar: Path) -> list[str | None]:
    return read_tar_rows(tar)["source_reason"].to_list()


def written(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# -- whole tars -------------------------------------------------------------------------------------------------------


def test_a_cut_tar_has_a_row_for_what_is_lost(tmp_path: Path) -> None:
    whole = tar_bytes(sound_members(8))
    between = header_offsets(whole)["0005.jpg"]
    tar = written(tmp_path / "0.tar", whole[:between])
    assert reasons(tar) == [None] * 5 + [f"tar_truncated:byte_{between}"]
    assert sample_keys(tar) == [f"{number:04d}" for number in range(5)]
    table = {"key": [f"{number:04d}" for number in range(8)], "status": ["success"] * 8}
    pl.DataFrame(table).write_parquet(tmp_path / "0.parquet")  # which lists them all: no further row
    assert reasons(tar) == [None] * 5 + ["missing_in_tar"] * 3


def test_a_damaged_header_costs_its_own_sample(tmp_path: Path) -> None:
    whole = bytearray(tar_bytes(SOUND))
    headers = header_offsets(bytes(whole))
    whole[headers["0001.jpg"] + 3] ^= 1
    tar = written(tmp_path / "0.tar", bytes(whole))
    assert reasons(tar) == [None, "missing_image", None, None, f"tar_damaged:byte_{headers['0001.jpg']}"]
    hole = bytearray(tar_bytes(SOUND))
    hole[headers["0001.jpg"] : headers["0002.jpg"]] = bytes(headers["0002.jpg"] - headers["0001.jpg"])
    assert reasons(written(tmp_path / "1.tar", bytes(hole))) == [None] * 3 + [f"tar_damaged:byte_{headers['0001.jpg']}"]


@pytest.mark.parametrize("size", [-1, -512, -513, -(2**40), 2**70])
def test_headers_that_lead_backwards_come_to_an_end(tmp_path: Path, size: int) -> None:
    header = bytearray(tarfile.TarInfo("0000.jpg").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = (size % 256**12 | (size > 0) << 95).to_bytes(
        12, "big"
    )  # base 256; below zero it begins with 0xff
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    index = TarIndex(written(tmp_path / "0.tar", bytes(header) + tar_bytes(SOUND)))
    assert index.damage is not None
    assert set(index.members) == ({"0000.jpg"} if size > 0 else set(SOUND))


def test_a_long_chain_of_headers_comes_to_an_end(tmp_path: Path) -> None:
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 1
    chain = (name.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 3000
    index = TarIndex(written(tmp_path / "0.tar", chain + tar_bytes(SOUND)))
    assert index.damage is not None


def test_tars_that_are_none_are_a_failed_row_each(tmp_path: Path) -> None:
    for name, data, reason in (
        ("0.tar", b"", "tar_truncated:byte_0"),
        ("1.tar", gzip.compress(tar_bytes(SOUND)), "tar_unreadable:gzip"),
        ("2.tar", b"<html>not found</html>\n" * 100, "tar_unreadable:no_tar"),
        ("3.tar", b"BZh91AY&SY", "tar_unreadable:bzip2"),
    ):
        assert reasons(written(tmp_path / name, data)) == [reason]
    assert reasons(written(tmp_path / "4.tar", bytes(10_240))) == []
    rows = read_tar_rows(tmp_path / "1.tar").with_columns(status=pl.lit("failed"), reason=pl.col("source_reason"))
    assert success_rate(rows) is None  # one tar stops no pool


@pytest.mark.skipif(not MEMORY.is_file(), reason="no /proc here")
def test_a_tar_that_cannot_be_read_is_a_failed_row(tmp_path: Path) -> None:
    written(tmp_path / "tars" / "000000.tar", tar_bytes(SOUND))
    (tmp_path / "tars" / "000001.tar").symlink_to(MEMORY)
    pool, settings = pool_of(tmp_path / "home", tmp_path / "tars")
    tables = samples_by_shard(pool, settings)
    assert tables["photos-000000"]["status"].to_list() == ["kept"] * 4
    assert tables["photos-000001"]["reason"].to_list() == ["tar_unreadable:OSError"]
    assert source_fingerprint(pool, "photos-000001", settings) == {"000001.tar": "OSError"}
    assert any("000001.tar cannot be read" in note for note in tar_notes(tmp_path / "tars"))


def test_what_is_called_a_tar_and_is_none_is_named(tmp_path: Path) -> None:
    written(tmp_path / "000000.tar", tar_bytes(SOUND))
    written(tmp_path / "000001.tar", b"")
    written(tmp_path / "000002.tar", gzip.compress(b"x"))
    written(tmp_path / "000003.tar", b"text\n" * 200)
    written(tmp_path / "000004.tar", bytes(1024))
    written(tmp_path / "000005.tar.gz", gzip.compress(b"x"))
    (tmp_path / "x.tar").mkdir()
    (tmp_path / "y.tar").symlink_to(tmp_path / "nothing")
    assert [tar.name for tar in find_tars(tmp_path)] == [f"{number:06d}.tar" for number in range(5)]
    output = curate("pool", "add", "photos", tmp_path, home=tmp_path / "home")
    assert output.exit_code == 0, output.output
    shown = " ".join(output.output.split())
    for sentence in (
        "5 shards",
        "x.tar is a folder, not a tar: left out",
        "y.tar is no file, not a tar: left out",
        "000001.tar has 0 bytes",
        "000002.tar is gzip-compressed: gunzip it",
        "000003.tar is no tar",
        "000004.tar has no members",
        "000005.tar.gz is compressed and left out: unpack it",
    ):
        assert sentence in shown


def test_members_of_one_name_are_failed_rows(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "0.tar", [*SOUND.items(), *SOUND.items(), ("0001.txt", b"a third")])
    repeated = ["0000.jpg", "0001.jpg", "0001.jpg", "0002.jpg", "0003.jpg"]
    assert reasons(path) == [None] * 4 + [f"member_repeated:{name}" for name in repeated]
    assert read_tar_rows(path)["sample_id"].is_unique().all()


def test_a_sample_of_links_is_a_row(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        link = tarfile.TarInfo("0000.jpg")
        link.type, link.linkname = tarfile.LNKTYPE, "0001.jpg"
        tar.addfile(link)
    assert reasons(tmp_path / "0.tar") == ["missing_image"]


def test_a_table_beside_a_tar_that_cannot_be_read_fails_what_rests_on_it(tmp_path: Path) -> None:
    members = {name: data for name, data in SOUND.items() if name != "0001.json"}  # its URL was in the table alone
    tar = written(tmp_path / "0.tar", tar_bytes(members))
    written(tmp_path / "0.parquet", b"PAR1 no table")
    reason = "tar_table_unreadable:0.parquet"
    assert reasons(tar) == [None, reason, None, None, reason]


def test_a_shard_without_rows_is_cut_like_others(tmp_path: Path) -> None:
    settings = webdataset_pool(tmp_path, shards=2)
    written(tmp_path / "tars" / "000007.tar", bytes(10_240))
    ctx = bring_up_to_date(settings)
    for name in ("raw/samples", "filtered/clip", "filtered/sieve_clip"):
        assert ctx.store.read(name, "photos-000007").is_empty()
    assert sum(part.height for part in Pool(ctx.store).parts()) == 16
    assert len(replay(recorded_ledger(ctx.store, "clip"))) == 4  # a quarter of the 14 that raw keeps
    assert pool_notes(ctx) == ["without rows: photos-000007"]
    assert shard_notes(ctx, "photos-000007") == ["photos-000007 has no rows"]


def test_a_pool_without_any_row_says_so(tmp_path: Path) -> None:
    ctx = bring_up_to_date(webdataset_pool(tmp_path, shards=2, per_shard=0))
    assert ctx.store.scan("filtered/clip").collect().is_empty()
    assert pool_notes(ctx)[0].startswith("no shard has a row: nothing can be scored or selected")


# -- one sample -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"n": ' + b"9" * 5000 + b"}", "json_unreadable:0001.json"),
        (b"[" * 100_000, "json_unreadable:0001.json"),
        (b"{broken", "json_unreadable:0001.json"),
        (b"\xff\xfe", "json_unreadable:0001.json"),
        (b'{"url": "\\ud83d"}', "json_url_no_text:0001.json"),
        (b'{"url": ["http://a.example"]}', "json_url_no_text:0001.json"),
        (b'{"url": 5}', "json_url_no_text:0001.json"),
        (b'{"uid": "\\ud83d"}', None),  # no sample_id, as any other text: it is not used
        (b'{"url": NaN, "similarity": NaN}', None),  # as pandas writes null
        (b"[1, 2]", None),  # boxes, say
    ],
)
def test_a_bad_json_fails_its_own_sample(tmp_path: Path, content: bytes, reason: str | None) -> None:
    tar = written(tmp_path / "0.tar", tar_bytes(SOUND | {"0001.json": content}))
    before = read_tar_rows(written(tmp_path / "1.tar", tar_bytes(SOUND)))
    after = read_tar_rows(tar)
    assert after["source_reason"].to_list() == [None, reason, None, None]
    assert after[[0, 2, 3]].equals(before[[0, 2, 3]])


def test_a_url_in_the_table_beside_counts_where_the_json_is_broken(tmp_path: Path) -> None:
    tar = written(tmp_path / "0.tar", tar_bytes(SOUND | {"0001.json": b"{broken"}))
    table = {"key": ["0001"], "status": ["success"], "url": [url_of("0001")]}
    pl.DataFrame(table).write_parquet(tmp_path / "0.parquet")
    assert reasons(tar) == [None] * 4


@pytest.mark.parametrize(
    ("stem", "shown"),
    [
        ("caf\udce9", "name_not_utf8:caf\\xe9.jpg"),
        ("a\nb", "name_control_character:a\\nb.jpg"),
        ("a\x00b", "name_control_character:a\\u0000b.jpg"),
        ("x" * 300 + "\udcff", "name_not_utf8:" + "x" * 79 + "…"),
    ],
)
def test_a_bad_name_fails_its_own_sample(tmp_path: Path, stem: str, shown: str) -> None:
    members = {name.replace("0001", stem): data for name, data in SOUND.items()}
    buffer = io.BytesIO()
    with tarfile.open(
        fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT if "\0" in stem else tarfile.GNU_FORMAT
    ) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = len(data), {"path": name} if "\0" in stem else {}
            tar.addfile(info, io.BytesIO(data))
    after = read_tar_rows(written(tmp_path / "0.tar", buffer.getvalue()))
    assert sorted(after["source_reason"].drop_nulls()) == [shown]
    before = read_tar_rows(written(tmp_path / "1.tar", tar_bytes(SOUND)))
    kept = after.filter(pl.col("source_reason").is_null()).drop("source_row")
    assert kept.equals(before[[0, 2, 3]].drop("source_row"))


def test_captions_of_a_hostile_tar_are_scored(tmp_path: Path) -> None:
    members = {name.replace("0001", "caf\udce9"): data for name, data in SOUND.items()}
    written(tmp_path / "0.tar", tar_bytes(members))
    (tmp_path / "x.tar").mkdir()
    rows = read_captions(tmp_path)
    assert rows["key"].to_list() == ["0000", "caf\\xe9", "0002", "0003"]
    assert rows["member"].null_count() == 1
    with pytest.raises(ValueError, match="gzip-compressed"):
        read_captions(written(tmp_path / "1.tar", gzip.compress(tar_bytes(SOUND))))


# -- anything at all --------------------------------------------------------------------------------------------------


@functools.cache
def sound_samples(folder: Path) -> pl.DataFrame:
    """raw/samples of SOUND."""
    return samples_of(folder / "sound", tar_bytes(SOUND))


def samples_of(folder: Path, tar: bytes) -> pl.DataFrame:
    """raw/samples of one tar."""
    written(folder / "tars" / "000000.tar", tar)
    return samples_by_shard(*pool_of(folder / "home", folder / "tars"))["photos-000000"]


@pytest.fixture
def reached() -> Iterator[list[bool]]:
    """Per example whether its damage changed a row: where none of them does, a test of damage shows nothing."""
    examples: list[bool] = []
    yield examples
    assert any(examples), f"none of {len(examples)} examples was read otherwise than the sound one"


def compare(folder: Path, damaged: bytes, changed: set[str], reached: list[bool]) -> pl.DataFrame:
    """raw/samples of a damaged tar; every row accounted for, and none but the `changed` URLs other than in SOUND."""
    before, after = sound_samples(folder), samples_of(folder / "damaged", damaged)
    assert unaccounted(after) == 0
    assert after.height >= before.height or stand_ins(after)
    assert harmed(before, after, changed) == 0, after.select("url", "reason").rows()
    reached.append(harmed(before, after) > 0)
    return after


@FUZZED
@given(cut=st.integers(0, len(tar_bytes(SOUND)) - 1))
def test_tars_cut_anywhere(tmp_path: Path, reached: list[bool], cut: int) -> None:
    whole = tar_bytes(SOUND)
    ends = {name: offset + 512 + len(SOUND[name]) for name, offset in header_offsets(whole).items()}
    compare(tmp_path, whole[:cut], {url_of(name) for name, end in ends.items() if end > cut}, reached)


@FUZZED
@given(data=st.data())
def test_tars_with_any_bytes_in_their_headers(tmp_path: Path, reached: list[bool], data: st.DataObject) -> None:
    whole = bytearray(tar_bytes(SOUND))
    headers = header_offsets(bytes(whole))
    name = data.draw(st.sampled_from(sorted(headers)))
    start = data.draw(st.integers(0, 511))
    patch = data.draw(st.binary(min_size=1, max_size=512 - start))
    whole[headers[name] + start : headers[name] + start + len(patch)] = patch
    compare(tmp_path, bytes(whole), {url_of(name)}, reached)


@FUZZED
@given(data=st.binary(max_size=4000))
def test_tars_of_any_bytes(tmp_path: Path, reached: list[bool], data: bytes) -> None:
    assume(data.strip(b"\0") or len(data) < 512)  # a whole block of zeros ends a tar of no members
    after = compare(tmp_path, data, {url_of(name) for name in SOUND}, reached)
    assert after.height


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["url", "uid", "caption"]), inner),
    max_leaves=6,
)


@pytest.mark.slow
@FUZZED
@given(content=st.binary(max_size=80) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_json_of_any_kind(tmp_path: Path, reached: list[bool], content: bytes) -> None:
    # a pool whose tar brings ids of its own is another pool: each content has its home
    home = tmp_path / hashlib.sha256(content).hexdigest()[:16]
    compare(home, tar_bytes(SOUND | {"0002.json": content}), {url_of("0002")}, reached)


@FUZZED
@given(content=st.binary(max_size=80))
def test_captions_of_any_bytes(tmp_path: Path, reached: list[bool], content: bytes) -> None:
    compare(tmp_path, tar_bytes(SOUND | {"0002.txt": content}), {url_of("0002")}, reached)


@FUZZED
@given(cells=st.lists(st.tuples(*[st.text(st.characters(codec="utf-8"), max_size=8)] * 2), min_size=1, max_size=6))
def test_quoted_csv_is_read_as_it_was_written(tmp_path: Path, cells: list[tuple[str, str]]) -> None:
    path = tmp_path / "rows.csv"
    quoted = [",".join('"' + cell.replace('"', '""') + '"' for cell in row) for row in cells]
    path.write_bytes(("a,b\n" + "\n".join(quoted) + "\n").encode())
    assert read_sound_rows(path).rows() == [(a or None, b or None, None) for a, b in cells]


@FUZZED
@given(line=st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), place=st.integers(0, 4))
def test_csv_with_a_line_of_any_bytes(tmp_path: Path, line: bytes, place: int) -> None:
    lines = [f"caption {number},{number}".encode() for number in range(5)]
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\n".join([b"a,b,unused", *(b"%s,x" % row for row in lines[:place]), line,
                                 *(b"%s,x" % row for row in lines[place + 1 :])]) + b"\n")  # fmt: skip
    rows = read_sound_rows(path, ["a", "b"])
    assert rows.height == 5
    others = [(f"caption {number}", str(number)) for number in range(5) if number != place]
    assert [row[:2] for number, row in enumerate(rows.rows()) if number != place] == others
    text = line.decode("utf-8", "surrogateescape")
    try:
        own = next(csv.reader([f"{text}\n"], strict=True)) if '"' in text else text.removesuffix("\r").split(",")
    except csv.Error:
        own = []
    if len(own) == 3 and not any("\udc80" <= letter <= "\udcff" for letter in "".join(own[:2])):
        assert rows.row(place)[:2] == (own[0] or None, own[1] or None)
    elif line != b"":  # an empty line is a row without cells
        assert None in rows.row(place)[:2]
        assert rows[ROW_REASON][place] is not None


def test_rows_that_are_no_csv_fail_by_their_line(tmp_path: Path) -> None:
    lines = ["url,caption", "u0,a", 'u1,"b', "u2,c,d", 'u3,"e, f"', 'u4,5" of "g"', "u5"]
    path = written(tmp_path / "rows.csv", "\n".join(lines).encode() + b"\nu6,\xe9t\xe9\n")
    assert read_sound_rows(path).rows() == [
        ("u0", "a", None),
        (None, None, "csv_malformed:line_3"),
        (None, None, "csv_too_many_cells:line_4"),
        ("u3", "e, f", None),
        ("u4", '5" of "g"', None),
        (None, None, "csv_too_few_cells:line_7"),
        ("u6", None, "cell_not_decodable:caption"),
    ]
    output = curate("pool", "add", "links", path, home=tmp_path / "home")
    assert "cell_not_decodable 1, csv_malformed 1, csv_too_few_cells 1, csv_too_many_cells 1" in " ".join(
        output.output.split()
    )


def test_a_csv_in_another_encoding_is_refused_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes("caption\nété\nnoël\nair\n".encode("latin-1"))
    with pytest.raises(ValueError, match="--encoding"):
        read_sound_rows(path)


def test_cells_that_hold_no_text_fail_their_rows(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    pl.DataFrame(
        {"url": ["http://a.example/0"], "caption": [None]}, schema_overrides={"caption": pl.String}
    ).write_parquet(tmp_path / "tables" / "0.parquet")
    pl.DataFrame({"url": [["http://a.example/1"], None], "caption": [b"\xff", b"sound"]}).write_parquet(
        tmp_path / "tables" / "1.parquet"
    )
    pool, settings = pool_of(tmp_path / "home", tmp_path / "tables")
    samples = pl.concat(samples_by_shard(pool, settings).values())
    assert samples["reason"].to_list() == ["empty_caption", "cell_no_text:caption", "no_url"]

"""What people deliver: tars that are cut, damaged or none, samples with names, json or captions of any bytes, csv."""

import csv
import gzip
import random
import tarfile
from pathlib import Path

import polars as pl

from curation_assets.flow.conservation import violations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.stages.raw.deliveries import pool_notes
from curation_assets.stores.caption_text import caption_text
from tests.support.hostile_sources import (
    Members,
    harmed,
    header_offsets,
    kept_rows,
    pool_of,
    samples_by_shard,
    sound_members,
    stand_ins,
    tar_bytes,
    unaccounted,
    url_of,
)
from tests.support.lineage_pools import bring_up_to_date, webdataset_pool
from tests.torture.outcome import Fault, Outcome

SHARD, NEIGHBOUR = "photos-000000", "photos-000001"
SAMPLES = 5
NASTY_JSON = (
    b'{"url": ' + b"9" * 5000 + b"}",
    b'{"url": "\\ud83d"}',
    b'{"url": NaN, "uid": Infinity}',
    b'{"url": ["a", "b"]}',
    b'{"url": {"a": 1}, "uid": 7}',
    b"[" * 50_000,
    b'{"a":' * 20_000,
    b"\xef\xbb\xbf{}",
    b'{"url": "http://host.example/\\u0000"}',
    b"null",
    b"",
)


def _cut(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    members = sound_members(SAMPLES)
    whole = tar_bytes(members)
    cut = rng.randrange(len(whole))
    headers = header_offsets(whole)
    ends = {name: headers[name] + 512 + len(data) for name, data in members.items()}
    _try_tar(folder, outcome, whole, whole[:cut], {url_of(name) for name, end in ends.items() if end > cut})


def _flip_headers(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    whole = tar_bytes(sound_members(SAMPLES))
    headers = header_offsets(whole)
    damaged = bytearray(whole)
    chosen = rng.sample(sorted(headers), rng.randint(1, 4))
    for name in chosen:  # one bit of each: two could leave the header's sum as it is
        damaged[headers[name] + rng.randrange(512)] ^= 1 << rng.randrange(8)
    _try_tar(folder, outcome, whole, bytes(damaged), {url_of(name) for name in chosen})


def _any_json(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    data = rng.choice([*NASTY_JSON, rng.randbytes(rng.randrange(60)), _json_with_any_text(rng)])
    _try_member(folder, rng, outcome, "json", data)


def _json_with_any_text(rng: random.Random) -> bytes:
    text = "".join(f"\\u{rng.randrange(0x10000):04x}" for _ in range(rng.randrange(1, 6)))
    return f'{{"url": "http://host.example/{text}", "uid": "{text}"}}'.encode()


def _any_caption(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    data = rng.choice([rng.randbytes(rng.randrange(60)), bytes(2**20 + 1), b"\xed\xa0\xbd", b"a\0b", b"", b" \n"])
    _try_member(folder, rng, outcome, "txt", data)


def _any_name(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    sound = sound_members(SAMPLES)
    number = rng.randrange(SAMPLES)
    letters = bytes(rng.choice([*range(1, 46), *range(48, 256)]) for _ in range(rng.randrange(1, 40)))  # no . and /
    stem = "n" + letters.decode("utf-8", "surrogateescape")
    members = {name.replace(f"{number:04d}", stem): data for name, data in sound.items()}
    _try_tar(folder, outcome, tar_bytes(sound), tar_bytes(members), {url_of(f"{number:04d}")})


def _repeated_member(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    sound, again = tar_bytes(sound_members(SAMPLES)), sound_members(1, first=rng.randrange(SAMPLES))
    end = max(header_offsets(sound).values())
    with_end = sound[: sound.index(bytes(1024), end + 512)]  # where the end-of-archive block begins, or before
    with_end += bytes(-len(with_end) % 512)
    _try_tar(folder, outcome, sound, with_end + tar_bytes(again), set(), more_rows=1)


def _try_member(folder: Path, rng: random.Random, outcome: Outcome, suffix: str, data: bytes) -> None:
    members: Members = sound_members(SAMPLES)
    name = f"{rng.randrange(SAMPLES):04d}.{suffix}"
    _try_tar(folder, outcome, tar_bytes(members), tar_bytes(members | {name: data}), {url_of(name)})


def _try_tar(
    folder: Path, outcome: Outcome, sound: bytes, damaged: bytes, changed: set[str], *, more_rows: int = 0
) -> None:
    """Read a tar as it was and as it is now, beside a sound one. `changed`: URLs of samples that the fault is about."""
    tables = {}
    for when, data in (("before", sound), ("after", damaged)):
        source = folder / when / "tars"
        source.mkdir(parents=True)
        (source / "000000.tar").write_bytes(data)
        (source / "000001.tar").write_bytes(tar_bytes(sound_members(2, first=100)))
        tables[when] = samples_by_shard(*pool_of(folder / when / "home", source))
    before, after = tables["before"], tables["after"]
    rows = before[SHARD].height + more_rows
    missing = rows - after[SHARD].height
    covered = rows if missing <= 0 or stand_ins(after[SHARD]) else rows - missing
    is_same_height = before[SHARD].height == after[SHARD].height
    outcome.faults_reached += not is_same_height or kept_rows(before[SHARD]) != kept_rows(after[SHARD])
    outcome.count_rows(rows, covered - unaccounted(after[SHARD]))
    outcome.count_rows(before[NEIGHBOUR].height, after[NEIGHBOUR].height - unaccounted(after[NEIGHBOUR]))
    outcome.harmed_neighbours += harmed(before[SHARD], after[SHARD], changed)
    outcome.harmed_neighbours += harmed(before[NEIGHBOUR], after[NEIGHBOUR])
    assert covered == rows, (rows, after[SHARD]["reason"].to_list())


def _no_tars_among_tars(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """A whole pool up to its subsets: shards without rows, and tars that are none."""
    alone = bring_up_to_date(webdataset_pool(folder / "alone"))
    settings = webdataset_pool(folder / "among")
    tars = folder / "among" / "tars"
    with tarfile.open(tars / "000003.tar", "w"):
        pass
    others = [b"", gzip.compress((tars / "000000.tar").read_bytes()), b"no tar\n" * 200, rng.randbytes(3000)]
    rng.shuffle(others)
    for number, data in enumerate(others, start=4):
        (tars / f"{number:06d}.tar").write_bytes(data)
    (tars / "x.tar").mkdir()
    ctx = bring_up_to_date(settings)
    samples = ctx.store.scan("raw/samples").collect()
    registered = alone.store.scan("raw/samples").collect()
    outcome.count_rows(registered.height + len(others), samples.height - unaccounted(samples))
    outcome.harmed_neighbours += harmed(registered, samples)
    named = " ".join(pool_notes(ctx))
    outcome.faults_missed += sum(
        name not in named for name in ("x.tar", "photos-000003", *(f"{number:06d}.tar" for number in range(4, 8)))
    )
    outcome.faults_reached += samples.height - registered.height  # a failed row for each that is none
    _compare_subsets(alone, ctx, outcome)
    assert not (lost := _violations(ctx, "filtered/subsets")), lost


def _compare_subsets(alone: PoolContext, ctx: PoolContext, outcome: Outcome) -> None:
    """Rows that raw keeps are the same, and so is what policies keep of them."""
    for path in sorted(alone.store.folder_path("filtered/subsets").glob("*.npy")):
        same = path.read_bytes() == (ctx.store.folder_path("filtered/subsets") / path.name).read_bytes()
        outcome.harmed_neighbours += not same


def _violations(ctx: PoolContext, name: str) -> list[str]:
    return violations(ctx, tables_of(ctx)[name], None)


def _any_csv(folder: Path, rng: random.Random, outcome: Outcome) -> None:
    """A line of a csv with an unused column, replaced: its row is what `csv` makes of it, or fails; the lines around it
    are what they were."""
    lines = [f'http://host.example/{number}.jpg,"a photo, of thing {number}",x'.encode() for number in range(8)]
    place = rng.randrange(len(lines))
    alphabet = b'",,""ab\xe9\xff\x00\r;\t '
    line = bytes(rng.choice(alphabet) for _ in range(rng.randrange(1, 30))) if rng.random() < 0.7 else rng.randbytes(20)
    line = line.replace(b"\n", b"")
    tables = {}
    for when, content in (("before", lines), ("after", [*lines[:place], line, *lines[place + 1 :]])):
        source = folder / when / "rows.csv"
        source.parent.mkdir(parents=True)
        source.write_bytes(b"\n".join([b"link,caption,more", *content]) + b"\n")
        tables[when] = pl.concat(samples_by_shard(*pool_of(folder / when / "home", source)).values())
    before, after = (tables[when].with_columns(url=pl.col("caption")) for when in ("before", "after"))
    outcome.count_rows(before.height, after.height - unaccounted(after))
    outcome.harmed_neighbours += harmed(before, after, {f"a photo, of thing {place}"})
    assert after.height == before.height, (line, after["reason"].to_list())
    own, expected = after.row(place, named=True), _caption_of_line(line)
    outcome.faults_reached += own["caption"] != before["caption"][place]
    assert own["caption"] == expected, (line, own)
    assert expected is not None or own["status"] != "kept", (line, own)


def _caption_of_line(line: bytes) -> str | None:
    """The second of three cells of a line that stands alone; None where it is no such row."""
    text = line.decode("utf-8", "surrogateescape")
    try:
        cells = next(csv.reader([f"{text}\n"], strict=True)) if '"' in text else text.removesuffix("\r").split(",")
        return caption_text(cells[1]) if len(cells) == 3 and cells[1] and cells[1].encode() else None
    except (csv.Error, UnicodeEncodeError, StopIteration):
        return None


FAULTS = [
    Fault("tar cut at a random byte", "rows before the cut as they were, one failed row for the rest", _cut, 6, 400),
    Fault("bits flipped in a tar's headers", "read on at the next sound header", _flip_headers, 6, 400),
    Fault("json of any bytes", "the sample fails, by name", _any_json, 8, 400),
    Fault("captions of any bytes", "the sample fails or has that caption", _any_caption, 6, 300),
    Fault("member names of any bytes", "the sample fails, by name", _any_name, 6, 300),
    Fault("a second member of one name", "a failed row, by name", _repeated_member, 3, 50),
    Fault("tars that are none, or empty", "a failed row each, or a shard without rows", _no_tars_among_tars, 1, 20),
    Fault("csv rows of any bytes", "the row fails, with its line", _any_csv, 10, 400),
]

"""A source cut into shards part by part: ids, numbers and repeats as a twin that holds all rows finds them."""

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.numeric.identity import sample_id_of
from curation_assets.sources import split as split_module
from curation_assets.sources.split import Reading, Split, read_split, split_once
from curation_assets.stores.caption_text import is_blank
from tests.torture.faults.bit_flips import flip_bit

UIDS = st.sampled_from([None, "0" * 32, "f" * 32, "F" * 32, "f" * 31, "f" * 32 + "\n"])
URLS = st.sampled_from([None, "", "http://a.example/1", "http://a.example/2"])
CAPTIONS = st.sampled_from([None, "", " ", "a dog", "a cat"])
REASONS = st.sampled_from([None, None, None, "csv_malformed:line_3"])
DIGESTS = st.sampled_from([None, "ab" * 32, "cd" * 32])
ROWS = st.lists(st.tuples(CAPTIONS, URLS, UIDS, REASONS, DIGESTS), max_size=20)
NAMES = ("caption", "url", "uid", "source_reason", "image_sha256")


def twin(rows: list[tuple[str | None, ...]], has_images: bool) -> list[tuple[object, ...]]:
    """sample_id, source_row, url, caption, is_duplicate, source_reason of every row."""
    seen, found = set[str](), []
    for number, (caption, url, uid, reason, digest) in enumerate(rows):
        image = f"sha256:{digest}" if digest else f"row#{number}"
        sample_id = sample_id_of(url or (image if has_images else None), caption, uid)
        is_usable = reason is None and caption is not None and not is_blank(caption)
        found.append((sample_id, number, url, caption, is_usable and sample_id in seen, reason))
        seen |= {sample_id} if is_usable else set()
    return found


@given(ROWS, st.integers(1, 7), st.integers(1, 9), st.booleans())
@settings(max_examples=30)
def test_a_split_is_what_a_twin_finds_that_holds_all_rows(
    rows: list[tuple[str | None, ...]], part: int, shard_size: int, has_images: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        frame = pl.DataFrame(rows, schema=dict.fromkeys(NAMES, pl.String), orient="row")
        frame = frame if has_images else frame.drop("image_sha256")
        parts = [frame[start : start + part] for start in range(0, max(1, frame.height), part)]
        # a source may leave out the reasons of a part that has none
        parts = [one if one["source_reason"].count() else one.drop("source_reason") for one in parts]
        made = split_once(Path(name), "x", Path(name), Reading([], {}, lambda: iter(parts)), "p", shard_size, None)
        shards = sorted(made.rows)
        assert [made.rows[shard] for shard in shards] == [
            min(shard_size, len(rows) - start) for start in range(0, len(rows), shard_size)
        ]
        found = [
            row
            for shard in shards
            for row in made.part(shard)
            .select("sample_id", "source_row", "url", "caption", "is_duplicate", "source_reason")
            .rows()
        ]
        assert found == twin(rows, has_images)
        assert sorted(path.name for path in Path(name).iterdir()) == ["split-x"]
        assert sorted(path.name for path in made.folder.iterdir()) == [
            *(f"{shard}.parquet" for shard in shards),
            "split.json",
        ]


def small_split(folder: Path) -> Split:
    rows = pl.DataFrame(
        {"caption": ["a", "b", "a"], "url": ["u"] * 3, "uid": [None] * 3}, schema_overrides={"uid": pl.String}
    )
    return split_once(folder, "x", folder, Reading([], {}, lambda: [rows]), "p", 1, None)


def test_rows_of_many_shards_read_the_list_of_shards_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small_split(tmp_path)
    monkeypatch.setattr(split_module, "read_sealed_json", lambda path: pytest.fail(f"{path} was read again"))
    for shard in made.rows:
        assert small_split(tmp_path).part(shard).height == 1


def test_a_damaged_split_is_seen_and_made_again(tmp_path: Path) -> None:
    file = small_split(tmp_path).folder / "split.json"
    file.write_text(file.read_text().replace("p-000001", "p-000009"))
    with pytest.raises(ValueError, match="is absent or damaged"):
        read_split(file.parent)
    assert list(small_split(tmp_path).rows) == ["p-000000", "p-000001", "p-000002"]


@pytest.mark.parametrize("damage", ["a flipped bit", "no Parquet", "absent"])
def test_a_damaged_part_is_named_with_what_to_do(tmp_path: Path, damage: str) -> None:
    made = small_split(tmp_path)
    path = made.folder / "p-000001.parquet"
    if damage == "a flipped bit":
        flip_bit(path, random.Random(3))
    else:
        path.write_bytes(b"x") if damage == "no Parquet" else path.unlink()
    with pytest.raises(
        ValueError, match=r"p-000001\.parquet, a part of the source, is damaged or absent; delete .*--repair"
    ):
        made.part("p-000001")
    assert made.part("p-000000").height == 1


def test_a_source_that_cannot_be_read_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[pl.DataFrame]:
        yield pl.DataFrame({"caption": ["a"], "url": ["u"], "uid": ["0" * 32]})
        raise ValueError("the second file is none")

    with pytest.raises(ValueError, match="the second file is none"):
        split_once(tmp_path, "x", tmp_path, Reading([], {}, broken), "p", 1, None)
    assert not list(tmp_path.iterdir())

"""Shards that a person names: keys, numbers, ranges; what names none is an error."""

import pytest

from curation_assets.operations.shard_ranges import shards_in

SHARDS = [f"photos-{number:06d}" for number in (0, 1, 2, 5, 7)]


@pytest.mark.parametrize(
    ("selections", "numbers"),
    [
        (["photos-000001"], [1]),
        (["1"], [1]),
        (["000001"], [1]),
        (["0..2"], [0, 1, 2]),
        (["photos-000001..photos-000005"], [1, 2, 5]),
        (["1..photos-000005"], [1, 2, 5]),
        (["3..6"], [5]),  # ends that are no shards
        (["5..999999"], [5, 7]),
        (["7", "0..1", "1..2"], [0, 1, 2, 7]),  # sorted, each once
        ([" 0 .. 1 "], [0, 1]),
    ],
)
def test_keys_numbers_and_ranges(selections: list[str], numbers: list[int]) -> None:
    assert shards_in(selections, SHARDS) == [f"photos-{number:06d}" for number in numbers]


def test_ranges_across_a_million() -> None:
    shards = ["photos-000007", "photos-999999", "photos-x01000000", "photos-x01000001"]
    assert shards_in(["999999..1000000"], shards) == shards[1:3]
    assert shards_in(["photos-x01000001", "7"], shards) == [shards[0], shards[3]]


@pytest.mark.parametrize(
    ("selection", "sentence"),
    [
        ("3", r"'3': the pool has none of them; it has 5, photos-000000 to photos-000007"),
        ("8..9", "the pool has none of them"),
        ("5..1", r"the range ends before it begins; write 1\.\.5"),
        ("5..", r"take a key \(photos-000003\), a number \(3\) or a range with both ends \(3\.\.17\), got '5\.\.'"),
        ("a", "take a key"),
        ("-1", "take a key"),
        ("1-5", "take a key"),
        ("1..2..3", "take a key"),
        ("", "take a key"),
        ("scenes-000001", "keys of this pool begin with 'photos'"),
    ],
)
def test_what_names_no_shard_is_an_error(selection: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        shards_in([selection], SHARDS)


def test_a_pool_without_shards_has_none_to_name() -> None:
    with pytest.raises(ValueError, match="the pool has no shards"):
        shards_in(["1"], [])

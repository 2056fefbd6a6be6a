"""Near-duplicates by PDQ, and which one of them stays: best, hard, easy, random."""

import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.flow.options import DuplicateSettings
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.scoring.derived import derive_column
from curation_assets.stages.fused.duplicates import find_duplicates

IDS = [f"{number:032x}" for number in range(6)]


def rows(n: int, **columns: list[object]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "sample_id": IDS[:n], "shard": "photos-000000", "source_row": list(range(n)),
            "image_sha256": [f"file {number}" for number in range(n)], "width": 10,
            "height": [10 + number for number in range(n)],
            "status": "kept", "reason": pl.Series([None] * n, dtype=pl.String),
            **columns, **{f"{name}_reason": pl.Series([None] * n, dtype=pl.String) for name in columns},
        }
    )  # fmt: skip


def pdq(*bits: int) -> str:
    """64 hex digits with these bits set."""
    return f"{sum(1 << bit for bit in bits):064x}"


def test_pdq_hashes_within_the_limit_are_one_image() -> None:
    near = pdq(*range(0, 248, 8))  # 31 bits, spread over all bands
    far = pdq(*range(0, 256, 8))  # 32 bits
    table = rows(6, pdq_hash=[pdq(), near, far, pdq(), "", ""])
    found = find_duplicates(table, DuplicateSettings(perceptual_bits=None, pdq_bits=31))
    # most pixels first: 5 and 4 have no hash, 3 equals 0, 2 is one bit from 1; 1 is 31 from 3
    assert found["quality"].to_list() == [0, 0, 1, 1, 1, 1]
    assert found["representative"].to_list() == [IDS[3], IDS[2], IDS[2], IDS[3], IDS[4], IDS[5]]
    assert found["kind"].to_list() == ["pdq", "pdq", None, None, None, None]
    assert found["distance"].to_list()[:2] == [0, 1]


def test_many_equal_hashes_leave_the_best_one() -> None:
    table = rows(6, pdq_hash=[pdq()] * 5 + [pdq(1)])
    found = find_duplicates(table, DuplicateSettings(perceptual_bits=None, pdq_bits=0))
    assert found["quality"].to_list() == [0, 0, 0, 0, 1, 1]
    assert set(found["representative"][:4]) == {IDS[4]}
    near = find_duplicates(table, DuplicateSettings(perceptual_bits=None, pdq_bits=1))
    assert near["quality"].to_list() == [0, 0, 0, 0, 0, 1]
    assert set(near["representative"]) == {IDS[5]}


def test_which_one_stays() -> None:
    """Three unit vectors 1° and 3° to both sides of each other: one cluster, whose centre is nearest to the middle."""
    angles = np.radians([0.0, 1.0, 4.0])
    vectors = [[float(np.cos(angle)), float(np.sin(angle))] for angle in angles]
    table = rows(3, image_embedding=vectors)

    def kept(keep: str) -> list[int]:
        settings = DuplicateSettings(perceptual_bits=None, cosine=0.9, keep=keep)
        return find_duplicates(table, settings)["quality"].to_list().index(1.0)  # type: ignore[no-any-return]

    assert kept("best") == 2, "most pixels"
    assert kept("easy") == 1, "the centre lies at 1.67°"
    assert kept("hard") == 2
    draws = [unit_interval_of(one, "duplicates") for one in IDS[:3]]
    assert kept("random") == int(np.argmax(draws))


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match="set cosine"):
        DuplicateSettings(keep="hard")
    with pytest.raises(ValueError, match="prefer ranks with keep: best"):
        DuplicateSettings(keep="random", prefer="signals.clip_score")
    with pytest.raises(ValueError, match="pdq_bits"):
        DuplicateSettings(pdq_bits=32)


def test_a_flat_image_has_no_pdq_hash_and_a_copy_has_a_near_one() -> None:
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 255, (12, 12, 3), dtype=np.uint8)).resize(
        (256, 256), Image.Resampling.BICUBIC
    )
    images = [picture, picture.resize((200, 200)), Image.new("RGB", (256, 256), "white")]
    samples = pl.DataFrame({"sample_id": IDS[:3], "number": [0, 1, 2]})
    made = derive_column("pdq_hash", samples, None, load_image=lambda row: images[row["number"]])["pdq_hash"].to_list()
    assert len(made[0]) == len(made[1]) == 64
    assert (int(made[0], 16) ^ int(made[1], 16)).bit_count() <= 31
    assert made[2] == ""

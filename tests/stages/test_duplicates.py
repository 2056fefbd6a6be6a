"""Near-duplicates by PDQ, and which one of them stays: best, hard, easy, random."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from curation_assets.flow.options import DuplicateSettings
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.scoring.derived import derive_column
from curation_assets.stores.shard_store import ShardStore
from tests.support.near_duplicates import duplicates_of

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
    found = duplicates_of(table, DuplicateSettings(perceptual_bits=None, pdq_bits=31))
    # most pixels first: 5 and 4 have no hash, 3 equals 0, 2 is one bit from 1; 1 is 31 from 3
    assert found["quality"].to_list() == [0, 0, 1, 1, 1, 1]
    assert found["representative"].to_list() == [IDS[3], IDS[2], IDS[2], IDS[3], IDS[4], IDS[5]]
    assert found["kind"].to_list() == ["pdq", "pdq", None, None, None, None]
    assert found["distance"].to_list()[:2] == [0, 1]


def test_many_equal_hashes_leave_the_best_one() -> None:
    table = rows(6, pdq_hash=[pdq()] * 5 + [pdq(1)])
    found = duplicates_of(table, DuplicateSettings(perceptual_bits=None, pdq_bits=0))
    assert found["quality"].to_list() == [0, 0, 0, 0, 1, 1]
    assert set(found["representative"][:4]) == {IDS[4]}
    near = duplicates_of(table, DuplicateSettings(perceptual_bits=None, pdq_bits=1))
    assert near["quality"].to_list() == [0, 0, 0, 0, 0, 1]
    assert set(near["representative"]) == {IDS[5]}


def test_which_one_stays() -> None:
    """Three unit vectors 1° and 3° to both sides of each other: one cluster, whose centre is nearest to the middle."""
    angles = np.radians([0.0, 1.0, 4.0])
    vectors = [[float(np.cos(angle)), float(np.sin(angle))] for angle in angles]
    table = rows(3, image_embedding=vectors)

    def kept(keep: str) -> list[int]:
        settings = DuplicateSettings(perceptual_bits=None, cosine=0.9, keep=keep)
        return duplicates_of(table, settings)["quality"].to_list().index(1.0)  # type: ignore[no-any-return]

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


def compared_one_by_one(
    rows: list[dict[str, Any]], bits: int | None
) -> list[tuple[float, str, str | None, float | None]]:
    """quality, representative, kind and distance of each row: every pair of hashes is looked at."""
    key = "image_sha256" if bits is None else "perceptual_hash"
    first = sorted(rows, key=lambda row: (-row["width"] * row["height"], row["sample_id"], row["source_row"]))
    speaker = {row[key]: row for row in reversed(first)}  # the best of each key
    kept: list[dict[str, Any]] = []
    stands_for: dict[str, tuple[dict[str, Any], int]] = {}
    for row in first:
        if speaker[row[key]] is not row:
            continue
        apart = [] if bits is None else [(int(row[key], 16) ^ int(one[key], 16)).bit_count() for one in kept]
        nearest = min(apart, default=65)
        if bits is not None and nearest <= bits:
            stands_for[row[key]] = kept[apart.index(nearest)], nearest
        else:
            kept.append(row)
            stands_for[row[key]] = row, 0
    found = []
    for row in rows:
        other, apart_by = stands_for[row[key]]
        if other is row:
            found.append((1.0, row["sample_id"], None, None))
        else:
            is_exact = row["image_sha256"] == other["image_sha256"]
            gap = 0.0 if is_exact else float(apart_by)
            found.append((0.0, other["sample_id"], "exact" if is_exact else "perceptual", gap))
    return found


@given(
    drawn=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 5), st.integers(1, 3), st.integers(0, 4)),
        max_size=40,
    ),
    bits=st.sampled_from([None, 0, 1, 4]),
)
def test_shard_by_shard_it_is_what_looking_at_every_pair_gives(
    drawn: list[tuple[int, int, int, int, int]], bits: int | None
) -> None:
    """Ties of pixels, ids in two shards, equal files, rows without an image, shards of one row and of none."""
    parts, listed = [], []
    for shard in range(3):
        mine = [one for one in drawn if one[0] == shard]
        rows_here = [
            (
                f"{sample:032x}",
                f"photos-{shard:06d}",
                at,
                f"file {file}" if file else None,
                height + 1,
                f"{2**hashed - 1:016x}",
            )
            for at, (_, sample, hashed, height, file) in enumerate(mine)
        ]
        columns = dict.fromkeys(
            ["sample_id", "shard", "source_row", "image_sha256", "height", "perceptual_hash"], pl.String
        )
        table = pl.DataFrame(rows_here, schema=columns | {"source_row": pl.Int64, "height": pl.Int64}, orient="row")
        none = pl.lit(None, pl.String)
        table = table.with_columns(width=10, status=pl.lit("kept"), reason=none, perceptual_hash_reason=none)
        parts.append(table)
        listed += [{**row, "source_row": len(listed) + at} for at, row in enumerate(table.iter_rows(named=True))]
    found = duplicates_of(parts, DuplicateSettings(perceptual_bits=bits))
    assert found["sample_id"].to_list() == [row["sample_id"] for row in listed]
    has_image = [row for row in listed if row["image_sha256"] is not None]
    slow = compared_one_by_one(has_image, bits)
    columns = ("quality", "representative", "kind", "distance")
    assert found.filter(pl.col("reason").is_null()).select(columns).rows() == slow
    assert set(found.filter(pl.col("reason").is_not_null()).select(*columns, "reason").rows()) <= {
        (None,) * 4 + ("no_image",)
    }


def test_the_table_is_written_without_its_rows_in_memory(tmp_path: Path) -> None:
    """A lazy frame gives the table that the same rows in memory give, whatever its row groups."""
    frame = pl.DataFrame({"text": ["a", None, "é"] * 100_000, "number": [1.5, None, -0.0] * 100_000})
    frame.write_parquet(tmp_path / "rows.parquet", row_group_size=1000)
    store = ShardStore(tmp_path / "store")
    manifests = [
        store.write("fused/duplicates", rows, code_version="1")
        for rows in (frame, pl.scan_parquet(tmp_path / "rows.parquet"))
    ]
    assert len({(one.content_sha256, one.row_count) for one in manifests}) == 1
    assert store.read("fused/duplicates").equals(frame)

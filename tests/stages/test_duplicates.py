"""Near-duplicates by PDQ, and which one of them stays: best, hard, easy, random."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import settings as tried
from hypothesis import strategies as st
from PIL import Image

from curation_assets.flow.options import DuplicateSettings
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.numeric.near_duplicates import choose_representatives
from curation_assets.scoring.derived import derive_column
from curation_assets.stages.fused.duplicates import KINDS
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


@pytest.mark.parametrize("swapped", [0, 1])
def test_a_sample_of_a_hash_whose_best_one_is_dropped_finds_another_one(swapped: int) -> None:
    """3 stands for 2 by pHash. 0 has the PDQ hash of 2, which is not kept: 1 is one bit away, and stands for 0."""
    one, other = (pdq(7), pdq()) if swapped else (pdq(), pdq(7))
    far = [f"{number:016x}" for number in (0, 2**20 - 1, 2**40, 2**40 + 1)]
    table = rows(4, perceptual_hash=far, pdq_hash=[one, other, one, pdq(*range(100))])
    found = duplicates_of(table, DuplicateSettings(perceptual_bits=1, pdq_bits=1))
    assert found["representative"].to_list() == [IDS[1], IDS[1], IDS[3], IDS[3]]
    assert found["kind"].to_list() == ["pdq", None, "perceptual", None]


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


VERTICES = [[0.5 * (-1.0) ** (number >> axis & 1) for axis in range(4)] for number in range(16)]  # cosines 0, ±.5, ±1


def bits_apart(left: str, right: str) -> int:
    return (int(left, 16) ^ int(right, 16)).bit_count()


def distances(
    left: dict[str, Any], right: dict[str, Any], settings: DuplicateSettings
) -> list[tuple[int, float, float]]:
    """(kind, share, distance in its unit) by which two rows are near, the nearest first."""
    found = []
    if settings.perceptual_bits is not None:
        bits = bits_apart(left["perceptual_hash"], right["perceptual_hash"])
        found += [(1, bits / 64, bits)] if bits <= settings.perceptual_bits else []
    if settings.pdq_bits is not None and left["pdq_hash"] and right["pdq_hash"]:
        bits = bits_apart(left["pdq_hash"], right["pdq_hash"])
        found += [(2, bits / 256, bits)] if bits <= settings.pdq_bits else []
    for kind, name, least in ((3, "copy_descriptor", settings.copy_cosine), (4, "image_embedding", settings.cosine)):
        if least is not None:
            cosine = sum(one * other for one, other in zip(left[name], right[name], strict=True))
            found += [(kind, 1 - cosine, 1 - cosine)] if cosine >= least else []
    return sorted(found)


def compared_one_by_one(rows: list[dict[str, Any]], settings: DuplicateSettings) -> list[tuple[Any, ...]]:
    """quality, representative, kind and distance of each row: every pair is looked at."""
    key = "image_sha256" if settings.perceptual_bits is None else "perceptual_hash"

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        prefer = float("-inf") if row.get("prefer") is None else row["prefer"]
        return -prefer, -row["width"] * row["height"], row["sample_id"], row["number"]

    first = sorted(rows, key=place)
    speaker = {row[key]: row for row in reversed(first)}  # the best of each key
    kept: list[dict[str, Any]] = []
    stands_for: dict[str, tuple[dict[str, Any], int]] = {}
    for row in first:
        if speaker[row[key]] is not row:
            continue
        near = [(*found[0][:2], at) for at, one in enumerate(kept) if (found := distances(row, one, settings))]
        if near:
            kind, _, at = min(near)
            stands_for[row[key]] = kept[at], kind
        else:
            kept.append(row)
            stands_for[row[key]] = row, 1
    made: list[tuple[Any, ...]] = []
    for row in rows:
        other, kind = stands_for[row[key]]
        if other is row:
            made.append((1.0, row["sample_id"], None, None))
            continue
        kind = 0 if row["image_sha256"] == other["image_sha256"] else kind
        name = {3: "copy_descriptor", 4: "image_embedding"}.get(kind)
        if kind == 0:
            gap = 0.0
        elif name is not None:
            gap = 1 - sum(left * right for left, right in zip(row[name], other[name], strict=True))
        else:
            name = {1: "perceptual_hash", 2: "pdq_hash"}[kind]
            gap = float(bits_apart(row[name] or "0", other[name]))
        made.append((0.0, other["sample_id"], KINDS[kind], gap))
    return made


SETTINGS = [
    *(DuplicateSettings(perceptual_bits=bits) for bits in (None, 0, 1, 4)),
    DuplicateSettings(perceptual_bits=1, prefer="signals.clip_score"),
    DuplicateSettings(perceptual_bits=None, pdq_bits=1),
    DuplicateSettings(perceptual_bits=0, pdq_bits=31, copy_cosine=1),
    DuplicateSettings(perceptual_bits=None, cosine=0.5),
    DuplicateSettings(perceptual_bits=1, pdq_bits=8, copy_cosine=0.5, cosine=0.5, prefer="signals.clip_score"),
]
NUMBERS = {
    "shard": 2,
    "sample": 40,
    "file": 5,
    "height": 2,
    "bits": 4,
    "pdq": 5,
    "copy": 15,
    "embedding": 15,
    "score": 3,
}


@tried(max_examples=15)
@given(
    drawn=st.lists(st.fixed_dictionaries({name: st.integers(0, most) for name, most in NUMBERS.items()}), max_size=80),
    settings=st.sampled_from(SETTINGS),
)
def test_shard_by_shard_it_is_what_looking_at_every_pair_gives(
    drawn: list[dict[str, int]], settings: DuplicateSettings
) -> None:
    """Ties of pixels and scores, ids in two shards, equal files, no image, no PDQ hash, shards of no or one row."""
    kinds = {"prefer": pl.Float64, "copy_descriptor": pl.List(pl.Float32), "image_embedding": pl.List(pl.Float32)}
    parts, listed = [], list[dict[str, Any]]()
    for shard in range(3):
        here = [
            {
                "sample_id": f"{one['sample']:032x}",
                "shard": f"photos-{shard:06d}",
                "source_row": at,
                "image_sha256": f"file {one['file']}" if one["file"] else None,
                "width": 10,
                "height": one["height"] + 1,
                "status": "kept",
                "perceptual_hash": f"{2 ** one['bits'] - 1:016x}",
                "pdq_hash": ["", pdq(), pdq(255), pdq(0, 255), pdq(*range(0, 248, 8)), pdq(*range(0, 256, 8))][
                    one["pdq"]
                ],
                "copy_descriptor": VERTICES[one["copy"]],
                "image_embedding": VERTICES[one["embedding"]],
                "prefer": [None, 0.5, 1.5, -0.0][one["score"]],
            }
            for at, one in enumerate(one for one in drawn if one["shard"] == shard)
        ]
        names = ["sample_id", "shard", "source_row", "image_sha256", "width", "height", "status", *settings.columns]
        names += ["prefer"] if settings.prefer else []
        table = pl.DataFrame(
            [[row[name] for name in names] for row in here],
            schema={
                name: kinds.get(name, pl.Int64 if name in ("source_row", "width", "height") else pl.String)
                for name in names
            },
            orient="row",
        )
        none = pl.lit(None, pl.String)
        parts.append(table.with_columns(reason=none, **{f"{name}_reason": none for name in settings.columns}))
        listed += [{**row, "number": len(listed) + at} for at, row in enumerate(table.iter_rows(named=True))]
    found = duplicates_of(parts, settings)
    assert found["sample_id"].to_list() == [row["sample_id"] for row in listed]
    slow = compared_one_by_one([row for row in listed if row["image_sha256"] is not None], settings)
    columns = ("quality", "representative", "kind", "distance")
    assert found.filter(pl.col("reason").is_null()).select(columns).rows() == slow
    assert set(found.filter(pl.col("reason").is_not_null()).select(*columns, "reason").rows()) <= {
        (None,) * 4 + ("no_image",)
    }


def test_vectors_of_many_rows_are_compared_cluster_by_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five directions, which k-means tells apart: the same as all pairs."""
    table = pl.concat([rows(5, image_embedding=VERTICES[:5])] * 8).with_columns(
        pl.int_range(pl.len()).map_elements("{:032x}".format, pl.String).alias("sample_id"),
        pl.int_range(pl.len()).map_elements("file {}".format, pl.String).alias("image_sha256"),
    )
    settings = DuplicateSettings(perceptual_bits=None, cosine=0.9)
    whole = duplicates_of(table, settings)
    assert whole["quality"].sum() == 5
    monkeypatch.setattr("curation_assets.stages.fused.duplicates.CLUSTERED_FROM", 9)
    monkeypatch.setattr("curation_assets.stages.fused.duplicates.ROWS_AT_ONCE", 3)
    assert duplicates_of(table, settings).equals(whole)


def many_rows(size: int, perceptual_hash: pl.Expr, pdq_hash: pl.Expr) -> pl.DataFrame:
    """Rows of different files; hashes are expressions of `number`."""
    return pl.DataFrame({"number": range(size)}).select(
        pl.col("number").map_elements("{:032x}".format, pl.String).alias("sample_id"),
        pl.col("number").map_elements("file {}".format, pl.String).alias("image_sha256"),
        pl.lit("kept").alias("status"),
        pl.lit("photos-000000").alias("shard"),
        pl.col("number").alias("source_row"),
        pl.lit(10).alias("width"),
        pl.lit(10).alias("height"),
        perceptual_hash.alias("perceptual_hash"),
        pdq_hash.alias("pdq_hash"),
        *(pl.lit(None, pl.String).alias(name) for name in ("reason", "perceptual_hash_reason", "pdq_hash_reason")),
    )


@pytest.mark.slow
def test_what_does_not_fit_into_memory_is_written_to_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 MB for tables of 80 MB, and for joins of them: the same result."""
    numbers = pl.col("number") // 3
    near = numbers.hash() ^ (pl.col("number") % 3 == 1).cast(pl.UInt64)  # a third one bit away, a third equal
    text = near.map_elements("{:016x}".format, pl.String)
    table = many_rows(400_000, text, pl.lit(""))
    settings = DuplicateSettings(pdq_bits=31)
    whole = duplicates_of(table, settings)
    assert whole["quality"].sum() < 200_000
    monkeypatch.setattr("curation_assets.stores.pool_queries.MEMORY_BYTES", 48 << 20)
    assert duplicates_of(table, settings).equals(whole)


def test_equal_hashes_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 blank images make no more pairs than images."""
    compared = []

    def counted(is_kept: np.ndarray, later: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        compared.append(len(later))
        return choose_representatives(is_kept, later, earlier)

    monkeypatch.setattr("curation_assets.stages.fused.duplicates.choose_representatives", counted)
    table = many_rows(2000, pl.lit("0" * 16), pl.lit(pdq()))
    for settings in (DuplicateSettings(pdq_bits=31), DuplicateSettings(perceptual_bits=None, pdq_bits=31)):
        assert duplicates_of(table, settings)["quality"].sum() == 1
    assert compared == [1999]


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

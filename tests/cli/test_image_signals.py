"""The benchmark of image signals: its peers compute what the methods do, and a difference is noticed."""

import tarfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from benchmarks import image_peers
from benchmarks.image_signals import METHODS, difference, photographs, summary, table, write_images
from curation_assets.methods import get_method
from curation_assets.numeric.perceptual_hash import perceptual_hashes
from curation_assets.stores.images import ImageRejected, decode_image
from tests.support.tars import encoded


def jpeg(seed: int) -> bytes:
    """Coloured noise, enlarged so that it has edges at several scales, 300 × 200 px."""
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    return encoded(Image.fromarray(pixels).resize((300, 200), Image.Resampling.BICUBIC), "JPEG")


def test_the_peers_formulas_are_the_methods() -> None:
    for seed in range(4):
        row, image = image_peers.signals(jpeg(seed)), decode_image(jpeg(seed))
        assert (row["width"], row["height"]) == (300, 200)
        assert row["perceptual_hash"] == perceptual_hashes([image])[0]
        for name in METHODS:
            assert row[name] == pytest.approx(get_method(name).function([image]).value[0], abs=1e-12)


def test_a_broken_image_is_a_row_of_nulls_or_raises() -> None:
    broken = jpeg(0)[:2000]
    rows = image_peers.rows_of(["a", "b"], [broken, jpeg(1)], unguarded=False)
    assert rows[0] == {"key": "a", **dict.fromkeys(image_peers.COLUMNS)}
    assert None not in rows[1].values()
    with pytest.raises(OSError, match="truncated"):
        image_peers.rows_of(["a", "b"], [broken, jpeg(1)], unguarded=True)


def test_a_pool_of_processes_reads_what_was_written(tmp_path: Path) -> None:
    samples = [(f"{number:03d}", {".jpg": jpeg(number), ".txt": b"a boat"}) for number in range(7)]
    write_images(samples, tmp_path / "all", shards=2, broken_every=4)
    with tarfile.open(tmp_path / "all" / "000001.tar") as tar:
        assert [name for name in tar.getnames() if name.endswith(".jpg")] == ["004.jpg", "005.jpg", "006.jpg"]
    written = dict(photographs(tmp_path / "all"))
    assert written["000000_000"] == samples[0][1]
    assert len(written["000000_002"][".jpg"]) < len(samples[2][1][".jpg"])
    with pytest.raises(ImageRejected, match="truncated"):
        decode_image(written["000001_006"][".jpg"])
    pool = image_peers.Pool(unguarded=False)
    try:
        pool.run(tmp_path / "all", tmp_path / "pool.parquet")
    finally:
        pool.executor.shutdown()
    found = pl.read_parquet(tmp_path / "pool.parquet").sort("key")
    assert found["key"].to_list() == [key for key, _ in samples]
    assert found["perceptual_hash"].is_null().to_list() == [key in ("002", "006") for key, _ in samples]


def results() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "key": ["a", "b", "c"],
            "width": [300, 200, None],
            "height": [200, 300, None],
            "perceptual_hash": ["00ff", "ff00", None],
            **{name: [0.25, 0.75, None] for name in METHODS},
        }
    )


def test_differences_are_found() -> None:
    assert difference(results(), results().reverse()) == (
        True,
        "hashes and sizes equal, max Δ 0e+00, 1 broken images null",
    )
    for column, value in (
        ("perceptual_hash", "00fe"),
        ("width", 301),
        ("image_dark", 0.25 + 1e-9),
        ("image_dark", None),
    ):
        changed = results().with_columns(
            pl.when(pl.col("key") == "a").then(pl.lit(value)).otherwise(pl.col(column)).alias(column)
        )
        is_equal, words = difference(results(), changed)
        assert not is_equal, (column, words)


def test_ratios_are_against_the_fastest_peer_of_a_round() -> None:
    def row(number: int, way: str, phase: str, seconds: float) -> dict[str, object]:
        return {
            "round": number, "way": way, "phase": phase, "seconds": seconds, "cpu_seconds": 2 * seconds,
            "peak_mib": 100.0, "start_seconds": 1.0,
        }  # fmt: skip

    rows = [
        *(row(number, "pool", "signals", 4.0) for number in (1, 2, 3)),
        *(row(number, "ray", "signals", seconds) for number, seconds in ((1, 8.0), (2, 3.0), (3, 8.0))),
        *(row(number, "ours", "register", 1.0) for number in (1, 2, 3)),
        *(row(number, "ours", "signals", 2.0) for number in (1, 2, 3)),
    ]
    words = {"daft": "not measured: no such package", "ours": "equal"}
    found = {each["way"]: each for each in summary(rows, words, images=100)}
    assert (found["this package, one pass"]["ratio_low"], found["this package, one pass"]["ratio"]) == (1.5, 2.0)
    assert found["this package, from the tars on"]["seconds"] == 3.0
    assert found["this package, from the tars on"]["ratio"] == 1.33
    assert found["Daft"]["seconds"] is None
    shown = table(list(found.values()), ["two cores"])
    assert "| this package, one pass | 2.00 | 4.00 | 50 | 100 | 1 | 2.00 (1.50–2.00) | 2.00 | equal |" in shown
    assert "not measured: no such package" in shown

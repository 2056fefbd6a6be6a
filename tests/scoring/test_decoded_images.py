"""Images that several readers share: decoded once, in bounded number, and a bad one costs its row only."""

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl
import pytest
from PIL import Image

from curation_assets.scoring import decoded_images
from curation_assets.scoring.batches import evaluate, result_of
from curation_assets.scoring.decoded_images import DecodedImages
from curation_assets.stores.images import ImageRejected

ROWS = 40


def samples() -> pl.DataFrame:
    """Row 3 was not kept, row 5 cannot be decoded."""
    return pl.DataFrame(
        {
            "sample_id": [f"{i:032x}" for i in range(ROWS)],
            "source_row": [100 + i for i in range(ROWS)],
            "status": ["failed" if i == 3 else "kept" for i in range(ROWS)],
            "reason": [None] * ROWS,
            "tar": ["a.tar"] * ROWS,
            "member": [f"{i}.jpg" for i in range(ROWS)],
            "width": [4] * ROWS,
            "height": [2] * ROWS,
        }
    )


class Loader:
    """An image whose first pixel is its row; counts what it is asked."""

    def __init__(self) -> None:
        self.loads: Counter[int] = Counter()
        self.threads: set[str] = set()

    def __call__(self, row: Mapping[str, Any]) -> Image.Image:
        index = row["source_row"] - 100
        self.loads[index] += 1
        self.threads.add(threading.current_thread().name)
        time.sleep(0.001)
        if index == 5:
            raise ImageRejected("truncated", "as it were")
        return Image.new("RGB", (4, 2), (index, 0, 0))


def first_pixels(images: DecodedImages, batch_size: int) -> tuple[list[float], list[str | None]]:
    from curation_assets.methods import Values

    def call(columns: dict[str, list[Any]]) -> Values:
        return Values.of([image.getpixel((0, 0))[0] for image in columns["image"]])

    steps = evaluate(
        samples(), ("image",), call, load_image=images.load, batch_size=batch_size, progress=None, label="pixels"
    )
    values = result_of(steps)
    return list(values.value), values.reason


@pytest.mark.parametrize("threads", [0, 3])
def test_rows_keep_their_images_and_reasons(threads: int) -> None:
    loader = Loader()
    images = DecodedImages(samples(), loader, threads)
    value, reason = first_pixels(images, 7)
    images.close()
    assert reason[5] == "image_truncated"
    assert str(reason[3]).startswith("upstream_failed")
    assert [v for i, v in enumerate(value) if i not in (3, 5)] == [i for i in range(ROWS) if i not in (3, 5)]
    assert loader.loads == Counter({i: 1 for i in range(ROWS) if i != 3}), "once each, refused ones too"
    assert any(name.startswith("decode") for name in loader.threads) == bool(threads)


def test_a_second_reader_gets_the_same_image_until_it_is_forgotten() -> None:
    loader = Loader()
    images = DecodedImages(samples(), loader)
    row = samples().row(0, named=True)
    assert images.load(row) is images.load(row)
    assert images.load(row).readonly, "others read its pixels"
    bad = samples().row(5, named=True)
    for _ in range(2):
        with pytest.raises(ImageRejected):
            images.load(bad)
    assert loader.loads == {0: 1, 5: 1}
    images.forget(1)
    images.load(row)
    assert loader.loads == {0: 2, 5: 1}


def test_what_is_decoded_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoded_images, "MAX_BYTES_AHEAD", 3 * 4 * 2 * 6)  # six images
    loader = Loader()
    images = DecodedImages(samples(), loader, threads=2)
    images.load(samples().row(0, named=True))
    images.close()  # waits for what has begun
    assert 1 <= max(loader.loads) <= 7, "six after the first, and row 3 has none to decode"

"""Images of a shard, each decoded once for all that read them, ahead of the reader where there are threads for it."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import polars as pl
from PIL import Image

from curation_assets.scoring.batches import LoadImage

MAX_AHEAD = 512  # images: two batches of 256
MAX_BYTES_AHEAD = 512 * 1024**2  # as RGB: 2,600 images of 256 × 256 pixels, 14 of 12 megapixels


class DecodedImages:
    """A `LoadImage` for several readers that go through the rows in order, side by side.

    What a reader asks for first is decoded; others get the same image until `forget`. With `threads`, the images that
    follow are decoded meanwhile: at most MAX_AHEAD of them and MAX_BYTES_AHEAD (Pillow decodes outside Python's lock).
    An image that is refused raises for its own row only, for every reader alike.
    """

    def __init__(self, samples: pl.DataFrame, load_image: LoadImage, threads: int = 0) -> None:
        """`samples`: rows of raw/samples in their order, each source_row once. `threads`: 0 decodes on `load`."""
        self._load_image = load_image
        self._rows: dict[int, int] = {row: index for index, row in enumerate(samples["source_row"].to_list())}
        self._decoded: dict[int, Future[Image.Image]] = {}  # by index of the row
        self._samples = samples
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="decode") if threads else None
        self._next = 0  # index of the first row that is not yet handed to a thread
        has_image = (samples["status"] == "kept") & samples["member"].is_not_null() & samples["tar"].is_not_null()
        pixels = samples.select((pl.col("width").cast(pl.Int64) * pl.col("height")).fill_null(0)).to_series()
        self._has_image = has_image.fill_null(False).to_numpy()  # (N,) bool
        self._bytes_up_to = np.cumsum(np.where(self._has_image, 3 * pixels.to_numpy(), 0))  # (N,) of rows 0 … n

    def load(self, row: Mapping[str, Any]) -> Image.Image:
        """The RGB image of a row, marked readonly: others read it too. Raises what `load_image` raises."""
        index = self._rows[row["source_row"]]
        self._decode_ahead(index)
        if index not in self._decoded:
            self._decoded[index] = _done(self._load_image, dict(row))
        image = self._decoded[index].result()
        image.readonly = 1
        return image

    def forget(self, before: int) -> None:
        """No reader will ask for the first `before` rows again."""
        for index in [index for index in self._decoded if index < before]:
            self._decoded.pop(index).cancel()

    def close(self) -> None:
        """Decode nothing more."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        self._decoded.clear()

    def _decode_ahead(self, index: int) -> None:
        if self._threads is None:
            return
        limit = np.searchsorted(self._bytes_up_to, self._bytes_up_to[index] + MAX_BYTES_AHEAD, side="right")
        start, stop = max(self._next, index), min(int(limit), index + 1 + MAX_AHEAD, self._samples.height)
        if start >= stop:
            return
        self._next = stop
        for ahead, row in enumerate(self._samples.slice(start, stop - start).iter_rows(named=True), start=start):
            if self._has_image[ahead] and ahead not in self._decoded:
                self._decoded[ahead] = self._threads.submit(self._load_image, row)


def _done(load_image: LoadImage, row: dict[str, Any]) -> Future[Image.Image]:
    decoded: Future[Image.Image] = Future()
    try:
        decoded.set_result(load_image(row))
    except Exception as error:  # raised to each reader that asks
        decoded.set_exception(error)
    return decoded

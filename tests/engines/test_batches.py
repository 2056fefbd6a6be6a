"""Batches of one length: what is in them, and that every text comes back once, in its place."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from curation_assets.engines.batches import (
    TOKENS_AT_ONCE,
    batches_of_equal_length,
    pixel_batches,
    run_unpadded,
)


@given(st.lists(st.integers(1, 20)), st.integers(1, 7), st.integers(1, 60))
def test_a_batch_has_one_length_and_keeps_both_limits(lengths: list[int], size: int, tokens: int) -> None:
    batches = list(batches_of_equal_length(lengths, size, tokens))
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        assert {lengths[position] for position in batch} == {lengths[batch[0]]}
        assert len(batch) <= size
        assert len(batch) == 1 or len(batch) * lengths[batch[0]] <= tokens


@given(st.lists(st.text("ab", max_size=9)).filter(len))
def test_rows_come_back_in_the_order_of_their_texts(texts: list[str]) -> None:
    seen: list[str] = []

    def tokenize(part: list[str]) -> list[list[int]]:
        seen.extend(part)
        return [[0, *map(ord, text)] for text in part]

    def encode(ids: torch.Tensor) -> torch.Tensor:
        assert ids.numel() <= TOKENS_AT_ONCE["cpu"]
        return (ids * torch.arange(1, ids.shape[1] + 1)).sum(dim=1)

    found = run_unpadded(texts, tokenize, encode, batch_size=3, device="cpu")
    expected = [sum(ord(letter) * (place + 2) for place, letter in enumerate(text)) for text in texts]
    assert found.tolist() == expected
    assert sorted(seen) == sorted(set(texts))  # a repeated text is computed once


def test_the_number_of_threads_changes_no_bit() -> None:
    """A shard that is alone is scored by this process with all its threads, beside others by workers with one each."""
    weight = torch.randn(384, 1536, generator=torch.Generator().manual_seed(0))
    texts = [f"{'word ' * (1 + number % 3)}{number}" for number in range(40)]

    def tokenize(part: Sequence[str]) -> list[list[int]]:
        return [[len(text) + position for position in range(len(text.split()))] for text in part]

    def encode(ids: torch.Tensor) -> torch.Tensor:
        assert torch.is_inference_mode_enabled()
        return (torch.sin(ids[..., None] * torch.arange(1.0, 385.0)) @ weight).sum(dim=1)

    before = torch.get_num_threads()
    found = {}
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found[threads] = run_unpadded(texts, tokenize, encode, batch_size=8, device="cpu")
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[1], found[2])
    assert torch.equal(found[1], found[3])


def test_pixels_prepared_beside_a_card_are_those_of_the_plain_loop() -> None:
    images = [Image.new("L" if number % 3 else "RGBA", (4, 4), number) for number in range(23)]
    threads = set()

    def prepare(image: Image.Image) -> torch.Tensor:
        threads.add(threading.get_ident())
        assert image.mode == "RGB"
        return torch.from_numpy(np.asarray(image).copy()).float()

    plain = list(pixel_batches(images, prepare, 5, "cpu"))
    assert threads == {threading.get_ident()}
    ahead = list(pixel_batches(images, prepare, 5, "cuda"))
    assert len(threads) > 1
    assert [len(batch) for batch in ahead] == [5, 5, 5, 5, 3]
    assert all(torch.equal(*pair) for pair in zip(plain, ahead, strict=True))
    assert list(pixel_batches([], prepare, 5, "cuda")) == []

    def refuse(image: Image.Image) -> torch.Tensor:
        raise OSError("a bad image")

    with pytest.raises(OSError, match="a bad image"):
        list(pixel_batches(images, refuse, 5, "cuda"))

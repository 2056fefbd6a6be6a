"""The order of a training set: every entry once, neighbours near each other, the same everywhere."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curation_assets.numeric.block_order import BLOCK, BlockOrder

files = st.lists(st.integers(1, 200), min_size=1, max_size=6).map(lambda sizes: np.repeat(np.arange(len(sizes)), sizes))


@given(files, st.integers(1, 300), st.integers(0, 9), st.integers(0, 3), st.randoms())
def test_an_epoch_has_every_entry_once_from_whatever_position_it_is_read(files, window, seed, epoch, random) -> None:
    order = BlockOrder(files, window, seed)
    positions = np.arange(len(files))
    whole = order.at(positions, epoch)
    assert sorted(whole) == positions.tolist()
    some = np.array(random.choices(positions.tolist(), k=7))
    assert BlockOrder(files, window, seed).at(some, epoch).tolist() == whole[some].tolist()


@given(files, st.integers(0, 9))
def test_a_window_draws_from_few_blocks(files, seed) -> None:
    """Reading costs by blocks: a window of 2 touches 3 of them where all are whole, more at the ends of files."""
    window = 2 * BLOCK
    entries = BlockOrder(files, window, seed).at(np.arange(len(files)), 0)
    place = np.arange(len(files)) - np.searchsorted(files, files)
    block = files * 100 + place // BLOCK
    short = len(np.unique(files))  # each file ends with one block that may be short
    for start in range(0, len(entries), window):
        assert len(np.unique(block[entries[start : start + window]])) <= 3 + short


def test_the_order_is_written_down() -> None:
    """What a state points into: another order after an upgrade would repeat samples, so it must never change."""
    order = BlockOrder(np.repeat([0, 1], [100, 50]), 50, 7)
    assert order.at(np.arange(6), 0).tolist() == [26, 10, 18, 30, 19, 34]
    assert order.at(np.arange(6), 1).tolist() == [92, 105, 73, 100, 72, 82]


@pytest.mark.parametrize("window", [1, 64, 1024])
def test_epochs_and_seeds_differ_and_none_is_the_source_s_order(window: int) -> None:
    files, positions = np.repeat(np.arange(8), 100), np.arange(800)
    orders = {tuple(BlockOrder(files, window, seed).at(positions, epoch)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4
    assert BlockOrder(files, window, None).at(positions, 3).tolist() == positions.tolist()

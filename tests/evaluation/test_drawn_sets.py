"""Names of trainings, and draws from sets."""

import pytest

from curation_assets.evaluation.drawn_sets import TrainingKey, drawn, training_keys


def test_keys_are_read_as_they_are_written() -> None:
    keys = training_keys(["icc", "random_at", "a_own"], (0.25, 1), (0, 12))
    assert [str(key) for key in keys[:4]] == [
        "icc_at0250-000000", "icc_at0250-000012", "icc_at1000-000000", "icc_at1000-000012",
    ]  # fmt: skip
    assert [TrainingKey.parse(str(key)) for key in keys] == list(keys)
    assert [str(key) for key in training_keys(["icc"], (), (3,))] == ["icc_own-000003"]
    with pytest.raises(ValueError, match="such as icc_at0250-000002, got 'icc-000001'"):
        TrainingKey.parse("icc-000001")


@pytest.mark.parametrize("size", [0, 1.5, 0.12345])
def test_sizes_are_shares_in_thousandths(size: float) -> None:
    with pytest.raises(ValueError, match=f"in thousandths, got {size}"):
        training_keys(["icc"], (size,), (0,))


def test_a_draw_depends_on_the_ids_alone_and_keeps_all_of_a_small_set() -> None:
    ids = [f"{number:032x}" for number in range(100)]
    chosen = drawn(ids, 30)
    assert chosen == sorted(chosen) == drawn(ids[::-1], 30)
    assert len(set(chosen)) == 30
    assert set(drawn(ids, 10)) < set(chosen)
    assert drawn(ids[:5], 30) == ids[:5]

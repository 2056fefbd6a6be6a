"""The benchmark of text signals: its large pool, and relatedness of a pool that is never in memory whole."""

import argparse

import numpy as np
import pytest

from benchmarks import text_signals
from benchmarks.text_signals import large_pool, plain_sieve, relatedness_rows, sieve_columns
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import get_method

TEXTS = ["a red kite over the sea", "two dogs", "the old barn and a tractor in winter", "a boat on a lake at night"]


def test_a_large_pool_comes_in_parts_and_twice_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_signals, "PART", 40)
    parts = list(large_pool(TEXTS, 100))
    assert [len(part) for part in parts] == [40, 40, 20]
    assert parts == list(large_pool(TEXTS, 100))
    texts = [text for part in parts for text in part]
    assert {word for text in texts for word in text.split()} >= {"n0", "n10", "n90"}
    assert "a boat on a over the sea" in texts, "first half of one caption, second half of another"


def test_relatedness_is_measured_on_all_parts() -> None:
    weights, values = relatedness_rows(TEXTS, argparse.Namespace(pool=3000, downstream=200))
    # 21 words of the texts, and a number of every tenth caption
    words = {word for text in TEXTS for word in text.split()}
    assert f"({len(words) + 300:,} words)" in weights["signal"]
    assert values["captions"] == 3000
    assert values["per_cpu_second"] > 0


def test_the_plain_loop_computes_sieves_cosines() -> None:
    encoder = load_engine("sentence_encoder", load_profile("embedded"))
    groups = [[f"{text} {number}" for number in range(5)] for text in TEXTS]
    columns = sieve_columns(groups, len(groups))
    columns["caption"][1] = "stock photo"
    assert {len(texts) for texts in columns["generated_captions"]} == {8}
    expected = get_method("sieve").function(**columns, sentence_encoder=encoder).value
    assert expected[1] == 0, "nothing is left of it once it is masked"
    np.testing.assert_allclose(plain_sieve(columns, encoder.embed_sentences), expected, atol=1e-5)

"""The student without a transformer, and the cascade of both: values, margin, training on captions of one's own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from curation_assets.core.settings import Profile
from curation_assets.engines import identify_engine, load_engine
from curation_assets.engines.addresses import WEIGHTS_ROOT
from curation_assets.engines.student import CascadeStudent
from curation_assets.stores.file_hash import file_sha256
from curation_assets.world.bank.captions import bank_captions
from lab import static_student
from lab.common import Setup

FOLDER = WEIGHTS_ROOT / "icc_student_static"
CARD: dict[str, Any] = json.loads((FOLDER / "card.json").read_text())
CONCRETE = ["a brown dog runs across the green grass", "A wooden table with a vase of yellow flowers"]
ABSTRACT = ["The importance of trust in modern leadership", "Terms and conditions apply, see our privacy policy"]


def student(address: str) -> Any:
    return load_engine("student", Profile("test", {"student": address}, device="cpu"))


def test_the_card_describes_the_file() -> None:
    assert CARD["kind"] == "static"
    assert CARD["weights_sha256"] == file_sha256(FOLDER / "static.safetensors")
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 8e6
    assert set(CARD["recipe"]["files"]) == {"alt_texts", "coco_val2017_captions"}
    for figures in CARD["agreement"].values():
        assert figures["lost_of_those_that_reach_it"] <= 2 * (1 - CARD["margin"]["level"])


def test_values_follow_the_teacher_and_the_caption_alone() -> None:
    fast = student("embedded:icc_student_static")
    texts = [*CONCRETE, *ABSTRACT, "word " * 400, "ß", "🎈", "", "mug"]
    together = fast.score_captions(texts)
    assert np.isfinite(together).all()
    assert together[:2].min() > together[2:4].max() + 0.3
    np.testing.assert_allclose(together, [fast.score_captions([text])[0] for text in texts], atol=1e-5)
    np.testing.assert_allclose(fast.score_captions(texts[::-1] * 2), np.tile(together[::-1], 2), atol=1e-5)
    assert fast.score_captions([]).shape == (0,)


def test_a_cascade_asks_the_slow_student_where_the_cut_can_be_reached() -> None:
    """Every value at or above the cut is the slow student's; the others lie below it."""
    texts = [*bank_captions(None)[::200], *(f"{text}, part {i}" for text in ABSTRACT for i in range(20))]
    fast, slow = (student(f"embedded:{name}").score_captions(texts) for name in ("icc_student_static", "icc_student"))
    cut = float(np.quantile(slow, 0.7))
    cascade = student(f"cascade:{cut}")
    assert isinstance(cascade, CascadeStudent)
    found = cascade.score_captions(texts)
    may_reach = fast >= cut - CARD["margin"]["margin"]
    assert may_reach.any()
    assert not may_reach.all()
    np.testing.assert_allclose(found[may_reach], slow[may_reach], atol=1e-5)
    np.testing.assert_allclose(found[~may_reach], fast[~may_reach], atol=1e-5)
    assert (found[~may_reach] < cut).all()
    assert cascade.score_captions([]).shape == (0,)


def test_the_cut_of_a_cascade_is_part_of_its_identity() -> None:
    identities = [identify_engine("student", Profile("test", {"student": f"cascade:{cut}"})) for cut in ("0.5", "0.6")]
    assert [one.address for one in identities] == ["cascade:0.5", "cascade:0.6"]
    with pytest.raises(ValueError, match="expected cascade:CUT with the value to reach"):
        student("cascade:high")
    with pytest.raises(ValueError, match="cascade: fills student only"):
        load_engine("parser", Profile("test", {"parser": "cascade:0.5"}))


def test_the_margin_is_the_conformal_quantile() -> None:
    """Of 99 errors 1 … 99, level .9: element ⌈100 · .9⌉ = 90."""
    exact = np.arange(1.0, 100.0)
    assert static_student.margin_of(exact, np.zeros(99), 0.9) == 90.0
    with pytest.raises(ValueError, match="needs at least 19 held-out captions of every file, got 9"):
        static_student.margin_of(exact[:9], np.zeros(9), 0.95)


@pytest.mark.slow
def test_a_student_is_distilled_from_captions_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty epochs on 1,000 captions: it already orders held-out captions as its teacher, and its folder loads."""
    texts = [*bank_captions(None)[::24], *(f"the {i}th thought on {w}" for i in range(40) for w in ("trust", "time"))]
    pl.DataFrame({"text": texts, "page": [f"https://h{i % 97}.example/{i}" for i in range(len(texts))]}).write_parquet(
        tmp_path / "own.parquet"
    )
    table = static_student.read_captions([f"{tmp_path / 'own.parquet'}:text:page"])
    assert table.height == len(set(texts))
    of_host = {f"h{i % 97}.example": static_student._tenth(f"https://h{i % 97}.example/{i}") for i in range(200)}
    assert len(of_host) == 97  # a host's pages share a tenth
    assert set(of_host.values()) == set(range(10))
    setup = Setup(tmp_path / "out", tmp_path / "work", seed=3)
    with pytest.raises(ValueError, match=r"level 0.995 needs at least 199 held-out captions .* give larger files"):
        static_student.run(setup, [f"{tmp_path / 'own.parquet'}:text:page"], "embedded:icc_student", 20)
    monkeypatch.setattr(static_student, "MARGIN_LEVEL", 0.9)
    quality = static_student.run(setup, [f"{tmp_path / 'own.parquet'}:text:page"], "embedded:icc_student", 20)
    assert quality["all"]["pearson"] > 0.8
    assert quality["all"]["spearman"] > 0.4
    own = student(f"path:{tmp_path / 'out' / static_student.NAME}")
    assert own.score_captions(CONCRETE).min() > own.score_captions(["the 3rd thought on trust"])[0]
    with pytest.raises(ValueError, match=r"expected the columns \['caption'\], got \['text', 'page'\]"):
        static_student.read_captions([str(tmp_path / "own.parquet")])

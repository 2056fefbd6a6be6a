"""Occlusion: what each word does to a score."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from curation_assets.core.settings import Profile, load_settings
from curation_assets.engines import load_engine
from curation_assets.numeric.occlusion import occlusion, without_each_word
from tests.support import command


def test_every_word_goes_once_with_the_blanks_before_it() -> None:
    assert without_each_word("a  red kite ") == [("a", "red kite"), ("red", "a kite"), ("kite", "a  red")]
    assert without_each_word(" ") == []
    assert [word for word, _ in without_each_word("kite kite")] == ["kite", "kite"]


def test_effects_of_a_sum_of_words_are_its_terms() -> None:
    worth = {"a": 0.0, "red": 0.25, "kite": 0.5, "of": -0.125, "hope": -0.5}

    def score(texts: Sequence[str]) -> np.ndarray:
        return np.array([sum(worth[word] for word in text.split()) for text in texts])

    found = occlusion("a red kite of hope", score)
    assert found.score == 0.125
    assert dict(zip(found.words, found.effects.tolist(), strict=True)) == worth


def test_nothing_to_take_out_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two words, got 1: 'kite'"):
        occlusion("kite", lambda texts: np.zeros(len(texts)))
    with pytest.raises(ValueError, match="expected 3 finite scores"):
        occlusion("red kite", lambda texts: np.full(len(texts), np.nan))


curate = partial(command.curate, width=160)


def test_the_command_explains_with_a_real_student(student: Path) -> None:
    caption = "a wooden boat of justice"
    result = curate("icc", "explain", caption, "--role", f"student=path:{student}", "--json")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    effects = {row["word"]: row["effect"] for row in content["words"]}
    assert list(effects) == caption.split()
    assert effects["boat"] > 0 > effects["justice"]
    engine = load_engine("student", Profile(name="test", roles={"student": f"path:{student}"}, device="cpu"))
    with_word, without = engine.score_captions([caption, "a wooden boat of"])  # type: ignore[attr-defined]
    assert content["icc"] == pytest.approx(with_word, abs=1e-6)
    assert effects["justice"] == pytest.approx(with_word - without, abs=1e-5)
    shown = curate("icc", "explain", caption, "--role", f"student=path:{student}")
    assert f"{effects['boat']:+.4f}" in shown.output
    assert "nominally 0 to 1" in shown.output


def test_mistakes_are_answered_in_one_sentence(student: Path) -> None:
    for arguments, said in (
        (("kite", "--role", f"student=path:{student}"), "at least two words"),
        (("a kite", "--role", "student"), "--role must read ROLE=ADDRESS"),
    ):
        result = curate("icc", "explain", *arguments)
        assert result.exit_code == 1
        assert said in " ".join(result.output.split())


def test_nearest_scenes_are_shown_where_the_profile_has_a_bank(student: Path) -> None:
    profile = load_settings(None, "embedded").profile
    if "scene_bank" not in profile.roles:
        pytest.skip("the profile has no scene bank")
    result = curate("icc", "explain", "a red kite on the beach", "--role", f"student=path:{student}", "--json")
    found = json.loads(result.stdout)["scenes"]
    assert len(found) == 5
    assert [scene["similarity"] for scene in found] == sorted((s["similarity"] for s in found), reverse=True)
    none = curate("icc", "explain", "a red kite", "--role", f"student=path:{student}", "--scenes", "0", "--json")
    assert json.loads(none.stdout)["scenes"] == []


def test_a_negative_number_of_scenes_is_refused() -> None:
    assert "--scenes must be at least 0" in curate("icc", "explain", "a kite", "--scenes", "-1").output

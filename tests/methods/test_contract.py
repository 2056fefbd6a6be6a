"""The contract that every method keeps, checked on its own worked example: a new method is tested on arrival."""

from typing import Any

import numpy as np
import pytest

from curation_assets.methods import Example, Method, Values, all_methods, get_method, teachers
from curation_assets.scoring.method_contract import RULES
from curation_assets.scoring.parameters import with_parameters


def run(method: Method, columns: dict[str, list[Any]]) -> Values:
    return method.function(**columns, **method.example.roles)


def test_the_methods_are_found() -> None:
    assert {"clip_score", "icc", "sieve", "vba", "sba"} <= set(all_methods())
    with pytest.raises(ValueError, match="did you mean 'sieve'"):
        get_method("seive")


@pytest.mark.parametrize("method", all_methods().values(), ids=lambda method: method.name)
def test_methods_of_the_package_keep_to_the_contract(method: Method) -> None:
    found = {rule: holds(method) for rule, holds in RULES.items()}
    assert found == dict.fromkeys(RULES)


def test_teachers_come_in_the_order_of_the_fusion() -> None:
    assert [method.name for method in teachers()][:2] == ["vba", "sba"]


# --- what is particular to one method ---


def test_sieve_masking_modes_differ_on_empty_texts() -> None:
    sieve = get_method("sieve")
    columns = {"caption": ["red kite", "photo"], "generated_captions": [["a photo"], ["red"]]}
    clean = run(sieve, columns)
    assert clean.value.tolist() == [0.0, 0.0]
    assert clean.details["best_caption"] == ["a photo", "red"]
    repo = run(with_parameters(sieve, masking="repo"), {**columns, "caption": ["a red", "photo"]})
    assert repo.value.tolist() == [0.0, 0.0]


def test_sieve_takes_the_best_caption_and_reports_the_mean() -> None:
    values = run(get_method("sieve"), {"caption": ["red kite"], "generated_captions": [["barn", "red", "a red kite"]]})
    assert values.value[0] == pytest.approx(1.0)
    assert values.details["best_caption"] == ["a red kite"]
    assert values.details["mean_cosine"][0] == pytest.approx((0 + 2**-0.5 + 1) / 3)


def test_sieve_without_generated_captions_says_so() -> None:
    values = run(get_method("sieve"), {"caption": ["red"], "generated_captions": [[]]})
    assert np.isnan(values.value[0])
    assert values.reason == ["no_generated_captions"]


def test_sba_keeps_every_beam_and_corrects_the_best() -> None:
    details = run(get_method("sba"), {"caption": ["a red kite"]}).details
    assert details["reconstructions"] == [["a kite", "a blue kite"]]
    np.testing.assert_allclose(details["similarities"][0], [0.6, 0.636364], atol=1e-6)
    assert details["best_reconstruction"] == ["a blue kite"]
    assert details["open_similarity"][0] == pytest.approx((7 + 0.5) / (11 + 1))


def test_sba_may_leave_case_out() -> None:
    sba = get_method("sba")
    columns = {"caption": ["KITE"]}
    assert run(sba, columns).value[0] == 0.0
    lowered = run(with_parameters(sba, case_sensitive=False), columns)
    assert lowered.value[0] == 1.0
    assert lowered.details["open_similarity"][0] == pytest.approx((4 + 0.5) / (4 + 1))


def test_vba_beams_come_from_the_call_or_the_beam_captioner() -> None:
    vba = get_method("vba")
    columns = {"caption": ["red"], "sample_id": ["0" * 32]}
    assert run(vba, columns).details["reconstructions"] == [["scarlet", "red"]]
    one = run(with_parameters(vba, beams=1), columns)
    assert one.details["reconstructions"] == [["scarlet"]]
    assert one.value[0] == 0.0

    beam_captioner = vba.example.roles["beam_captioner"]
    beam_captioner = type(beam_captioner)()
    beam_captioner.settings = {"beams": 1}
    from_settings = vba.function(**columns, **{**vba.example.roles, "beam_captioner": beam_captioner})
    assert from_settings.value[0] == 0.0
    with pytest.raises(ValueError, match="at least 1"):
        run(with_parameters(vba, beams=0), columns)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no settings \['mask'\]; it has \['masking'\]"):
        with_parameters(get_method("sieve"), mask="repo")


def test_icc_is_not_clipped() -> None:
    assert run(get_method("icc"), {"caption": ["red dog"]}).value[0] > 1


def test_bad_facts_are_refused() -> None:
    facts: dict[str, Any] = {
        "name": "m",
        "function": lambda caption: Values.of(np.zeros(len(caption))),
        "columns": ("caption",),
        "unit": "share",
        "direction": "higher",
        "source": "here",
        "version": "1",
        "example": Example({"caption": ["a"]}, [0.0]),
    }
    with pytest.raises(ValueError, match="unknown roles"):
        Method(**facts, roles=("oracle",), bounds=(0, 1))
    with pytest.raises(ValueError, match="low < high"):
        Method(**facts, roles=(), bounds=(1, 1))
    with pytest.raises(ValueError, match=r"blank_caption='empty' needs the column caption, got columns=\('image',\)"):
        Method(**{**facts, "columns": ("image",)}, roles=(), bounds=(0, 1), blank_caption="empty")

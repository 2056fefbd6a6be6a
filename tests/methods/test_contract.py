"""The contract that every method keeps, checked on its own worked example: a new method is tested on arrival."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pytest

from curation_assets.methods import TEACHER_DETAILS, Example, Method, Values, all_methods, get_method, teachers
from curation_assets.scoring.parameters import with_parameters
from curation_assets.scoring.samples import score_samples

METHODS = [
    replace(method, function=partial(method.function, **method.example.settings)) if method.example.settings else method
    for method in all_methods().values()
]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


def run(method: Method, columns: dict[str, list[Any]]) -> Values:
    return method.function(**columns, **method.example.roles)


def test_the_methods_are_found() -> None:
    assert {"clip_score", "icc", "sieve", "vba", "sba"} <= set(all_methods())
    with pytest.raises(ValueError, match="did you mean 'sieve'"):
        get_method("seive")


@every_method
def test_facts_are_present(method: Method) -> None:
    assert method.unit
    assert method.source
    assert method.version
    assert method.summary.endswith("."), "a summary states what the score is"
    assert method.direction in ("higher", "lower")
    assert (method.function.__doc__ or "").strip()


@every_method
def test_worked_example_reproduces(method: Method) -> None:
    values = run(method, dict(method.example.columns))
    np.testing.assert_allclose(values.value, method.example.value, atol=1e-7)
    assert len(values.value) >= 2, "an example shows at least two values"
    assert len(set(method.example.value)) > 1, "and not twice the same"


@every_method
def test_without_an_image_a_method_has_a_value_unless_it_reads_columns_of_images(method: Method) -> None:
    """What a pool of captions only leaves out follows from the columns that the method declares."""
    columns = {
        name: [None] * len(values) if name in method.image_columns else values
        for name, values in method.example.columns.items()
        if name != "image"
    }
    ids = {"sample_id": [f"{number:032x}" for number in range(len(method.example.value))]}
    samples = pl.DataFrame({**ids, **columns}, schema_overrides=dict.fromkeys(method.image_columns, pl.Null))
    scored = score_samples(method, samples, method.example.roles)
    assert (scored["value"].drop_nulls().len() == 0) == bool(method.image_columns)


@every_method
def test_result_is_well_formed(method: Method) -> None:
    values = run(method, dict(method.example.columns))
    n = len(method.example.value)
    assert values.value.dtype == np.float64
    assert values.value.shape == (n,)
    assert len(values.reason) == n
    assert all(len(column) == n for column in values.details.values())
    assert [bool(np.isnan(v)) for v in values.value] == [why is not None for why in values.reason]
    low, high = method.bounds
    valued = values.value[~np.isnan(values.value)]
    assert ((low <= valued) & (valued <= high)).all()


@pytest.mark.parametrize("method", teachers(), ids=lambda method: method.name)
def test_a_teacher_reads_captions_and_gives_what_is_fused(method: Method) -> None:
    assert set(method.columns) <= {"caption", "sample_id"}
    details = run(method, dict(method.example.columns)).details
    assert set(details) == set(TEACHER_DETAILS)
    assert all(0 < one < 1 for one in details["open_similarity"]), "the logit is taken of it"


def test_teachers_come_in_the_order_of_the_fusion() -> None:
    assert [method.name for method in teachers()][:2] == ["vba", "sba"]


@every_method
def test_value_ignores_order(method: Method) -> None:
    n = len(method.example.value)
    order = np.random.default_rng(0).permutation(n)
    shuffled = run(method, {name: [column[i] for i in order] for name, column in method.example.columns.items()})
    whole = run(method, dict(method.example.columns))
    np.testing.assert_array_equal(shuffled.value, whole.value[order])
    for name, column in whole.details.items():
        assert shuffled.details[name] == [column[i] for i in order]


@every_method
def test_value_ignores_neighbours(method: Method) -> None:
    whole = run(method, dict(method.example.columns))
    for i in range(len(method.example.value)):
        alone = run(method, {name: [column[i]] for name, column in method.example.columns.items()})
        assert alone.value[0] == whole.value[i] or np.isnan([alone.value[0], whole.value[i]]).all()
        assert alone.reason == [whole.reason[i]]


@every_method
def test_runs_as_a_table_in_any_batch_size(method: Method) -> None:
    example = method.example
    n = len(example.value)
    columns = {name: column for name, column in example.columns.items() if name != "image"}
    samples = pl.DataFrame({"sample_id": [f"{i:032x}" for i in range(n)], **columns})
    images = example.columns.get("image")
    frames = [
        score_samples(
            method,
            samples,
            example.roles,
            load_image=None if images is None else lambda row: images[int(row["sample_id"], 16)],
            batch_size=size,
        )
        for size in (1, 2, n)
    ]
    assert frames[0].equals(frames[1])
    assert frames[0].equals(frames[2])
    np.testing.assert_allclose(frames[0]["value"].to_numpy(), example.value, atol=1e-7)


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

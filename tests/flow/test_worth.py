"""What signals are worth on photographs: matched by models, shown in words, and what follows for the policies."""

from pathlib import Path

import polars as pl
import pytest

from curation_assets.core.settings import load_profile, load_settings
from curation_assets.flow import worth
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import left_out, policies_of, worths_of
from curation_assets.stores.pools.declaration import add_pool

ENGINES = "image_text_encoder=embedded:clip"


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two measurements of clip_score: the scene models at chance, the others not."""
    path = tmp_path / "measured.csv"
    path.write_text(
        "reference,engines,kind,auc,low,high,n,n_clean\n"
        f"signals.clip_score,{ENGINES},mismatched,0.515,0.48,0.55,500,250\n"
        f"signals.clip_score,{ENGINES},caps,0.9,0.88,0.92,500,250\n"
        "signals.clip_score,image_text_encoder=embedded:minilm,mismatched,0.97,0.96,0.98,500,250\n"
        "signals.personal_data,,abstract,0.5,0.5,0.5,500,250\n"
    )
    monkeypatch.setattr(worth, "MEASURED", path)
    worth._measured.cache_clear()
    yield
    worth._measured.cache_clear()


def photo_pool(home: Path, **options: object) -> PoolContext:
    """A pool of photographs, as far as a declaration goes."""
    source = home / "urls.csv"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("url,caption\nhttp://127.0.0.1/a.jpg,a dog\n")
    settings = load_settings(home, "embedded")
    add_pool(settings, "photos", source, options=options)
    return PoolContext.open(settings, "photos")


@pytest.mark.usefixtures("measured")
def test_a_measurement_counts_for_its_own_models_and_kinds_only() -> None:
    embedded = load_profile("embedded")
    scenes = worth.worth_of("signals.clip_score", embedded)
    assert scenes.is_meaningful is False
    assert str(scenes) == "not meaningful on photographs (AUC mismatched .52 [.48, .55], n 500)"
    others = worth.worth_of("signals.clip_score", embedded.with_roles(image_text_encoder="embedded:minilm"))
    assert others.is_meaningful
    assert str(others) == "AUC mismatched .97 [.96, .98], n 500"
    unknown = worth.worth_of("signals.clip_score", embedded.with_roles(image_text_encoder="path:/mine"))
    assert unknown.is_meaningful is None
    assert str(unknown) == "not measured on photographs"
    # made for no kind of noise: no AUC is its worth
    assert worth.worth_of("signals.personal_data", embedded).is_meaningful is None


def test_models_behind_a_recipe_are_those_of_all_its_signals() -> None:
    profile = load_profile("embedded").with_roles(student="embedded:icc_student")
    assert worth.engines_of("fused.icc_clip", profile) == f"{ENGINES};student=embedded:icc_student"
    assert worth.engines_of("signals.sieve", profile) == (
        "captioner=embedded:captioner;sentence_encoder=embedded:minilm"
    )
    assert worth.engines_of("fused.duplicates", profile) == ""
    assert worth.engines_of("signals.nsfw", profile) is None  # the profile names no classifier


@pytest.mark.usefixtures("measured")
def test_policies_on_meaningless_signals_are_left_out_unless_named(tmp_path: Path) -> None:
    ctx = photo_pool(tmp_path / "default")
    applied = {policy.name for policy in policies_of(ctx)}
    assert "icc" in applied
    assert not applied & {"clip", "icc_after_clip"}
    said = left_out(ctx)
    for policy in ("clip", "icc_after_clip"):
        start = f"Policy {policy} is left out: signals.clip_score is not meaningful on photographs"
        assert sum(sentence.startswith(start) for sentence in said) == 1
    assert worths_of(ctx, ["signals.clip_score"])["signals.clip_score"].startswith("not meaningful")

    named = photo_pool(tmp_path / "named", policies=["clip"])
    assert [policy.name for policy in policies_of(named)] == ["clip"]
    assert left_out(named) == []

    other = photo_pool(tmp_path / "other", image_domain="other")
    assert "clip" in {policy.name for policy in policies_of(other)}
    assert worths_of(other, ["signals.clip_score"]) == {"signals.clip_score": "not measured on such images"}


@pytest.mark.usefixtures("measured")
def test_values_that_the_user_brings_are_not_judged_by_the_models(tmp_path: Path) -> None:
    ctx = photo_pool(tmp_path, given_signals={"clip_score": f"{tmp_path / 'scores.parquet'}:cosine"})
    assert "clip" in {policy.name for policy in policies_of(ctx)}
    assert worths_of(ctx, ["signals.clip_score"]) == {"signals.clip_score": "not measured on photographs"}
    embedded = load_profile("embedded")
    assert worth.worth_of("fused.icc_clip", embedded, {"clip_score"}).is_meaningful is None


def test_what_ships_was_measured_with_models_that_profiles_name() -> None:
    """A row that no shipped profile could show would be a leftover."""
    shipped = [load_profile(name) for name in ("embedded", "photos")]
    profiles = [profile.with_roles(student="embedded:icc_student") for profile in shipped]
    for row in pl.read_csv(worth.MEASURED).iter_rows(named=True):
        engines = {worth.engines_of(row["reference"], profile) for profile in profiles}
        assert (row["engines"] or "") in engines, row
        assert 0 <= row["low"] <= row["auc"] <= row["high"] <= 1
        assert min(row["n"], row["n_clean"]) >= 30

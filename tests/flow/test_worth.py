"""What signals are worth on rows like a pool's: matched by models, kind of image and language, shown in words, and what
follows for the policies."""

from pathlib import Path

import polars as pl
import pytest

from curation_assets.core.settings import load_profile, load_settings
from curation_assets.flow import worth
from curation_assets.flow.composition import composition_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import left_out, policies_of, worths_of
from curation_assets.methods import all_methods
from curation_assets.sources.declaration import add_pool
from lab.image_kind import KINDS

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
    add_pool(settings, "photos", source, options={"image_domain": "photographs", **options})
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
    assert (
        worth.engines_of("fused.icc_clip", profile)
        == f"{ENGINES};language_identifier=embedded:lid176;student=embedded:icc_student"
    )
    assert worth.engines_of("signals.sieve", profile) == (
        "captioner=embedded:captioner;sentence_encoder=embedded:minilm"
    )
    assert worth.engines_of("fused.duplicates", profile) == ""
    assert worth.engines_of("fused.web", profile) == ENGINES  # a fitted recipe: a mix of clip_score and descriptive
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


@pytest.fixture
def measured_on_web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "web.csv"
    path.write_text(
        "reference,engines,kind,language,of,auc,low,high,n\n"
        f"signals.clip_score,{ENGINES},photo,en,own text,0.866,0.832,0.896,215\n"
        f"signals.clip_score,{ENGINES},screenshot,en,own text,0.598,0.52,0.67,50\n"
        f"signals.clip_score,{ENGINES},all,en,own text,0.709,0.669,0.742,647\n"
        f"signals.clip_score,{ENGINES},photo,other,own text,0.61,0.5,0.72,40\n"
        "signals.descriptive,,all,en,descriptive,0.885,0.848,0.918,377\n"
    )
    monkeypatch.setattr(worth, "MEASURED_ON_WEB", path)
    worth._measured.cache_clear()
    yield
    worth._measured.cache_clear()


@pytest.mark.usefixtures("measured_on_web")
def test_on_web_pairs_figures_are_those_of_the_kinds_and_languages_at_hand() -> None:
    embedded = load_profile("embedded")
    holds = worth.Composition({("photo", "en"): 60, ("diagram", "en"): 20, ("photo", "other"): 12, ("logo", "en"): 8})
    assert str(holds) == "72% photo, 20% diagram, 8% logo; 88% English"
    found = worth.web_worth_of("signals.clip_score", embedded, holds)
    assert found.unmeasured == pytest.approx(0.28)
    assert str(found) == (
        "AUC photo .87 [.83, .90], n 215 (60% of the rows); photo, not English .61 [.50, .72], n 40 (12% of the rows); "
        "not measured: 28% of the rows"
    )
    only_logos = worth.Composition({("logo", "en"): 5})
    assert str(worth.web_worth_of("signals.clip_score", embedded, only_logos)) == "not measured on web pairs"
    unknown = worth.Composition({(worth.ANY_KIND, "en"): 5})
    assert str(unknown) == "kinds of images unknown; 100% English"
    assert str(worth.web_worth_of("signals.clip_score", embedded, unknown)).startswith("AUC all kinds .71 [")
    before = worth.web_worth_of("signals.clip_score", embedded, None)
    assert str(before) == "AUC all kinds .71 [.67, .74], n 647"
    of_texts = worth.web_worth_of("signals.descriptive", embedded, holds)
    assert of_texts.reads_text_alone
    assert str(of_texts) == (
        "AUC of descriptive texts against others, all kinds .89 [.85, .92], n 377 (88% of the rows); "
        "not measured: 12% of the rows"
    )
    for others in (
        worth.web_worth_of("signals.clip_score", embedded.with_roles(image_text_encoder="path:/mine"), holds),
        worth.web_worth_of("signals.clip_score", embedded, holds, {"clip_score"}),  # values that the user brings
        worth.web_worth_of("signals.icc", embedded, holds),
    ):
        assert str(others) == "not measured on web pairs"


@pytest.mark.usefixtures("measured", "measured_on_web")
def test_no_figure_of_photographs_stands_for_web_pairs(tmp_path: Path) -> None:
    """What planted noise among photographs that people described gives (.97, .52) is not shown for alt texts."""
    ctx = photo_pool(tmp_path, image_domain=None)
    assert ctx.pool.image_domain == "web"
    shown = worths_of(ctx, ["signals.clip_score", "signals.icc"])
    assert shown == {
        "signals.clip_score": "AUC all kinds .71 [.67, .74], n 647",  # no run yet: no kinds
        "signals.icc": "not measured on web pairs",
    }
    assert "clip" not in {policy.name for policy in policies_of(ctx)}, "at chance on photographs, it is at chance here"
    beside = worths_of(ctx, ["fused.web", "signals.icc"])  # two questions, two numbers, side by side
    assert list(beside) == ["fused.web", "signals.clip_score", "signals.descriptive", "signals.icc"]
    assert beside["signals.descriptive"] == "AUC of descriptive texts against others, all kinds .89 [.85, .92], n 377"


def store_rows(ctx: PoolContext, table: str, rows: pl.DataFrame) -> None:
    ctx.store.write(table, rows, "photos-000000", code_version="1")


@pytest.mark.usefixtures("measured_on_web")
def test_kinds_and_languages_are_counted_from_the_pools_tables(tmp_path: Path) -> None:
    ctx = photo_pool(tmp_path, image_domain=None)
    assert composition_of(ctx) is None
    captions = ["a dog", "рыжий кот на окне", "ein Hund", "42", None]
    ids = pl.DataFrame({"sample_id": [f"{i:032x}" for i in range(5)], "source_row": list(range(5))})
    status = pl.Series("status", ["kept", "kept", "kept", "kept", "dropped"])
    store_rows(ctx, "raw/samples", ids.with_columns(pl.Series("caption", captions), status))
    kinds = pl.Series("kind", ["photo", "photo", "screenshot", None, None], dtype=pl.String)
    store_rows(ctx, "signals/image_kind", ids.with_columns(kinds))
    by_script = composition_of(ctx)
    assert by_script is not None
    assert by_script.counts == {
        ("photo", "en"): 1, ("photo", "other"): 1, ("screenshot", "en"): 1, ("unknown", "en"): 1,
    }  # fmt: skip
    values = pl.Series("value", [1.0, 0.0, 0.0, None, None])
    store_rows(ctx, "signals/english", ids.with_columns(values))
    judged = composition_of(ctx)
    assert judged is not None
    assert judged.counts == {
        ("photo", "en"): 1, ("photo", "other"): 1, ("screenshot", "other"): 1, ("unknown", "en"): 1,
    }  # fmt: skip
    assert worths_of(ctx, ["signals.clip_score"])["signals.clip_score"].endswith("not measured: 50% of the rows")


def test_what_ships_was_measured_with_models_that_profiles_name() -> None:
    """A row that no shipped profile could show would be a leftover."""
    shipped = [load_profile(name) for name in ("embedded", "photos")]
    profiles = [profile.with_roles(student="embedded:icc_student") for profile in shipped]
    for row in pl.read_csv(worth.MEASURED).iter_rows(named=True):
        engines = {worth.engines_of(row["reference"], profile) for profile in profiles}
        assert (row["engines"] or "") in engines, row
        assert 0 <= row["low"] <= row["auc"] <= row["high"] <= 1
        assert min(row["n"], row["n_clean"]) >= 30
    for row in pl.read_csv(worth.MEASURED_ON_WEB).iter_rows(named=True):
        engines = {worth.engines_of(row["reference"], profile) for profile in profiles}
        assert (row["engines"] or "") in engines, row
        assert row["kind"] in {*KINDS, worth.ANY_KIND}
        assert row["language"] in {worth.ENGLISH, worth.OTHER_LANGUAGE}
        method = all_methods().get(row["reference"].removeprefix("signals."))
        reads_text_alone = method is not None and set(method.columns) <= {"caption"}
        assert row["of"] == (worth.DESCRIPTIVE if reads_text_alone else worth.OWN_TEXT), row
        assert 0 <= row["low"] <= row["auc"] <= row["high"] <= 1
        assert row["n"] >= 30

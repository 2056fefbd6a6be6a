"""DataComp's text side: the exact rules at their edges, and the bundled language identifier on real captions."""

import polars as pl
import pytest

from curation_assets.core.roles import LanguageIdentifier
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import get_method
from curation_assets.numeric.datacomp import broken_caption_rule, broken_image_based_caption_rule, broken_size_rule
from curation_assets.scoring.files import score_file
from curation_assets.scoring.parameters import with_parameters
from curation_assets.scoring.samples import score_samples
from tests.support.paths import SHARED_DATA, shared


@pytest.mark.parametrize(
    ("caption", "basic", "image_based"),
    [
        ("a red kite", None, None),
        ("red kite", ("too_few_words", 2), None),  # the two caption filters differ here
        ("kites", ("too_few_words", 1), ("too_few_words", 1)),
        ("a b c", ("too_few_characters", 5), ("too_few_characters", 5)),
        ("a b cd", None, None),
        ("", ("too_few_words", 0), ("too_few_words", 0)),
        ("a\u00a0red\u00a0kite", None, ("too_few_words", 1)),  # fastText does not split at a no-break space
    ],
)
def test_caption_rules(caption, basic, image_based):
    assert broken_caption_rule(caption) == basic
    assert broken_image_based_caption_rule(caption) == image_based


@pytest.mark.parametrize(
    ("width", "height", "broken"),
    [
        (200, 200, None),
        (600, 200, None),
        (200, 600, None),
        (601, 200, ("too_elongated", 3.005)),
        (199, 400, ("too_small", 199)),
        (0, 400, ("too_small", 0)),
    ],
)
def test_size_rules(width, height, broken):
    assert broken_size_rule(width, height) == broken


def test_limits_of_size_are_settings() -> None:
    method = get_method("datacomp_basic")
    sizes = {"original_width": [128, 99, 400], "original_height": [128, 128, 100]}
    given = {"caption": ["a red kite"] * 3, "language_identifier": method.example.roles["language_identifier"]}
    assert method.function(**given, **sizes).details["rule"] == ["too_small"] * 3
    settled = with_parameters(method, min_side_px=100, max_aspect_ratio=4).function(**given, **sizes)
    assert settled.value.tolist() == [1, 0, 1]
    assert settled.details["rule"] == [None, "too_small", None]
    with pytest.raises(ValueError, match="must be at least 1"):
        broken_size_rule(10, 10, min_side_px=0)


def test_the_first_broken_rule_is_told_with_its_value():
    method = get_method("datacomp_basic")
    values = method.function(**method.example.columns, **method.example.roles)
    assert values.details["rule"] == [None, "too_small", "too_elongated", "too_few_words", "not_english"]
    assert values.details["rule_value"] == [None, 199.0, 3.005, 1.0, 0.9]
    caption = get_method("datacomp_caption")
    loose = caption.function(["red kite"], **caption.example.roles, filtering="image_based")
    assert loose.value.tolist() == [1.0]
    with pytest.raises(ValueError, match="filtering must be one of basic, image_based"):
        caption.function(["red kite"], **caption.example.roles, filtering="text_based")


def test_an_image_of_unknown_size_has_no_value():
    method = get_method("datacomp_basic")
    samples = pl.DataFrame(
        {
            "sample_id": ["0" * 32, "1" * 32],
            "caption": ["a red kite"] * 2,
            "original_width": [300, None],
            "original_height": [300, 300],
        }
    )
    scored = score_samples(method, samples, method.example.roles)
    assert scored["value"].to_list() == [1.0, None]
    assert scored["reason"].to_list() == [None, "no_original_width"]


def test_laion_filter_tells_cosine_and_rule():
    method = get_method("laion_filter")
    values = method.function(**method.example.columns, **method.example.roles, threshold=0.7)
    assert values.value.tolist() == [1.0, 0.0, 0.0]
    assert values.details["rule"] == [None, "low_cosine", "low_cosine"]
    assert values.details["rule_value"][1:] == pytest.approx([0.0, 0.6])
    at_threshold = method.function(**method.example.columns, **method.example.roles, threshold=0.6)
    assert at_threshold.value.tolist() == [1.0, 0.0, 1.0]


# --- the bundled identifier ---


@pytest.fixture(scope="module")
def identifier():
    return load_engine("language_identifier", load_profile("embedded"))


def test_the_identifier_fills_its_role(identifier):
    assert isinstance(identifier, LanguageIdentifier)
    texts = [
        "a brown dog runs over the grass",
        "ein brauner Hund läuft über die Wiese",
        "un chien brun court dans l'herbe\nprès de la maison",
        "",
        " \n",
    ]
    languages, probabilities = identifier.identify_languages(texts)
    assert languages == ["en", "de", "fr", "", ""]
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    assert probabilities[3:].tolist() == [0.0, 0.0]
    assert identifier.identify_languages([])[0] == []


def test_basic_filtering_keeps_photo_captions_and_drops_other_languages(identifier):
    path = shared("captions/coco_val2017_captions.parquet")
    captions = pl.read_parquet(path)["caption"].head(1000).to_list()
    values = get_method("datacomp_caption").function(captions, identifier)
    assert values.value.mean() > 0.97  # human-written English sentences
    web = pl.read_parquet(SHARED_DATA / "captions/alt_texts.parquet")
    raw = web.filter(pl.col("source") == "img2dataset_test_10000")["text"].drop_nulls().head(1000).to_list()
    dropped = get_method("datacomp_caption").function(raw, identifier)
    assert 0.05 < dropped.value.mean() < 0.95  # raw web alt-text: several languages, many stubs
    assert {"not_english", "too_few_words"} <= set(dropped.details["rule"])


def test_other_identifier_folders(tmp_path):
    (tmp_path / "notes.txt").write_text("no model")
    profile = load_profile("embedded").with_roles(language_identifier=f"path:{tmp_path}")
    with pytest.raises(ValueError, match=r"expected one \.bin or \.ftz model"):
        load_engine("language_identifier", profile)


SIZES = (("640", "480"), ("640", "100"), ("wide", "480"))


def test_sizes_in_a_text_file_are_numbers(tmp_path):
    rows = ["caption,original_width,original_height", *(f"a red kite over the sea,{w},{h}" for w, h in SIZES)]
    (tmp_path / "pairs.csv").write_text("\n".join(rows) + "\n")
    method = get_method("datacomp_basic")
    roles = {role: load_engine(role, load_profile("embedded")) for role in method.roles}
    scored = score_file(method, tmp_path / "pairs.csv", tmp_path / "out.csv", roles)
    assert scored["datacomp_basic"].to_list() == [1.0, 0.0, None]
    assert scored["datacomp_basic_reason"].to_list() == [None, None, "no_original_width"]

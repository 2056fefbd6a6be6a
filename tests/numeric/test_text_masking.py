"""Masking of text in images, letter by letter and pixel by pixel, and the methods and engine that rest on it."""

import numpy as np
import pytest
from PIL import Image

from curation_assets.core.roles import TextSpotter
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import get_method
from curation_assets.numeric.separation import roc_auc
from curation_assets.numeric.text_masking import TextBox, box_pixels, is_confirmed, paint_over, shared_words
from curation_assets.scoring.parameters import with_parameters
from curation_assets.world.pool import plant_pool, render

SQUARE = (4.0, 4.0, 7.0, 4.0, 7.0, 7.0, 4.0, 7.0)  # 4 × 4 px: the outline is part of it


def box(text, confidence=0.9, polygon=SQUARE):
    return TextBox(text, confidence, tuple(polygon))


@pytest.mark.parametrize(
    ("text", "confidence", "confirmed"),
    [
        ("SALE", 0.9, True),
        ("OK", 0.5, True),
        ("OK", 0.49, False),
        ("F", 0.99, False),
        ("★★★", 0.9, False),
        ("", 1, False),
    ],
)
def test_letters_are_confirmed_before_a_box_counts(text, confidence, confirmed):
    assert is_confirmed(box(text, confidence)) is confirmed


def test_words_shared_with_the_caption():
    boxes = [box("SUMMER-Sale"), box("Summer"), box("beach", 0.79), box("1234"), box("Straße")]
    assert shared_words("A summer sale at the beach, STRASSE 1234", boxes) == ["summer", "strasse"]
    assert shared_words("midsummer", boxes) == []  # whole words only


def test_polygons_are_cut_at_the_image():
    assert box_pixels((10, 10), SQUARE).sum() == 16
    assert box_pixels((10, 10), (8, 8, 30, 8, 30, 30, 8, 30)).sum() == 4
    assert not box_pixels((10, 10), (20, 20, 30, 20, 30, 30)).any()


def test_fill_modes():
    """A red box on grey paper, black far away: the ring sees grey, the box red, the image all of it."""
    pixels = np.full((16, 16, 3), 100, np.uint8)
    pixels[:, 12:] = 0
    pixels[4:8, 4:8] = (250, 0, 0)
    ring = paint_over(pixels, [SQUARE])
    assert (ring[:, :12] == 100).all()
    assert (ring[:, 12:] == 0).all()
    assert (paint_over(pixels, [SQUARE], "box_mean") == pixels).all()
    mean = pixels.reshape(-1, 3).mean(axis=0).round()
    assert (paint_over(pixels, [SQUARE], "image_mean")[5, 5] == mean).all()
    assert (pixels[5, 5] == (250, 0, 0)).all(), "the input stays as it is"
    with pytest.raises(ValueError, match="fill must be one of ring_mean, box_mean, image_mean"):
        paint_over(pixels, [SQUARE], "white")


def test_rings_leave_out_other_boxes_and_fall_back_to_the_image():
    pixels = np.full((16, 16, 3), 80, np.uint8)
    pixels[4:8, 4:8] = 255
    pixels[4:8, 8:12] = 255
    neighbour = (8.0, 4.0, 11.0, 4.0, 11.0, 7.0, 8.0, 7.0)
    assert (paint_over(pixels, [SQUARE, neighbour]) == 80).all()
    whole = (0.0, 0.0, 15.0, 0.0, 15.0, 15.0, 0.0, 15.0)
    assert (paint_over(pixels, [whole]) == np.round(pixels.reshape(-1, 3).mean(axis=0))).all()  # nothing outside
    assert (paint_over(pixels, [(40, 40, 50, 40, 50, 50)]) == pixels).all()
    assert (paint_over(pixels, []) == pixels).all()


def test_box_mean_works_on_the_painted_image():
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, :4] = 200
    first, second = (0, 0, 3, 0, 3, 3, 0, 3), (2, 0, 5, 0, 5, 3, 2, 3)
    painted = paint_over(pixels, [first, second], "box_mean")
    assert painted[0, 3].tolist() == [100] * 3  # half of the second box was 200, half 0
    assert painted[0, 0].tolist() == [200] * 3


def test_a_damaged_box_is_refused():
    with pytest.raises(ValueError, match="three corners or more"):
        TextBox.of({"text": "a", "confidence": 1.0, "polygon": [0.0, 1.0]})


def test_tmars_tells_how_much_it_painted():
    method = get_method("tmars")
    details = method.function(**method.example.columns, **method.example.roles).details
    assert details["text_count"] == [0, 1, 1, 0]
    assert details["masked_share"] == [0.0, 9 / 64, 9 / 64, 0.0]
    strict = with_parameters(method, min_confidence=0.95)
    assert strict.function(**method.example.columns, **method.example.roles).value.tolist() == [1, 1, 0, 0]


@pytest.fixture(scope="module")
def spotter():
    return load_engine("text_spotter", load_profile("embedded"))


@pytest.mark.slow
def test_real_ocr_reads_planted_words_and_masking_them_separates(spotter):
    """With real OCR, masking lifts clean-of-text-only separation among images with text from about chance."""
    assert isinstance(spotter, TextSpotter)
    planted = plant_pool(700, 11)
    scenes = [s for s in planted if s.kind == "scene_text"][:16]
    pages = [s for s in planted if s.kind == "text_only"][:16]
    clean = [s for s in planted if s.kind == "clean"][:8]
    samples = [*scenes, *pages, *clean]
    images, captions = [render(s) for s in samples], [s.caption for s in samples]
    boxes = spotter.spot_text(images)
    read = {word for found in boxes[:32] for one in found for word in [one.text.upper()]}
    assert len(read & {overlay.text.upper() for s in [*scenes, *pages] for overlay in s.scene.overlays}) > 15
    assert all(any(map(is_confirmed, found)) for found in boxes[:32])
    assert sum(any(map(is_confirmed, found)) for found in boxes[32:]) <= 1
    encoder = load_engine("image_text_encoder", load_profile("embedded"))
    rows = [[vars(one) for one in found] for found in boxes]
    masked = get_method("tmars").function(images, captions, rows, encoder).value
    plain = get_method("clip_score").function(images, captions, encoder).value
    is_scene = np.arange(32) < 16
    assert roc_auc(masked[:32], is_scene) > max(0.7, roc_auc(plain[:32], is_scene) + 0.1)
    without_text = [32 + i for i, found in enumerate(boxes[32:]) if not any(map(is_confirmed, found))]
    np.testing.assert_allclose(masked[without_text], plain[without_text], atol=1e-5)
    spotted = get_method("text_spotting").function(captions, rows)
    assert (spotted.value[32:] == 1).all()
    assert spotted.value[16:32].mean() < 0.5  # a text-only caption spells out its words, some too short to count
    assert spotter.spot_text([Image.new("RGB", (4, 300))]) == [[]]


def test_spotter_settings_and_folders(tmp_path):
    profile = load_profile("embedded").with_roles(text_spotter=f"path:{tmp_path}")
    (tmp_path / "x_det.onnx").write_bytes(b"")
    with pytest.raises(ValueError, match=r"expected one \*_rec\*\.onnx model"):
        load_engine("text_spotter", profile)
    profile.generation["text_spotter"] = {"side": 3}
    with pytest.raises(ValueError, match=r"generation\.text_spotter has no setting 'side'; did you mean 'side_px'"):
        load_engine("text_spotter", profile)

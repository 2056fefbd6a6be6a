"""Image quality and watermarks: settings, reasons, the shipped policy in a pool, and text that is really read."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from curation_assets.core.settings import load_profile, load_settings
from curation_assets.engines import load_engine
from curation_assets.flow.context import PoolContext
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.methods import get_method
from curation_assets.scoring.derived import derive_column
from curation_assets.scoring.parameters import with_parameters
from curation_assets.sources.declaration import add_pool
from curation_assets.world.pool import plant_pool, render
from tests.support.paths import SHARED_DATA
from tests.support.tars import encoded, tar_of

METHODS = ["image_blur", "image_dark", "image_light", "image_entropy", "image_aspect"]


def textured(seed: int = 0, size: tuple[int, int] = (256, 192)) -> Image.Image:
    """Coloured noise of several scales, as busy as a photograph."""
    rng = np.random.default_rng(seed)
    layers = [
        np.asarray(Image.fromarray(rng.integers(0, 256, (n, n, 3), dtype=np.uint8)).resize(size), dtype=np.float64)
        for n in (4, 16, 64)
    ]
    return Image.fromarray(np.mean(layers, axis=0).astype(np.uint8))


def flawed(kind: str, image: Image.Image) -> Image.Image:
    """The image with one flaw."""
    if kind == "image_blur":
        return image.filter(ImageFilter.GaussianBlur(0.03 * max(image.size)))
    if kind == "image_dark":
        return image.point(lambda level: level * 0.25)
    if kind == "image_light":
        return image.point(lambda level: 250 + level * 5 / 255)
    if kind == "image_entropy":
        return image.point(lambda level: 40 if level < 128 else 200)
    return image.resize((300, 60))


def test_blur_has_two_definitions_and_a_reason() -> None:
    blur = get_method("image_blur")
    sharp, strip = textured(), Image.new("RGB", (900, 5))
    values = blur.function([sharp, strip])
    assert values.reason == [None, "too_small"]
    assert np.isnan(values.value[1])
    assert values.details["laplacian_variance"][1] is None
    deviation = np.sqrt(values.details["laplacian_variance"][0])
    assert values.value[0] == pytest.approx(deviation / (deviation + 10))
    published = with_parameters(blur, definition="cleanvision").function([sharp, strip])
    assert published.reason == values.reason
    assert published.value[0] != values.value[0]
    with pytest.raises(ValueError, match="one of laplacian, cleanvision, got 'sobel'"):
        blur.function([sharp], definition="sobel")


@pytest.mark.parametrize("name", ["image_entropy", "image_light"])
def test_a_blank_page_has_little_in_it(name: str) -> None:
    page, texture = Image.new("RGB", (60, 60), "white"), textured()
    assert get_method(name).function([page]).value[0] < 0.3 < get_method(name).function([texture]).value[0]


def test_the_policy_drops_each_flaw_by_its_signal(tmp_path: Path) -> None:
    kinds = [None, *METHODS]
    members = {}
    for number, kind in enumerate(kinds):
        image = textured(number) if kind is None else flawed(kind, textured(number))
        meta = json.dumps({"width": image.width, "height": image.height}).encode()
        parts = {".png": encoded(image, "PNG"), ".txt": b"a caption of it", ".json": meta}
        members |= {f"{number:05d}{suffix}": data for suffix, data in parts.items()}
    tar_of(tmp_path / "00000.tar", members)
    settings = load_settings(tmp_path / "home", "embedded")
    options = {"methods": METHODS, "policies": ["image_quality"], "distil": False, "downstream": False, "fraction": 0.5}
    add_pool(settings, "flaws", tmp_path / "00000.tar", options=options)
    ctx = PoolContext.open(settings, "flaws")
    run_with_upstream(ctx, "filtered/image_quality")
    rows = ctx.store.scan("filtered/image_quality").collect().sort("source_row").to_dicts()
    assert rows[0]["verdict"] == "kept"
    for row, kind in zip(rows[1:], METHODS, strict=True):
        assert row["verdict"] == "dropped"
        assert kind in row["reason"], row["reason"]


def stamped(text: str, image: Image.Image, is_tiled: bool = False) -> Image.Image:
    """The image with white text, outlined in grey and a quarter transparent, once or on a turned grid."""
    layer = Image.new("RGBA", (2 * image.width, 2 * image.height), (0, 0, 0, 0))
    draw = ImageDraw.Draw(layer)
    style = {"font": ImageFont.load_default(34), "fill": (255, 255, 255, 190), "stroke_width": 1}
    style["stroke_fill"] = (60, 60, 60, 190)
    if not is_tiled:
        draw.text((image.width // 2 + 12, image.height), text, **style)
    else:
        for top in range(0, layer.height, 80):
            for left in range(0, layer.width, 170):
                draw.text((left, top), text, **style)
        layer = layer.rotate(20)
    left, top = image.width // 2, image.height // 2
    layer = layer.crop((left, top, left + image.width, top + image.height))
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


@pytest.mark.slow
def test_rendered_watermarks_are_read() -> None:
    scene = render([s for s in plant_pool(40, 9) if s.kind == "clean"][1]).resize((400, 400))
    images = [
        scene,
        stamped("shutterstock", scene),
        stamped("getty images", scene),
        stamped("(c) 2014 Ann Lee", scene),
        stamped("SAMPLE", scene),
        stamped("LeeArt", scene, is_tiled=True),
        stamped("Summer Sale", scene),
    ]
    samples = pl.DataFrame({"sample_id": [f"{i:032x}" for i in range(len(images))]})
    boxes = derive_column(
        "text_boxes",
        samples,
        load_engine("text_spotter", load_profile("embedded")),
        load_image=lambda row: images[int(row["sample_id"], 16)],
    )
    values = get_method("watermark").function(boxes["text_boxes"].to_list())
    assert values.details["rule"] == [None, "agency", "agency", "notice", "stamp", "repeated", None]
    assert values.value.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert values.details["matched"][5] == "leeart"


def test_further_names_come_from_a_file(tmp_path: Path) -> None:
    boxes = [[{"text": "Ann Lee Pictures", "confidence": 0.9, "polygon": [0, 0, 9, 0, 9, 9]}]]
    watermark = get_method("watermark")
    assert watermark.function(boxes).value.tolist() == [1.0]
    (tmp_path / "names.txt").write_text("# ours\nann lee\n")
    named = with_parameters(watermark, path=str(tmp_path / "names.txt")).function(boxes)
    assert named.details["rule"] == ["agency"]
    assert named.details["matched"] == ["ann lee"]
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match="write one name a line"):
        with_parameters(watermark, path=str(tmp_path / "empty.txt"))


@pytest.mark.skipif(not (SHARED_DATA / "photos").is_dir(), reason=f"no photographs at {SHARED_DATA / 'photos'}")
def test_thresholds_on_photographs() -> None:
    """Of photographs as they are nearly all pass each threshold of the policy; of flawed copies nearly none."""
    with tarfile.open(SHARED_DATA / "photos" / "000003.tar") as tar:
        files = [tar.extractfile(member) for member in tar if member.name.endswith(".jpg")][:60]
        photos = [Image.open(io.BytesIO(file.read())).convert("RGB") for file in files if file]
    thresholds = {"image_blur": 0.5, "image_dark": 0.32, "image_light": 0.05, "image_entropy": 0.3}
    for name, threshold in thresholds.items():
        score = get_method(name).function
        assert (score(photos).value >= threshold).mean() >= 0.98, name
        assert (score([flawed(name, photo) for photo in photos]).value < threshold).mean() >= 0.95, name

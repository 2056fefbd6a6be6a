"""Hash lists, personal data, and the classifier hook."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from curation_assets.core.roles import SafetyClassifier
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import get_method
from curation_assets.methods.personal_data import read_patterns
from curation_assets.numeric.personal_data import passes_iban, passes_luhn, personal_data
from curation_assets.scoring.parameters import with_parameters
from curation_assets.stores.hash_lists import read_hash_lists
from curation_assets.world.pool import plant_pool, render
from tests.support.photos import read_photos
from tests.support.tars import encoded


@pytest.fixture(scope="module")
def scenes() -> list[Image.Image]:
    return [render(s).resize((256, 256)) for s in plant_pool(40, 9) if s.kind == "clean"]


def pdq_of(image: Image.Image) -> str:
    import pdqhash

    bits, quality = pdqhash.compute(np.asarray(image))
    assert quality >= 50
    return np.packbits(np.asarray(bits, np.uint8)).tobytes().hex()


def test_bytes_and_pictures_match(tmp_path: Path, scenes: list[Image.Image]) -> None:
    first, second, third, other = scenes[:4]
    lines = [
        "# supplied by the operator",
        "",
        hashlib.md5(encoded(first, quality=90)).hexdigest().upper(),
        f"sha256:{hashlib.sha256(encoded(second, quality=90)).hexdigest()}",
        f"PDQ:{pdq_of(third)}",
    ]
    (tmp_path / "list.txt").write_text("\n".join(lines))
    found = read_hash_lists([tmp_path / "list.txt"])
    assert found
    assert found.matches(encoded(first, quality=90))
    assert found.matches(encoded(second, quality=90))
    assert not found.matches(encoded(second, quality=60)), "other bytes, and its picture is not listed"
    for copy in (third, third.resize((180, 180)), third.transpose(Image.Transpose.FLIP_LEFT_RIGHT), third.rotate(90)):
        assert found.matches(encoded(copy, quality=60))
    assert not found.matches(encoded(other, quality=90))
    assert not found.matches(b"no image")
    assert found.matches(b"a re-encoded copy", [hashlib.sha256(encoded(second, quality=90)).hexdigest(), None])


def test_lists_are_told_apart_by_content(tmp_path: Path) -> None:
    one, same, more = (tmp_path / name for name in ("one", "same", "more"))
    one.write_text("0" * 32 + "\n" + "1" * 64)
    same.write_text("1" * 64 + "\n# a comment\nmd5:" + "0" * 32)
    more.write_text("2" * 64)
    assert read_hash_lists([one]).digest == read_hash_lists([same]).digest
    assert read_hash_lists([one]).digest != read_hash_lists([one, more]).digest
    assert not read_hash_lists([])
    more.write_text("secret")
    with pytest.raises(ValueError, match="more, line 1: expected md5:") as error:
        read_hash_lists([more])
    assert "secret" not in str(error.value)
    more.write_text("pdq:" + "0" * 32)
    with pytest.raises(ValueError, match="line 1"):
        read_hash_lists([more])
    with pytest.raises(FileNotFoundError, match="no hash list"):
        read_hash_lists([tmp_path / "absent"])


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("a red kite over 12 beaches", []),
        ("mail ann.b+c@mail.example.org now", ["email"]),
        ("@example on stage", []),
        ("host 192.168.1.1", ["ip_address"]),
        ("version 1.2.3.4.5", []),
        ("card 4111-1111-1111-1111", ["card_number"]),
        ("serial 4111 1111 1111 1112", []),
        ("pay GB82 WEST 1234 5698 7654 32", ["iban"]),
        ("pay GB82 WEST 1234 5698 7654 33", []),
        ("call +49 (30) 1234 567 or (030) 123 456", ["phone_number"]),
        ("call 555-123-4567", ["phone_number"]),
        ("on 2023-11-04, ISBN 978-3-16-148410-0", []),
    ],
)
def test_personal_data(text: str, kinds: list[str]) -> None:
    assert personal_data(text) == kinds


def test_check_digits() -> None:
    assert passes_luhn("79927398713")
    assert not passes_luhn("79927398710")
    assert passes_iban("DE89 3704 0044 0532 0130 00")
    assert not passes_iban("DE88 3704 0044 0532 0130 00")


def test_further_patterns_come_from_a_table(tmp_path: Path) -> None:
    (tmp_path / "patterns.tsv").write_text("kind\tpattern\nplate\t[A-Z]{2}-[A-Z]{2} \\d{4}\n")
    method = with_parameters(get_method("personal_data"), path=str(tmp_path / "patterns.tsv"))
    values = method.function(["B-XY 1", "HH-AB 1234"])
    assert values.value.tolist() == [1.0, 0.0]
    assert values.details["kinds"] == ["", "plate"]
    with pytest.raises(ValueError, match="no regular expression"):
        read_patterns({"kind": ["a"], "pattern": ["("]})
    with pytest.raises(ValueError, match="columns kind and pattern"):
        read_patterns({"name": ["a"]})


def test_any_saved_image_classifier_fills_the_role(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=8,
        id2label={0: "normal", 1: "nsfw", 2: "gore"}, label2id={"normal": 0, "nsfw": 1, "gore": 2},
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(tmp_path)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    profile = load_profile("embedded").with_roles(safety_classifier=f"path:{tmp_path}")
    profile.generation["safety_classifier"] = {"unsafe_labels": ["nsfw", "gore"]}
    engine = load_engine("safety_classifier", profile)
    assert isinstance(engine, SafetyClassifier)
    images = [Image.new("RGB", (40, 30), colour) for colour in ("red", "blue", "white")]
    values = get_method("nsfw").function(images, engine).value
    assert ((values > 0) & (values < 1)).all()
    np.testing.assert_allclose(get_method("nsfw").function(images[1:2], engine).value, values[1:2], atol=1e-6)
    profile.generation["safety_classifier"] = {"unsafe_labels": ["NSFW"]}
    with pytest.raises(ValueError, match=r"has the labels \['gore', 'normal', 'nsfw'\]"):
        load_engine("safety_classifier", profile)


def test_probabilities_out_of_range_are_refused() -> None:
    class Odd:
        def unsafe_probabilities(self, images: list[Image.Image]) -> np.ndarray:
            return np.array([1.5, np.nan])

    with pytest.raises(ValueError, match=r"probabilities in \[0, 1\], got 1.5"):
        get_method("nsfw").function([Image.new("RGB", (1, 1))] * 2, Odd())
    with pytest.raises(ValueError, match="fills no role 'safety_classifier'"):
        load_engine("safety_classifier", load_profile("embedded"))


def test_every_turned_or_mirrored_photograph_of_a_list_is_found(tmp_path: Path) -> None:
    photos = read_photos(12)
    path = tmp_path / "list.txt"
    path.write_text("\n".join(f"pdq:{pdq_of(photo.convert('RGB'))}" for photo in photos.values()))
    listed = read_hash_lists([path])
    for key, photo in photos.items():
        for turn in Image.Transpose:
            saved = io.BytesIO()
            photo.convert("RGB").transpose(turn).save(saved, "JPEG", quality=90)
            assert listed.matches(saved.getvalue()), (key, turn)

"""The role copy_descriptor: SSCD in its published layout, loaded by the production code; copies in a pool are found."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from curation_assets.core.roles import CopyDescriptor
from curation_assets.core.settings import load_profile, load_settings
from curation_assets.core.table_names import NEAR_DUPLICATES
from curation_assets.engines import identify_engine, load_engine
from curation_assets.engines.copy_descriptor import MEAN, STANDARD_DEVIATION, scaled_size
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.options import DuplicateSettings
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.sources.declaration import add_pool
from tests.methods.test_image_methods import write_tar
from tests.support.near_duplicates import duplicates_of
from tests.support.paths import REPOSITORY
from tests.support.tars import encoded
from tests.support.tiny_models import blurred_noise, make_images, profile_of, save_sscd, sscd_network

PIXELS, DIMENSIONS = 96, 24
CARD = REPOSITORY / "docs" / "models" / "sscd.md"


@pytest.fixture(scope="module")
def net() -> Any:
    return sscd_network(0, DIMENSIONS)


@pytest.fixture(scope="module")
def folder(net: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models") / "sscd"
    save_sscd(net, made, PIXELS)
    return made


def expected(net: Any, image: Image.Image) -> np.ndarray:
    """The published steps for one image, in torchvision's network."""
    width, height = image.size
    scale = PIXELS / min(width, height)
    size = (PIXELS, int(height * scale + 1e-9)) if width <= height else (int(width * scale + 1e-9), PIXELS)
    pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR)) / 255
    normalised = torch.from_numpy((pixels - MEAN) / STANDARD_DEVIATION).float().permute(2, 0, 1)[None]
    with torch.inference_mode():
        made = net(normalised)[0].numpy()
    return made / np.linalg.norm(made)  # type: ignore[no-any-return]


def test_vectors_are_those_of_the_published_network(net: Any, folder: Path) -> None:
    engine = load_engine("copy_descriptor", profile_of("copy_descriptor", folder))
    assert isinstance(engine, CopyDescriptor)
    images = [*make_images(5), *blurred_noise(3, 0), *make_images(5)]  # some of one size, in a batch of 3
    vectors = engine.describe_images(images)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, [expected(net, image) for image in images], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
    np.testing.assert_allclose(engine.describe_images(images[3:4]), vectors[3:4], atol=1e-5)
    assert engine.describe_images([]).shape == (0, DIMENSIONS)
    assert engine.identity == identify_engine("copy_descriptor", profile_of("copy_descriptor", folder))


def test_the_shorter_side_is_scaled_and_a_strip_is_squeezed() -> None:
    assert scaled_size(500, 375, 288) == (384, 288)
    assert scaled_size(375, 500, 288) == (288, 384)
    assert scaled_size(100, 100, 288) == (288, 288)
    assert scaled_size(10_000, 10, 288) == (1152, 288)


def test_the_card_converts_a_published_file(net: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {f"backbone.{name}": tensor for name, tensor in net.state_dict().items()}
    torch.save(state, tmp_path / "sscd_disc_mixup.torchvision.pt")
    code = re.findall(r"```python\n(.*?)```", CARD.read_text(), flags=re.DOTALL)
    assert len(code) == 1
    monkeypatch.chdir(tmp_path)
    exec(code[0], {})
    config = json.loads((tmp_path / "sscd" / "config.json").read_text())
    (tmp_path / "sscd" / "config.json").write_text(json.dumps({**config, "layers": [1, 1, 1, 1], "pixels": PIXELS}))
    engine = load_engine("copy_descriptor", profile_of("copy_descriptor", tmp_path / "sscd"))
    image = blurred_noise(1, 3)[0]
    np.testing.assert_allclose(engine.describe_images([image])[0], expected(net, image), atol=1e-5)


def test_what_is_no_sscd_is_refused(net: Any, tmp_path: Path) -> None:
    def load() -> None:
        load_engine("copy_descriptor", profile_of("copy_descriptor", tmp_path / "sscd"))

    save_sscd(net, tmp_path / "sscd", PIXELS)
    config = tmp_path / "sscd" / "config.json"
    good = config.read_text()
    for content in ('{"model_type": "clip"}', '{"model_type": "sscd", "pixel": 288}'):
        config.write_text(content)
        with pytest.raises(ValueError, match=r"is no SSCD: .*docs/models/sscd.md"):
            load()
    config.write_text('{"model_type": "sscd"}')  # the full ResNet-50, which the file is not
    with pytest.raises(ValueError, match=r"is not the network of its config.json, layers \[3, 4, 6, 3\]"):
        load()
    config.write_text(good)
    weights = tmp_path / "sscd" / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(weights).items() if "fc" not in name}, weights)
    with pytest.raises(ValueError, match=r"holds no backbone.fc.weight"):
        load()
    with pytest.raises(ValueError, match="takes path:, hub: addresses"):
        load_engine("copy_descriptor", profile_of("copy_descriptor", "embedded:clip"))
    with pytest.raises(ValueError, match="fills no role 'copy_descriptor'"):
        load_engine("copy_descriptor", load_profile("embedded"))


def test_planted_copies_of_a_pool_are_found(folder: Path, tmp_path: Path) -> None:
    """Two copies among ten pictures: one of twice the size, one re-encoded."""
    pictures = blurred_noise(10, 5)
    large = Image.open(io.BytesIO(encoded(pictures[4], quality=60)))
    images = [*pictures, pictures[1].resize((248, 320)), large]
    (tmp_path / "source").mkdir()
    write_tar(tmp_path / "source" / "00000.tar", [(encoded(image), f"picture {at}") for at, image in enumerate(images)])
    settings = load_settings(tmp_path / "home", "embedded")
    options = {"duplicates": {"perceptual_bits": None, "copy_cosine": 0.75}, "image_domain": "other"}
    add_pool(settings, "spots", tmp_path / "source", options=options, roles={"copy_descriptor": f"path:{folder}"})
    ctx = PoolContext.open(settings, "spots")
    assert tables_of(ctx)["signals/copy_descriptor"].needs.roles == ("copy_descriptor",)
    run_with_upstream(ctx, NEAR_DUPLICATES)
    found = ctx.store.read(NEAR_DUPLICATES).sort("source_row")
    ids, of = found["sample_id"].to_list(), found["representative"].to_list()
    stays = min(ids[4], ids[11])  # of equal size; of the other two the larger one
    assert of[1] == of[10] == ids[10]
    assert of[4] == of[11] == stays
    assert sorted(found.filter(pl.col("quality") == 0)["sample_id"]) == sorted([ids[1], max(ids[4], ids[11])])
    assert found["kind"].drop_nulls().to_list() == ["copy", "copy"]
    assert found["distance"].drop_nulls().is_between(0.0, 0.25).all()


def test_a_copy_goes_before_a_semantic_neighbour() -> None:
    """Row 0 is near to row 1 by both vectors, and to row 2 by its embedding alone, nearer than to row 1."""
    rows = pl.DataFrame(
        {
            "sample_id": [f"{at:032x}" for at in range(3)], "shard": "s", "source_row": [0, 1, 2],
            "image_sha256": ["a", "b", "c"], "width": 10, "height": [10, 12, 12],
            "status": "kept", "reason": pl.Series([None] * 3, dtype=pl.String),
            "copy_descriptor": [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]],
            "copy_descriptor_reason": pl.Series([None] * 3, dtype=pl.String),
            "image_embedding": [[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.96, 0.0, 0.28]],
            "image_embedding_reason": pl.Series([None] * 3, dtype=pl.String),
        }
    )  # fmt: skip
    found = duplicates_of(rows, DuplicateSettings(perceptual_bits=None, copy_cosine=0.75, cosine=0.79))
    assert found["quality"].to_list() == [0, 1, 1]
    assert (found["representative"][0], found["kind"][0]) == (f"{1:032x}", "copy")
    assert found["distance"][0] == pytest.approx(0.2, abs=1e-6)
    semantic = duplicates_of(rows, DuplicateSettings(perceptual_bits=None, cosine=0.79))
    assert (semantic["representative"][0], semantic["kind"][0]) == (f"{2:032x}", "semantic")


def test_a_table_of_before_stays_current(tmp_path: Path) -> None:
    settings = load_settings(tmp_path / "home", "embedded")
    (tmp_path / "source").mkdir()
    write_tar(tmp_path / "source" / "00000.tar", [(encoded(blurred_noise(1, 0)[0]), "a picture")])
    configs = []
    for name, given in (("old", {}), ("new", {"copy_cosine": 0.75})):
        add_pool(settings, name, tmp_path / "source", options={"duplicates": {"perceptual_bits": 3, **given}})
        ctx = PoolContext.open(settings, name)
        config = tables_of(ctx)[NEAR_DUPLICATES].config
        assert config is not None
        configs.append(config(ctx))
    assert "copy_cosine" not in configs[0]
    assert configs[1]["copy_cosine"] == 0.75

"""The role aesthetic_head: published layouts, converted and loaded by the production code, or refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from curation_assets.core.roles import AestheticHead
from curation_assets.core.settings import load_profile
from curation_assets.engines import identify_engine, load_engine
from curation_assets.engines.aesthetic_conversion import collapse, convert, linear_head
from curation_assets.methods import get_method
from tests.support.tiny_models import make_images, profile_of, save_clip

CLIP_WIDTH = 16  # of the tiny CLIP


def version_2(width: int, activation: bool = False) -> nn.Module:
    """The layers of LAION aesthetics v2: five linear ones with dropout, and no activation."""
    between = [nn.ReLU()] if activation else []
    net = nn.Module()
    net.layers = nn.Sequential(
        nn.Linear(width, 1024), *between, nn.Dropout(0.2), nn.Linear(1024, 128), *between, nn.Dropout(0.2),
        nn.Linear(128, 64), *between, nn.Dropout(0.1), nn.Linear(64, 16), *between, nn.Linear(16, 1),
    )  # fmt: skip
    return net.eval()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("clip")
    save_clip(folder)
    return folder


def converted(tmp_path: Path, net: nn.Module, clip: Path) -> Path:
    torch.save(net.state_dict(), tmp_path / "head.pth")
    convert(tmp_path / "head.pth", tmp_path / "head", f"path:{clip}")
    return tmp_path / "head"


@pytest.mark.parametrize("version", [1, 2])
def test_a_converted_head_scores_as_the_published_network(tmp_path: Path, clip: Path, version: int) -> None:
    torch.manual_seed(version)
    net = nn.Linear(CLIP_WIDTH, 1) if version == 1 else version_2(CLIP_WIDTH)
    engine = load_engine("aesthetic_head", profile_of("aesthetic_head", converted(tmp_path, net, clip)))
    assert isinstance(engine, AestheticHead)
    images = make_images(5)
    encoder = load_engine("image_text_encoder", profile_of("image_text_encoder", clip))
    with torch.inference_mode():
        embedded = torch.from_numpy(encoder.embed_images(images))
        expected = (net(embedded) if version == 1 else net.layers(embedded))[:, 0].numpy()
    values = get_method("aesthetic").function(images, engine).value
    np.testing.assert_allclose(values, expected, atol=1e-5)
    assert len(set(values.round(4))) == 5
    np.testing.assert_allclose(engine.aesthetic_scores(images[1:2]), values[1:2], atol=1e-6)
    assert engine.aesthetic_scores([]).shape == (0,)
    assert engine.identity == identify_engine("aesthetic_head", profile_of("aesthetic_head", tmp_path / "head"))


def test_layers_without_activation_are_one() -> None:
    torch.manual_seed(0)
    net = version_2(768)
    weight, bias = linear_head(net.state_dict())
    assert weight.shape == (1, 768)
    embedded = nn.functional.normalize(torch.randn(20, 768), dim=1)
    with torch.inference_mode():
        np.testing.assert_allclose(embedded @ weight.T + bias, net.layers(embedded), atol=1e-5)
    one, two = (torch.eye(2), torch.tensor([1.0, 0.0])), (torch.tensor([[2.0, 3.0]]), torch.tensor([5.0]))
    assert [part.tolist() for part in collapse([one, two])] == [[[2.0, 3.0]], [7.0]]


def test_other_layouts_are_refused() -> None:
    with pytest.raises(ValueError, match=r"got \['layers.0.bias'.*activations between its layers cannot"):
        linear_head(version_2(8, activation=True).state_dict())
    with pytest.raises(ValueError, match=r"expected one output.*got torch.Size\(\[2, 8\]\)"):
        linear_head(nn.Linear(8, 2).state_dict())


def test_a_head_of_another_width_is_refused(tmp_path: Path, clip: Path) -> None:
    head = converted(tmp_path, nn.Linear(24, 1), clip)
    with pytest.raises(ValueError, match=f"reads embeddings of 24 numbers, and path:{clip}.* gives 16; convert it"):
        load_engine("aesthetic_head", profile_of("aesthetic_head", head))


def test_a_head_of_another_encoder_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_clip(tmp_path / "clip")
    head = converted(tmp_path, nn.Linear(CLIP_WIDTH, 1), tmp_path / "clip")
    load_engine("aesthetic_head", profile_of("aesthetic_head", head))
    save_clip(tmp_path / "clip")  # other weights at the same address
    with pytest.raises(
        ValueError, match=r"head: fitted on path:.*clip with weights .*, got .*; bring those weights back"
    ):
        load_engine("aesthetic_head", profile_of("aesthetic_head", head))


def test_a_folder_that_was_not_converted_is_refused(tmp_path: Path, clip: Path) -> None:
    save_file({"weight": torch.zeros(16), "bias": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"config.json lacks \['image_text_encoder', .*Convert a published one"):
        load_engine("aesthetic_head", profile_of("aesthetic_head", tmp_path))
    head = converted(tmp_path, nn.Linear(CLIP_WIDTH, 1), clip)
    save_file({"weight": torch.zeros(1, 16)}, head / "model.safetensors")
    with pytest.raises(ValueError, match=r"expected weight .* and one bias, got \{'weight': \(1, 16\)\}"):
        load_engine("aesthetic_head", profile_of("aesthetic_head", head))


def test_a_flat_weight_loads_too(tmp_path: Path, clip: Path) -> None:
    net = nn.Linear(CLIP_WIDTH, 1)
    head = converted(tmp_path, net, clip)
    before = load_engine("aesthetic_head", profile_of("aesthetic_head", head)).aesthetic_scores(make_images(2))
    tensors = load_file(head / "model.safetensors")
    save_file({"weight": tensors["weight"][0].clone(), "bias": tensors["bias"]}, head / "model.safetensors")
    after = load_engine("aesthetic_head", profile_of("aesthetic_head", head)).aesthetic_scores(make_images(2))
    np.testing.assert_array_equal(after, before)


@pytest.mark.slow
def test_the_command_converts_and_overwrites_nothing(tmp_path: Path, clip: Path) -> None:
    torch.save(nn.Linear(CLIP_WIDTH, 1).state_dict(), tmp_path / "sa.pth")
    module = "curation_assets.engines.aesthetic_conversion"
    command = [
        sys.executable,
        "-m",
        module,
        str(tmp_path / "sa.pth"),
        str(tmp_path / "out"),
        "--encoder",
        f"path:{clip}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"aesthetic_head: path:{tmp_path / 'out'}" in done.stdout
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["image_text_encoder"] == f"path:{clip}"
    with pytest.raises(FileExistsError, match="holds a head already"):
        convert(tmp_path / "sa.pth", tmp_path / "out", f"path:{clip}")


def test_the_role_is_left_empty() -> None:
    with pytest.raises(ValueError, match="fills no role 'aesthetic_head'"):
        load_engine("aesthetic_head", load_profile("embedded"))

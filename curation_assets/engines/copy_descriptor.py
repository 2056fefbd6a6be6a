"""The role copy_descriptor: SSCD, a ResNet whose unit vectors are near for copies of an image (Pizzi et al. 2022)."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional

from curation_assets.core.roles import CopyDescriptor, ModelIdentity
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import chunks

#: What config.json may hold besides model_type: stages and widths of the trunk (those of ResNet-50), the power of the
#: pooling, and the shorter side of an image in pixels.
DEFAULTS: Mapping[str, Any] = {
    "layers": [3, 4, 6, 3],
    "channels": [64, 128, 256, 512],
    "pooling_power": 3.0,
    "pixels": 288,
}
HEAD = "fc"  # as torchvision and timm name the last linear layer
TRUNK = "backbone."  # before every name in a published file
SMALLEST = 1e-6  # below, features are raised to it before the pooling
LONGEST = 4  # times the shorter side: longer images are squeezed, a strip of 1 : 100 would take 100 times the memory
#: ImageNet's, which the model was trained with: of R, G, B in [0, 1].
MEAN, STANDARD_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Sscd(nn.Module):
    """Trunk, generalised mean (mean of x^p)^(1/p) over places, linear layer, unit length (arXiv 2202.10261).

    As facebookresearch/sscd-copy-detection @550e40c builds it of a torchvision ResNet.
    """

    def __init__(self, layers: Sequence[int], channels: Sequence[int], dimensions: int, power: float) -> None:
        super().__init__()
        from timm.models.resnet import Bottleneck, ResNet

        block: Any = Bottleneck  # timm annotates an instance
        self.backbone: Any = ResNet(block, tuple(layers), dimensions, channels=tuple(channels))
        self.power = power

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 3, H, W) normalised pixels → (B, D) of unit length."""
        places = self.backbone.forward_features(pixels).flatten(2)  # (B, C, H · W), not negative
        pooled = places.clamp(min=SMALLEST).pow(self.power).mean(dim=2).pow(1.0 / self.power)
        return functional.normalize(self.backbone.get_classifier()(pooled), dim=1)


class SscdDescriptor:
    """SSCD on images whose shorter side has `pixels` pixels."""

    def __init__(self, identity: ModelIdentity, model: Sscd, pixels: int, batch_size: int, device: str) -> None:
        self.identity = identity
        self.model = model.to(device).eval().requires_grad_(False)
        self.pixels, self.batch_size, self.device = pixels, batch_size, device
        self.width = int(model.backbone.get_classifier().out_features)

    @torch.inference_mode()
    def describe_images(self, images: Sequence[Image.Image]) -> np.ndarray:
        """(N,) images of any mode and size → (N, D) float32, unit length; images of one size share a batch."""
        vectors = np.zeros((len(images), self.width), dtype=np.float32)
        by_size: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, image in enumerate(images):
            by_size[scaled_size(*image.size, self.pixels)].append(number)
        for size, numbers in by_size.items():
            for part in chunks(numbers, self.batch_size):
                pixels = torch.stack([_pixels(images[number], size) for number in part])
                vectors[list(part)] = self.model(pixels.to(self.device)).float().cpu().numpy()
        return vectors


def scaled_size(width: int, height: int, pixels: int) -> tuple[int, int]:
    """(width, height) in pixels where the shorter side has `pixels`, the longer at most LONGEST times as many."""
    shorter = min(width, height)
    longer = min(int(pixels * max(width, height) / shorter), LONGEST * pixels)
    return (pixels, longer) if width <= height else (longer, pixels)


def _pixels(image: Image.Image, size: tuple[int, int]) -> torch.Tensor:
    """(3, H, W) float32 with ImageNet's mean 0 and standard deviation 1."""
    resized = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR), dtype=np.float64) / 255
    return torch.from_numpy((resized - MEAN) / STANDARD_DEVIATION).float().permute(2, 0, 1)


def load(request: EngineRequest) -> CopyDescriptor:
    """path: or hub: of a folder with model.safetensors (named as in a published file) and config.json.

    Raises ValueError for another folder, and for tensors that do not make the network that config.json describes.
    """
    folder = local_folder(request.address)
    config = _config(folder, request.address.text)
    tensors = load_file(folder / "model.safetensors")
    named = {name.removeprefix(TRUNK): tensor for name, tensor in tensors.items()}
    head = named.get(f"{HEAD}.weight")
    if head is None or head.ndim != 2:
        raise ValueError(
            f"{request.address.text}: model.safetensors holds no {TRUNK}{HEAD}.weight (D, C); expected the names of a "
            "published .torchvision.pt file (docs/models/sscd.md)"
        )
    model = Sscd(config["layers"], config["channels"], len(head), float(config["pooling_power"]))
    try:
        model.backbone.load_state_dict(named)
    except RuntimeError as error:
        raise ValueError(
            f"{request.address.text}: model.safetensors is not the network of its config.json, layers "
            f"{config['layers']}, channels {config['channels']} ({str(error).splitlines()[-1].strip()})"
        ) from error
    return SscdDescriptor(request.identity, model, int(config["pixels"]), request.batch_size, request.device)


def _config(folder: Path, address: str) -> dict[str, Any]:
    path = folder / "config.json"
    given: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    unknown = sorted(set(given) - {"model_type", *DEFAULTS})
    if given.get("model_type") != "sscd" or unknown:
        raise ValueError(
            f"{address} is no SSCD: expected {path.name} with model_type: sscd and at most {', '.join(DEFAULTS)}, got "
            f"{given or 'no file'}; docs/models/sscd.md says how to make the folder"
        )
    return {**DEFAULTS, **given}

"""The role copy_descriptor: SSCD, a ResNet whose unit vectors are near for copies of an image (Pizzi et al. 2022)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from curation_assets.core.roles import CopyDescriptor, Images, ModelIdentity
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import chunks, without_gradients
from curation_assets.engines.needs import RoleNeeds

if TYPE_CHECKING:
    import torch

NEEDS = RoleNeeds(schemes=("path", "hub"), how_to_get="docs/models/sscd.md says how to make the folder.")

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


class SscdDescriptor:
    """SSCD on images whose shorter side has `pixels` pixels: trunk, generalised mean (mean of x^p)^(1/p) over places,
    linear layer, unit length (arXiv 2202.10261).

    As facebookresearch/sscd-copy-detection @550e40c builds it of a torchvision ResNet.
    """

    def __init__(self, request: EngineRequest, backbone: Any, power: float, pixels: int) -> None:
        """`backbone`: a ResNet of timm."""
        self.identity: ModelIdentity = request.identity
        self.backbone = backbone.to(request.device).eval().requires_grad_(False)
        self.power, self.pixels = power, pixels
        self.batch_size, self.device = request.batch_size, request.device
        self.width = int(backbone.get_classifier().out_features)

    def _describe(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 3, H, W) normalised pixels → (B, D) of unit length."""
        from torch.nn import functional

        places = self.backbone.forward_features(pixels).flatten(2)  # (B, C, H · W), not negative
        pooled = places.clamp(min=SMALLEST).pow(self.power).mean(dim=2).pow(1.0 / self.power)
        return functional.normalize(self.backbone.get_classifier()(pooled), dim=1)

    @without_gradients
    def describe_images(self, images: Images) -> np.ndarray:
        """(N,) images of any mode and size → (N, D) float32, unit length; images of one size share a batch."""
        import torch

        vectors = np.zeros((len(images), self.width), dtype=np.float32)
        by_size: dict[tuple[int, int], list[int]] = defaultdict(list)
        for number, image in enumerate(images):
            by_size[scaled_size(*image.size, self.pixels)].append(number)
        for size, numbers in by_size.items():
            for part in chunks(numbers, self.batch_size):
                pixels = torch.stack([_pixels(images[number], size) for number in part])
                vectors[list(part)] = self._describe(pixels.to(self.device)).float().cpu().numpy()
        return vectors


def scaled_size(width: int, height: int, pixels: int) -> tuple[int, int]:
    """(width, height) in pixels where the shorter side has `pixels`, the longer at most LONGEST times as many."""
    shorter = min(width, height)
    longer = min(int(pixels * max(width, height) / shorter), LONGEST * pixels)
    return (pixels, longer) if width <= height else (longer, pixels)


def _pixels(image: Image.Image, size: tuple[int, int]) -> torch.Tensor:
    """(3, H, W) float32 with ImageNet's mean 0 and standard deviation 1."""
    import torch

    resized = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR), dtype=np.float64) / 255
    return torch.from_numpy((resized - MEAN) / STANDARD_DEVIATION).float().permute(2, 0, 1)


def load(request: EngineRequest) -> CopyDescriptor:
    """path: or hub: of a folder with model.safetensors (named as in a published file) and config.json.

    Raises ValueError for another folder, and for tensors that do not make the network that config.json describes.
    """
    from safetensors.torch import load_file
    from timm.models.resnet import Bottleneck, ResNet

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
    block: Any = Bottleneck  # timm annotates an instance
    backbone = ResNet(block, tuple(config["layers"]), len(head), channels=tuple(config["channels"]))
    try:
        backbone.load_state_dict(named)
    except RuntimeError as error:
        raise ValueError(
            f"{request.address.text}: model.safetensors is not the network of its config.json, layers "
            f"{config['layers']}, channels {config['channels']} ({str(error).splitlines()[-1].strip()})"
        ) from error
    return SscdDescriptor(request, backbone, float(config["pooling_power"]), int(config["pixels"]))


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

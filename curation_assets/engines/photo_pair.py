"""photo_pair: photographs and English captions in one space, by small trained heads on frozen encoders. No GPU, no hub.

An image is seen by EfficientNet-Lite backbones, a caption is read by a sentence encoder. Each of M heads maps both into
a space of its own; a further block, untrained, is ConSE (Norouzi et al. 2014): the sentence vectors of the ImageNet
classes that the backbone sees, weighted by their probabilities, against the caption's sentence vector. The blocks, each
of unit length times the root of its weight, lie side by side: the cosine of two vectors is the weighted mean of the
blocks' cosines. `lab/photo_pair.py` trains a folder of this kind on any pairs.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

from curation_assets.core.roles import Images, ModelIdentity, SentenceEncoder, Texts
from curation_assets.engines import EngineRequest, sentence_encoder
from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.batches import chunks
from curation_assets.engines.efficientnet import FeatureExtractor, load_backbone
from curation_assets.engines.identities import companion_addresses
from curation_assets.engines.needs import card_of
from curation_assets.engines.pins import Pins, check_weights

HEAD_FILE = "head.safetensors"
#: The likeliest classes that an image's ConSE vector sums.
CONSE_CLASSES = 30
CLASSES = 1000  # of ImageNet, which the backbones tell apart
KEPT_DIGEST = "_pixels_digest"  # attribute of an image: (its pixels, their digest)

Tensors = Mapping[str, torch.Tensor]


class PhotoFeatures:
    """What the heads read of an image: roots of pooled features of both backbones, and class probabilities."""

    def __init__(self, backbones: Sequence[FeatureExtractor], name: str) -> None:
        """`backbones`: from small to large; the last one also gives its maxima and the class
        probabilities. `name` stands for the backbones and their device in `remembered`."""
        self.backbones = list(backbones)
        self.name = name

    def remembered(self, images: Images) -> tuple[torch.Tensor, torch.Tensor]:
        """As a call, of RGB images, at least one; what models of this process computed last is not computed again."""

        def compute(missing: Images) -> np.ndarray:
            return torch.cat(self(missing), dim=1).numpy()

        rows = torch.from_numpy(_remembered_features.embed(self.name, images, compute))
        return rows[:, :-CLASSES].contiguous(), rows[:, -CLASSES:].contiguous()

    def __call__(self, images: Images) -> tuple[torch.Tensor, torch.Tensor]:
        """(N,) images → (N, F) features ≥ 0, (N, 1000) probabilities. F = 1280 for each backbone and for the maxima."""
        pooled = [backbone.pooled(images) for backbone in self.backbones]
        last_means, last_maxima = pooled[-1]
        parts = [*(means for means, _ in pooled), last_maxima]
        # features after a ReLU are skewed, their roots much less
        return torch.cat(parts, dim=1).clamp_min(0.0).sqrt(), self.backbones[-1].class_probabilities(last_means)


class PhotoPairHead:
    """The trained part: features of images and captions → unit vectors."""

    def __init__(self, tensors: Tensors) -> None:
        """`tensors`: as `to_stored` writes them; held in float32."""
        self.tensors = from_stored(tensors)
        self.block_weights = self.tensors["block_weights"] / self.tensors["block_weights"].sum()  # (M + 1,)

    @property
    def width(self) -> int:
        """D of the joint space."""
        heads, width, _ = self.tensors["image.out.weight"].shape
        return int(heads * width + self.tensors["class_vectors"].shape[1])

    @torch.inference_mode()
    def images(self, features: torch.Tensor, probabilities: torch.Tensor) -> torch.Tensor:
        """(N, F), (N, 1000) → (N, D), unit length."""
        t = self.tensors
        reduced = F.linear(features, t["image.reduce.weight"], t["image.reduce.bias"])  # (N, K)
        top = probabilities.topk(CONSE_CLASSES, dim=1)
        seen = torch.einsum("nt,ntd->nd", top.values, t["class_vectors"][top.indices])  # (N, 384)
        return self._joined(self._heads(reduced, "image"), seen)

    @torch.inference_mode()
    def texts(self, sentences: torch.Tensor) -> torch.Tensor:
        """(N, 384) unit vectors of the sentence encoder → (N, D), unit length."""
        return self._joined(self._heads(sentences, "text"), sentences - self.tensors["text_centre"])

    def _heads(self, inputs: torch.Tensor, side: str) -> torch.Tensor:
        """(N, K) → (N, M, E): per head a hidden layer with GELU and an output layer."""
        t = self.tensors
        hidden = torch.einsum("nk,mhk->nmh", inputs, t[f"{side}.hidden.weight"]) + t[f"{side}.hidden.bias"]
        return torch.einsum("nmh,meh->nme", F.gelu(hidden), t[f"{side}.out.weight"]) + t[f"{side}.out.bias"]

    def _joined(self, blocks: torch.Tensor, conse: torch.Tensor) -> torch.Tensor:
        roots = self.block_weights.sqrt()
        parts = F.normalize(blocks, dim=2) * roots[:-1, None]  # (N, M, E)
        joined = torch.cat([parts.flatten(1), F.normalize(conse, dim=1) * roots[-1]], dim=1)
        return F.normalize(joined, dim=1)


def to_stored(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Matrices as int8, each row times its own `NAME.scale`, everything else as float16: half of what float16 takes.

    Cosines change by about .001.
    """
    stored = {}
    for name, tensor in tensors.items():
        if name.endswith(("weight", "vectors")):
            scale = (tensor.float().abs().amax(dim=-1, keepdim=True) / 127).half()
            stored[f"{name}.scale"] = scale
            stored[name] = (tensor.float() / scale.float().clamp_min(1e-12)).round().clamp(-127, 127).to(torch.int8)
        else:
            stored[name] = tensor.half()
    return {name: tensor.contiguous() for name, tensor in stored.items()}


def from_stored(stored: Tensors) -> dict[str, torch.Tensor]:
    """What `to_stored` was given, in float32, rounded."""
    return {
        name: tensor.float() * (stored[f"{name}.scale"].float() if f"{name}.scale" in stored else 1.0)
        for name, tensor in stored.items()
        if not name.endswith(".scale")
    }


class RememberedImages:
    """Vectors of the images seen last in this process, by the content of their pixels.

    Several methods of a run embed the same images with the same model (clip_score, the captioner, clusters): the
    backbones are what they cost. Bounded; a vector is what embedding the image again would give.
    """

    def __init__(self, size: int) -> None:
        """`size`: images."""
        self._size = size
        self._vectors: OrderedDict[tuple[str, bytes], np.ndarray] = OrderedDict()

    def embed(self, model: str, images: Images, embed: Callable[[Images], np.ndarray]) -> np.ndarray:
        """(N,) RGB images, at least one → (N, D); `embed` is called with those that are not remembered of `model`."""
        keys = [(model, _pixels_digest(image)) for image in images]
        known = {key: self._vectors[key] for key in keys if key in self._vectors}
        missing = {key: image for key, image in zip(keys, images, strict=True) if key not in known}
        if missing:
            known |= dict(zip(missing, embed(list(missing.values())), strict=True))
        for key in keys:
            self._vectors[key] = known[key]
            self._vectors.move_to_end(key)
        while len(self._vectors) > self._size:
            self._vectors.popitem(last=False)
        return np.stack([known[key] for key in keys])


def _pixels_digest(image: Image.Image) -> bytes:
    """A `readonly` image, which the methods of a pass share, keeps it: what draws into such an image gives it other
    pixels (`Image.im`)."""
    pixels, digest = vars(image).get(KEPT_DIGEST, (None, b""))
    if pixels is not image.im:
        digest = hashlib.blake2b(f"{image.size}".encode() + image.tobytes(), digest_size=16).digest()
        if image.readonly:
            vars(image)[KEPT_DIGEST] = (image.im, digest)
    return digest


def as_rgb_images(images: Images) -> list[Image.Image]:
    """(N,) images of any mode → (N,) decoded RGB images, those that are RGB as they are."""
    for image in images:
        image.load()
    return [image if image.mode == "RGB" else image.convert("RGB") for image in images]


_remembered = RememberedImages(20_000)  # 1,024 numbers each are 4 kB
#: Methods of one pass over images are at most a batch of 256 apart; 4,840 numbers each are 19 kB.
_remembered_features = RememberedImages(512)


@dataclass(eq=False, repr=False)
class PhotoPairEncoder:
    """Fills the role image_text_encoder."""

    identity: ModelIdentity
    head: PhotoPairHead
    features: PhotoFeatures
    encoder: SentenceEncoder
    batch_size: int

    def embed_images(self, images: Images) -> np.ndarray:
        """(N,) images of any mode → (N, D) float32, unit length."""
        heads, rgb = self.identity.weights_sha256, as_rgb_images(images)
        rows = [_remembered.embed(heads, batch, self._embed) for batch in chunks(rgb, self.batch_size)]
        return np.concatenate(rows) if rows else np.zeros((0, self.head.width), dtype=np.float32)

    def _embed(self, images: Images) -> np.ndarray:
        return self.head.images(*self.features.remembered(images)).numpy()

    def embed_patches(self, images: Images) -> np.ndarray:
        """(N,) images of any mode → (N, T, 1280) float32: places of the last backbone's last layer, row by row."""
        return self.features.backbones[-1].places(as_rgb_images(images)).numpy()

    def embed_texts(self, texts: Texts) -> np.ndarray:
        """(N,) strings → (N, D) float32, unit length; cut at the sentence encoder's length. No prompt."""
        if not texts:
            return np.zeros((0, self.head.width), dtype=np.float32)
        return self.head.texts(torch.from_numpy(self.encoder.embed_sentences(texts))).numpy()


def load(request: EngineRequest) -> PhotoPairEncoder:
    """The heads in a folder of card.json and head.safetensors, with the encoders that the card names.

    Raises ModelUnavailableError where the weights are not those of the card, or were trained on another sentence
    encoder than the one at hand.
    """
    card = card_of(request.address)
    # looked up here and not read off the request: other roles (pair_encoder, captioner) load an encoder too
    companions = companion_addresses("image_text_encoder", request.address, {})
    encoder = replace(request, companions=companions).for_companion("sentence_encoder", card["sentence_encoder_sha256"])
    return PhotoPairEncoder(
        request.identity,
        PhotoPairHead(checked_tensors(local_folder(request.address) / HEAD_FILE, card["weights_sha256"])),
        load_features(card["backbones"], companions, request.device),
        sentence_encoder.load(encoder),
        request.batch_size,
    )


def checked_tensors(file: Path, sha256: str) -> dict[str, torch.Tensor]:
    """Tensors of a file. Raises ModelUnavailableError where it is not the one with that sha256."""
    check_weights(file, Pins({file: sha256}, "install the package, or train the folder, again"))
    return load_file(file)


def load_features(names: Sequence[str], companions: Mapping[str, ModelAddress], device: str) -> PhotoFeatures:
    """The backbones `names`, found at the companions of the same names."""
    backbones = [load_backbone(name, local_folder(companions[name]), device) for name in names]
    return PhotoFeatures(backbones, " ".join([*names, device]))

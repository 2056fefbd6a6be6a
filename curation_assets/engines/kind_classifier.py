"""The role kind_classifier: photograph, screenshot …, by one linear layer on the features that photo_pair reads.

A folder holds `kinds.safetensors` and `card.json` (kinds, backbones, sha256 of the file). `lab/image_kind.py`
trains one. Where photo_pair has just embedded an image, its kind costs a product of 3,840 × 6 numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from curation_assets.core.roles import Images, ModelIdentity
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.batches import chunks
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, card_of

if TYPE_CHECKING:
    import torch

    from curation_assets.engines.photo_pair import PhotoFeatures

KIND = "image_kind"  # in card.json
KINDS_FILE = "kinds.safetensors"


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """One part per backbone whose features the layer reads. Raises ValueError for a folder of another kind."""
    card = card_of(address)
    if card.get("kind") != KIND:
        raise ValueError(
            f"{address.text} tells no kinds of images (no card.json of kind {KIND}); train one "
            "in a checkout: python -m lab image_kind --help"
        )
    return {name: resolve(f"embedded:{name}") for name in card["backbones"]}


NEEDS = RoleNeeds(companions=companions)


class KindHead:
    """The trained part: features of images → probabilities of kinds."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """`tensors`: weight (K, F), bias (K,); held in float32."""
        self.weight, self.bias = tensors["weight"].float(), tensors["bias"].float()

    def __call__(self, features: torch.Tensor) -> np.ndarray:
        """(N, F) → (N, K) float64, rows sum to 1."""
        # a sum per row, no matrix product: the value of an image is the same whatever stands beside it
        logits = (features.double()[:, None, :] * self.weight.double()).sum(dim=2) + self.bias.double()
        return logits.softmax(dim=1).numpy()


class FeatureKinds:
    """Fills the role."""

    def __init__(
        self, identity: ModelIdentity, head: KindHead, features: PhotoFeatures, kinds: Sequence[str], batch_size: int
    ) -> None:
        self.identity = identity
        self.head = head
        self.features = features
        self.kinds = tuple(kinds)
        self.batch_size = batch_size

    def kind_probabilities(self, images: Images) -> np.ndarray:
        """(N,) images of any mode → (N, K) float64, rows sum to 1."""
        from curation_assets.engines.photo_pair import as_rgb_images

        batches = chunks(as_rgb_images(images), self.batch_size)
        rows = [self.head(self.features.remembered(batch)[0]) for batch in batches]
        return np.concatenate(rows) if rows else np.zeros((0, len(self.kinds)))


def load(request: EngineRequest) -> FeatureKinds:
    """The layer in a folder, with the backbones that its card names.

    Raises ModelUnavailableError where the weights are not those of the card.
    """
    from curation_assets.engines.photo_pair import checked_tensors, load_features

    card = card_of(request.address)
    head = KindHead(checked_tensors(local_folder(request.address) / KINDS_FILE, card["weights_sha256"]))
    features = load_features(card["backbones"], request.companions, request.device)
    return FeatureKinds(request.identity, head, features, card["kinds"], request.batch_size)

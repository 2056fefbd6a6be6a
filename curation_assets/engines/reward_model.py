"""The role reward_model: an MLP on frozen vectors of image and caption, trained by `curate reward train`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from curation_assets.core.roles import Images, ModelIdentity, PairEncoder, Texts
from curation_assets.engines import EngineRequest, pair_encoder
from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.batches import without_gradients
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, card_of

if TYPE_CHECKING:
    from torch import nn

HIDDEN = (1024, 128, 64, 16)  # Compress & Align, supplement: five linear layers in all
DROPOUT = (0.2, 0.2, 0.1)  # after the first three


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`pair_encoder`, as config.json names it; '../NAME' is a folder beside it."""
    text = str(card_of(address, "config.json")["pair_encoder"])
    return {"pair_encoder": resolve(f"path:{local_folder(address) / text}" if text.startswith("../") else text)}


NEEDS = RoleNeeds(companions=companions)


def reward_mlp(width: int, activation: str = "none", hidden: Sequence[int] = HIDDEN) -> nn.Sequential:
    """width → 1024 → 128 → 64 → 16 → 1, or other `hidden` layers; without any it is one linear layer.

    'none' is faithful: the architecture that the paper cites has no activation.

    Weights begin as the library draws them. ImageReward's tiny ones (sd 1/769 in each of five layers) are not copied:
    on a frozen encoder the first gradients would lie far below AdamW's epsilon.
    Raises ValueError for an unknown activation.
    """
    from curation_assets.engines.networks import build_mlp

    return build_mlp((width, *hidden, 1), activation, DROPOUT[: len(hidden)])


class RewardEngine:
    """Rewards of pairs: their vector, standardised as in training, through the MLP."""

    def __init__(
        self, identity: ModelIdentity, encoder: PairEncoder, folder: Path, batch_size: int, device: str
    ) -> None:
        """`folder`: config.json and model.safetensors, as `train_reward_model` writes them."""
        from safetensors.torch import load_file

        config = json.loads((folder / "config.json").read_text())
        state = {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}
        self.identity = identity
        self.encoder = encoder
        self.mean, self.scale = state.pop("mean"), state.pop("scale")
        # models trained by earlier versions name no hidden layers
        mlp = reward_mlp(int(config["width"]), str(config["activation"]), config.get("hidden", HIDDEN))
        mlp.load_state_dict(state)
        self.mlp = mlp.eval().to(device)
        self.batch_size = batch_size
        self.device = device

    @without_gradients
    def reward_pairs(self, images: Images, captions: Texts) -> np.ndarray:
        """(N,), (N,) → (N,) float64, unbounded."""
        if not captions:
            return np.zeros(0)
        return self.reward_features(self.encoder.embed_pairs(images, captions))

    @without_gradients
    def reward_features(self, pair_vectors: np.ndarray) -> np.ndarray:
        """Rewards of vectors that the pair encoder has made. (N, D) → (N,) float64. Raises ValueError for another D."""
        import torch

        features = torch.from_numpy(pair_vectors).float()
        if features.shape[1] != len(self.mean):
            raise ValueError(
                f"{self.identity.address}: trained on {len(self.mean)} numbers per pair, its pair encoder now gives "
                f"{features.shape[1]}; train it anew (curate reward train)"
            )
        standard = ((features - self.mean) / self.scale).to(self.device)
        # one row at a time costs little and makes a reward independent of the rows beside it
        return np.array([float(self.mlp(row[None])[0, 0]) for row in standard], dtype=np.float64)


def load(request: EngineRequest) -> RewardEngine:
    """A folder that `curate reward train` wrote, or embedded:reward_model. Its config names the pair encoder."""
    encoder = pair_encoder.load(request.for_companion("pair_encoder"))
    folder = local_folder(request.address)
    return RewardEngine(request.identity, encoder, folder, request.batch_size, request.device)

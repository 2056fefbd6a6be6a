"""The role reward_model: an MLP on frozen vectors of image and caption, trained by `curate reward train`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from curation_assets.core.roles import ModelIdentity, PairEncoder
from curation_assets.engines import EngineRequest, pair_encoder
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.mlp import build_mlp

HIDDEN = (1024, 128, 64, 16)  # Compress & Align, supplement: five linear layers in all
DROPOUT = (0.2, 0.2, 0.1)  # after the first three


def reward_mlp(width: int, activation: str = "none", hidden: Sequence[int] = HIDDEN) -> nn.Sequential:
    """width → 1024 → 128 → 64 → 16 → 1, or other `hidden` layers; without any it is one linear layer.

    'none' is faithful: the architecture that the paper cites has no activation.

    Weights begin as the library draws them. ImageReward's tiny ones (sd 1/769 in each of five layers) are not copied:
    on a frozen encoder the first gradients would lie far below AdamW's epsilon.
    Raises ValueError for an unknown activation.
    """
    return build_mlp((width, *hidden, 1), activation, DROPOUT[: len(hidden)])


class RewardEngine:
    """Rewards of pairs: their vector, standardised as in training, through the MLP."""

    def __init__(
        self, identity: ModelIdentity, encoder: PairEncoder, folder: Path, batch_size: int, device: str
    ) -> None:
        """`folder`: config.json and model.safetensors, as `train_reward_model` writes them."""
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

    @torch.inference_mode()
    def reward_pairs(self, images: Sequence[Image.Image], captions: Sequence[str]) -> np.ndarray:
        """(N,), (N,) → (N,) float64, unbounded."""
        if not captions:
            return np.zeros(0)
        return self.reward_features(self.encoder.embed_pairs(images, captions))

    @torch.inference_mode()
    def reward_features(self, pair_vectors: np.ndarray) -> np.ndarray:
        """Rewards of vectors that the pair encoder has made. (N, D) → (N,) float64. Raises ValueError for another D."""
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
    folder = local_folder(request.address)
    companion = request.companions["pair_encoder"]
    companion_request: Any = EngineRequest(
        "pair_encoder", companion, {}, {}, request.batch_size, request.device, request.identity
    )
    return RewardEngine(
        request.identity, pair_encoder.load(companion_request), folder, request.batch_size, request.device
    )

"""The role hyperbolic_text_encoder: the text tower of a hyperbolic CLIP, and the reference images of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file

from curation_assets.core.roles import HyperbolicTextEncoder, ModelIdentity, Texts
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import quiet_loading, run_by_length, without_gradients
from curation_assets.engines.needs import RoleNeeds

if TYPE_CHECKING:
    import torch

NEEDS = RoleNeeds(schemes=("path", "hub"), how_to_get="docs/user/formulas.md §15.12 says what the folder holds.")

SPACE = "hyperbolic.safetensors"  # beside the model
NUMBERS = ("curvature", "text_scale")  # one each, both positive


class HyperbolicClipText:
    """Projected state of the last token times `text_scale`: a tangent vector at the origin (MERU, HYPE)."""

    def __init__(self, request: EngineRequest, folder: Path) -> None:
        from transformers import AutoTokenizer, CLIPTextModelWithProjection

        quiet_loading()
        self.identity: ModelIdentity = request.identity
        model: Any = CLIPTextModelWithProjection.from_pretrained(folder, local_files_only=True, use_safetensors=True)
        self.model = model.to(request.device).eval()
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.batch_size, self.device = request.batch_size, request.device
        self.width = int(model.config.projection_dim)
        space = _space(folder, self.width, request.address.text)
        self.curvature, self.text_scale = (float(space[name].reshape(())) for name in NUMBERS)
        self.reference_images = space["reference_images"].astype(np.float32)

    def embed_texts(self, texts: Texts) -> np.ndarray:
        """(N,) → (N, D) float32, truncated to the model's context."""
        if not texts:
            return np.zeros((0, self.width), dtype=np.float32)
        vectors: np.ndarray = run_by_length(texts, self.batch_size, self._encode).numpy()
        return vectors

    @without_gradients
    def _encode(self, texts: list[str]) -> torch.Tensor:
        inputs = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt").to(self.device)
        return (self.model(**inputs).text_embeds.float() * self.text_scale).cpu()


def _space(folder: Path, width: int, address: str) -> dict[str, np.ndarray]:
    path = folder / SPACE
    tensors: dict[str, np.ndarray] = load_file(path) if path.is_file() else {}
    images = tensors.get("reference_images", np.zeros(0))
    numbers = [tensors.get(name, np.zeros(0)) for name in NUMBERS]
    is_shaped = images.ndim == 2 and len(images) > 0 and images.shape[1] == width
    if not is_shaped or any(one.size != 1 or not float(one.reshape(())) > 0 for one in numbers):
        shapes = {name: tensor.shape for name, tensor in sorted(tensors.items())}
        raise ValueError(
            f"{address}: expected {SPACE} with reference_images (R, {width}), R at least 1, and positive "
            f"{' and '.join(NUMBERS)}, got {shapes or 'no file'}; docs/user/formulas.md §15.12"
        )
    return tensors


def load(request: EngineRequest) -> HyperbolicTextEncoder:
    """path: or hub: of a CLIP in transformers' layout with hyperbolic.safetensors beside it.

    Raises ValueError where that file, or one of its tensors, is missing or of another shape.
    """
    return HyperbolicClipText(request, local_folder(request.address))

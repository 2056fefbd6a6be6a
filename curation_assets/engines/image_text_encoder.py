"""The role image_text_encoder: CLIP through open_clip, and CLIP's raw text feature for the semantic teacher."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.roles import Images, ImageTextEncoder, ModelIdentity, Texts
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import ModelAddress, local_folder, unavailable_message
from curation_assets.engines.batches import (
    autocast,
    chunks,
    pixel_batches,
    quiet_loading,
    run_unpadded,
    unique_texts,
    without_gradients,
)
from curation_assets.engines.needs import FOLDER_SCHEMES, Companions, Resolve, RoleNeeds, card_of
from curation_assets.engines.open_clip_weights import check_open_clip_name

if TYPE_CHECKING:
    import torch

#: list of n strings → (n, T) token ids, padded and truncated to the model's context length.
Tokenize = Callable[[list[str]], "torch.Tensor"]
#: one RGB image → (3, H, W) float32, normalised.
Preprocess = Callable[[Image.Image], "torch.Tensor"]
PHOTO_PAIR = "photo_pair"  # in card.json of heads on frozen encoders


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """Companions of heads on frozen encoders: `sentence_encoder` and one per backbone; else none."""
    card = {} if address.scheme == "open_clip" else card_of(address)
    if card.get("kind") != PHOTO_PAIR:
        return {}
    parts = {"sentence_encoder": card["sentence_encoder"], **{name: f"embedded:{name}" for name in card["backbones"]}}
    return {part: resolve(text) for part, text in parts.items()}


NEEDS = RoleNeeds(schemes=(*FOLDER_SCHEMES, "open_clip"), companions=companions)


@dataclass(eq=False, repr=False)
class OpenClipEncoder:
    """An open_clip model with the preprocessing that belongs to its weights."""

    identity: ModelIdentity
    model: Any  # an open_clip CLIP, on `device`
    preprocess: Preprocess
    tokenize: Tokenize
    batch_size: int
    device: str

    @without_gradients
    def embed_images(self, images: Images) -> np.ndarray:
        """(N,) images of any mode → (N, D) float32, unit length."""
        import torch

        rows = []
        for pixels in pixel_batches(images, self.preprocess, self.batch_size, self.device):
            with autocast(self.device):
                embedded = self.model.encode_image(pixels.to(self.device))  # (B, D)
            rows.append(_unit(embedded))
        return torch.cat(rows).numpy() if rows else self._nothing()

    @without_gradients
    def embed_texts(self, texts: Texts) -> np.ndarray:
        """(N,) strings → (N, D) float32, unit length; longer texts are cut at the context length.

        No prompt.
        """
        import torch

        distinct, inverse = unique_texts(texts)
        rows = []
        for batch in chunks(distinct, self.batch_size):
            with autocast(self.device):
                embedded = self.model.encode_text(self.tokenize(list(batch)).to(self.device))  # (B, D)
            rows.append(_unit(embedded))
        return torch.cat(rows).numpy()[inverse] if rows else self._nothing()

    @without_gradients
    def embed_patches(self, images: Images) -> np.ndarray:
        """(N,) images → (N, T, W) float32: states of the last block of the vision tower, class token first."""
        import torch

        rows = []
        for pixels in pixel_batches(images, self.preprocess, self.batch_size, self.device):
            with autocast(self.device):
                states = self.model.visual.forward_intermediates(
                    pixels.to(self.device),
                    indices=1,
                    intermediates_only=True,
                    output_fmt="NLC",
                    output_extra_tokens=True,
                )
            parts = [*states.get("image_intermediates_prefix", ()), *states["image_intermediates"]]
            rows.append(torch.cat(parts, dim=1).float().cpu())  # (B, 1 + P, W)
        return torch.cat(rows).numpy()

    def _nothing(self) -> np.ndarray:
        return np.zeros((0, len(self.embed_texts([""])[0])), dtype=np.float32)


class ClipTextFeature:
    """CLIP's projected text feature as the semantic teacher reads it: not normalised (formulas.md §1.4)."""

    def __init__(self, folder: Path, batch_size: int, device: str) -> None:
        """`folder`: a transformers CLIP checkpoint with tokenizer."""
        import torch
        from transformers import AutoTokenizer, CLIPTextModelWithProjection

        quiet_loading()
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model: Any = CLIPTextModelWithProjection.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            attn_implementation="eager",
        )
        self.model = model.to(device).eval()
        self.context_length = self.model.config.max_position_embeddings
        self.batch_size = batch_size
        self.device = device

    def __call__(self, texts: Texts) -> torch.Tensor:
        """(N,) strings → (N, D) float32 on the CPU. Raises ValueError for an empty list."""
        if not texts:
            raise ValueError("expected at least one text, got none")
        return run_unpadded(texts, self._token_ids, self._encode, batch_size=self.batch_size, device=self.device)

    def _token_ids(self, texts: Texts) -> list[list[int]]:
        return self.tokenizer(list(texts), truncation=True, max_length=self.context_length).input_ids

    def _encode(self, ids: torch.Tensor) -> torch.Tensor:
        """(B, T) tokens without padding → (B, D)."""
        import torch

        with autocast(self.device):
            output = self.model(input_ids=ids, attention_mask=torch.ones_like(ids))
        return output.text_embeds.float().cpu()


def load(request: EngineRequest) -> ImageTextEncoder:
    """The encoder at embedded:, path:, hub: or open_clip: addresses.

    A folder holds open_clip_config.json and either open_clip_model.safetensors or transformers weights of a
    CLIPModel (model.safetensors), which are renamed in memory; or it holds a BlipForImageTextRetrieval, whose
    contrastive (ITC) vectors then answer; or heads on frozen encoders (`photo_pair`). Raises ValueError for any other
    folder.
    """
    quiet_loading()
    address = request.address
    if address.scheme == "open_clip":
        model, preprocess, tokenize = _from_catalogue(address)
    elif card_of(address).get("kind") == PHOTO_PAIR:
        from curation_assets.engines import photo_pair

        return photo_pair.load(request)
    elif "BlipForImageTextRetrieval" in (card_of(address, "config.json").get("architectures") or ()):
        from curation_assets.engines.blip_retrieval import BlipRetrieval

        return BlipRetrieval(request.identity, local_folder(address), request.batch_size, request.device)
    else:
        model, preprocess, tokenize = _from_folder(address)
    model.to(request.device).eval()
    return OpenClipEncoder(request.identity, model, preprocess, tokenize, request.batch_size, request.device)


def _from_catalogue(address: ModelAddress) -> tuple[torch.nn.Module, Preprocess, Tokenize]:
    import open_clip

    check_open_clip_name(address)
    with warnings.catch_warnings():
        # `check_open_clip_name` has refused a mismatch already; should the library see another one, it must
        # not pass
        warnings.filterwarnings("error", message=".*QuickGELU mismatch.*")
        try:
            model, _, preprocess = open_clip.create_model_and_transforms(address.name, pretrained=address.revision)
        except (OSError, RuntimeError) as error:
            raise ModelUnavailableError(unavailable_message(address, error)) from error
    return model, preprocess, open_clip.get_tokenizer(address.name)


def _from_folder(address: ModelAddress) -> tuple[torch.nn.Module, Preprocess, Tokenize]:
    import open_clip
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from safetensors.torch import load_file

    folder = local_folder(address)
    config_path = folder / "open_clip_config.json"
    if not config_path.is_file():
        raise ValueError(
            f"{address.text}: {folder} holds no open_clip_config.json; expected an open_clip folder "
            "(open_clip_config.json + open_clip_model.safetensors) or an address open_clip:MODEL@TAG"
        )
    config = json.loads(config_path.read_text())
    model_config: dict[str, Any] = config["model_cfg"]
    if (folder / "open_clip_model.safetensors").is_file():
        state = load_file(folder / "open_clip_model.safetensors")
    else:
        from curation_assets.engines.clip_conversion import to_open_clip_state_dict

        state = to_open_clip_state_dict(load_file(folder / "model.safetensors"))
    # hf_tokenizer_name and the like configure the tokenizer; the model would not know them
    model = open_clip.model.CLIP(**model_config)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, strict=True)
    size = model_config["vision_cfg"]["image_size"]
    preprocess = image_transform_v2(PreprocessCfg(**{"size": size, **config.get("preprocess_cfg", {})}), is_train=False)
    return model, preprocess, _folder_tokenizer(folder, model.context_length)


def _folder_tokenizer(folder: Path, context_length: int) -> Tokenize:
    import open_clip
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").is_file():
        return open_clip.get_tokenizer(f"local-dir:{folder}", context_length=context_length)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)

    def tokenize(texts: list[str]) -> torch.Tensor:
        return tokenizer(
            texts, padding="max_length", truncation=True, max_length=context_length, return_tensors="pt"
        ).input_ids  # (B, T)

    return tokenize


def _unit(embedded: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.nn.functional.normalize(embedded.float(), dim=-1).cpu()

"""BLIP's retrieval model: contrastive vectors (ITC), and one vector of an image and a caption together."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoImageProcessor, AutoTokenizer, BlipForImageTextRetrieval

from curation_assets.core.roles import Images, ModelIdentity, Texts
from curation_assets.engines.batches import autocast, chunks, quiet_loading, run_by_length

MAX_TOKENS = 64  # ImageReward cuts at 35, which loses the detail of long captions (formulas.md §9.3)


class BlipRetrieval:
    """Fills the roles image_text_encoder (ITC) and pair_encoder (the text encoder's first state, seeing the image)."""

    def __init__(self, identity: ModelIdentity, folder: Path, batch_size: int, device: str) -> None:
        """`folder`: a transformers checkpoint with image processor and tokenizer."""
        quiet_loading()
        self.identity = identity
        model: Any = BlipForImageTextRetrieval.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
        )
        self.model = model.to(device).eval()
        self.processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
        self.tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        self.batch_size = batch_size
        self.device = device

    @torch.inference_mode()
    def embed_images(self, images: Images) -> np.ndarray:
        """(N,) images → (N, D) float32, unit length: the projected class state."""
        rows = [self.model.vision_proj(self._see(batch)[:, 0]) for batch in chunks(images, self.batch_size)]
        return _unit(torch.cat(rows)) if rows else self._nothing()

    @torch.inference_mode()
    def embed_patches(self, images: Images) -> np.ndarray:
        """(N,) images → (N, T, W) float32: states of the vision tower, class token first."""
        return torch.cat([self._see(batch).float().cpu() for batch in chunks(images, self.batch_size)]).numpy()

    @torch.inference_mode()
    def embed_texts(self, texts: Texts) -> np.ndarray:
        """(N,) strings → (N, D) float32, unit length; cut at 64 tokens. No prompt."""

        def encode(batch: list[str]) -> torch.Tensor:
            tokens = self._tokens(batch)
            with autocast(self.device):
                states = self.model.text_encoder(
                    input_ids=tokens.input_ids, attention_mask=tokens.attention_mask
                ).last_hidden_state
                return self.model.text_proj(states[:, 0]).float().cpu()

        return _unit(run_by_length(list(texts), self.batch_size, encode)) if texts else self._nothing()

    @torch.inference_mode()
    def embed_pairs(self, images: Images, captions: Texts) -> np.ndarray:
        """(N,), (N,) → (N, D) float32: the caption's first state with cross-attention to the image (formulas.md
        §9.3)."""
        rows = []
        for start in range(0, len(captions), self.batch_size):
            seen = self._see(images[start : start + self.batch_size])  # (B, P, D)
            tokens = self._tokens(list(captions[start : start + self.batch_size]))
            with autocast(self.device):
                states = self.model.text_encoder(
                    input_ids=tokens.input_ids,
                    attention_mask=tokens.attention_mask,
                    encoder_hidden_states=seen,
                    encoder_attention_mask=torch.ones(seen.shape[:2], dtype=torch.long, device=self.device),
                ).last_hidden_state
            rows.append(states[:, 0].float().cpu())
        width = self.model.config.text_config.hidden_size
        return torch.cat(rows).numpy() if rows else np.zeros((0, width), dtype=np.float32)

    def _see(self, images: Images) -> torch.Tensor:
        pixels = self.processor([image.convert("RGB") for image in images], return_tensors="pt").pixel_values
        with autocast(self.device):
            return self.model.vision_model(pixel_values=pixels.to(self.device)).last_hidden_state.float()

    def _tokens(self, texts: list[str]) -> Any:
        return self.tokenizer(texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt").to(
            self.device
        )

    def _nothing(self) -> np.ndarray:
        return np.zeros((0, self.model.config.image_text_hidden_size), dtype=np.float32)


def _unit(embedded: torch.Tensor) -> np.ndarray:
    return torch.nn.functional.normalize(embedded.float(), dim=-1).cpu().numpy()

"""The role semantic_decoder: caption, CLIP text feature, linear bridge, language model, caption (SBA)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curation_assets.core.roles import ModelIdentity, Texts
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import ModelAddress, local_folder
from curation_assets.engines.batches import (
    batches_side_by_side,
    by_length,
    quiet_loading,
    unique_texts,
    weights_dtype,
    without_gradients,
)
from curation_assets.engines.image_text_encoder import ClipTextFeature
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds, clip_text_encoder

if TYPE_CHECKING:
    import torch

HOW_TO_BRIDGE = (
    "train one (curate icc train-bridge, or a pool's option train_sba: true), or name its folder: "
    "generation: {semantic_decoder: {bridge: 'path:/folder'}}"
)


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`bridge`, where the settings name it, and `text_encoder`."""
    bridge: Companions = {}
    if "bridge" in settings:
        bridge["bridge"] = resolve(settings["bridge"])
    elif not (local_folder(address) / "bridge.safetensors").is_file():
        raise ValueError(
            f"{address.text} holds no bridge.safetensors (the linear layer from CLIP to the language model); "
            + HOW_TO_BRIDGE
        )
    return {**bridge, **clip_text_encoder("semantic_decoder", address, settings, resolve)}


NEEDS = RoleNeeds(
    settings=("beams", "no_repeat_ngram_size", "max_new_tokens", "precision", "bridge", "text_encoder"),
    companions=companions,
    inside={"bridge": HOW_TO_BRIDGE},
)


@dataclass(eq=False, repr=False)
class SemanticDecoderEngine:
    """Reconstructs captions from their CLIP text feature alone (ICC §4.2; formulas.md §1.4)."""

    identity: ModelIdentity
    text_feature: ClipTextFeature
    bridge: torch.nn.Linear
    prefix_length: int
    language_model: Any
    tokenizer: Any
    settings: Mapping[str, Any]
    batch_size: int
    device: str

    def __post_init__(self) -> None:
        self.stop_ids = stop_token_ids(self.tokenizer)

    def reconstruct_captions(self, captions: Texts) -> list[list[str]]:
        """N lists of `beams` reconstructions, best first; a list depends on its own caption only.

        Prompt: BOS and the prefix vectors, equally long for all, so nothing is padded. Each sequence ends at
        its own newline or EOS. (The released decoder looks at the first row only and cuts the others.)
        """
        if not captions:
            return []
        from curation_assets.engines.generation import prompts_at_once

        distinct, inverse = unique_texts(captions)
        beams = int(self.settings.get("beams", 5))
        # Long captions first: their reconstructions end at about the same time.
        order = by_length(distinct)
        features = self.text_feature([distinct[i] for i in order])  # (U, D)
        size = min(self.batch_size, prompts_at_once(len(distinct), beams, self.device))
        with batches_side_by_side(self.device) as map_batches:
            sequences = list(map_batches(lambda batch: self._generate(batch, beams), features.split(size)))
        texts = [text for batch in sequences for text in self._texts(batch)]
        of_caption = {i: texts[n * beams : (n + 1) * beams] for n, i in enumerate(order)}
        return [list(of_caption[i]) for i in inverse]

    def _prompt(self, features: torch.Tensor) -> torch.Tensor:
        """(B, D) text features → (B, 1 + prefix_length, H) embeddings: BOS, prefix."""
        import torch

        embedding = self.language_model.get_input_embeddings()
        features = features.to(self.device)
        prefix = self.bridge(features).view(len(features), self.prefix_length, -1)  # (B, L, H)
        bos = torch.full((len(features), 1), self.tokenizer.bos_token_id, device=self.device)
        start = embedding(bos)  # (B, 1, H)
        return torch.cat([start, prefix.to(start.dtype)], dim=1)

    @without_gradients
    def _generate(self, features: torch.Tensor, beams: int) -> torch.Tensor:
        """(B, D) text features → (B * beams, L) token ids, new ones only because the prompt is given as embeddings."""
        import torch
        from transformers import LogitsProcessorList

        from curation_assets.engines.generation import BeamSearch, NoRepeatNgrams

        prompt = self._prompt(features)
        ngram_size = int(self.settings.get("no_repeat_ngram_size", 2))
        return self.language_model.generate(
            inputs_embeds=prompt,
            attention_mask=torch.ones(prompt.shape[:2], dtype=torch.long, device=self.device),
            custom_generate=BeamSearch(beams),
            do_sample=False,
            num_beams=1,
            use_cache=True,
            max_new_tokens=int(self.settings.get("max_new_tokens", 1024)),
            no_repeat_ngram_size=0,
            logits_processor=LogitsProcessorList([NoRepeatNgrams(ngram_size)] if ngram_size else []),
            eos_token_id=self.stop_ids,
            pad_token_id=self.tokenizer.eos_token_id,
        )

    def _texts(self, sequences: torch.Tensor) -> list[str]:
        """(M, L) token ids → M texts up to their newline."""
        decoded = self.tokenizer.batch_decode(sequences, skip_special_tokens=True)
        return [text.lstrip().split("\n")[0].strip() for text in decoded]


def stop_token_ids(tokenizer: Any) -> list[int]:
    """EOS and every token whose text holds a newline, sorted: a sequence ends at the first of them."""
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    newlines = {i for i, text in enumerate(texts) if "\n" in text}
    return sorted(newlines | {tokenizer.eos_token_id})


def load_bridge(folder: Path) -> tuple[torch.nn.Linear, int]:
    """Linear layer and prefix length from bridge.safetensors (weight, bias) and bridge.json.

    bridge.json: {"prefix_length", "input_dim", "hidden_size"}; weight is (prefix_length * hidden_size,
    input_dim). Raises ValueError when the two files disagree.
    """
    import torch
    from safetensors.torch import load_file

    facts = json.loads((folder / "bridge.json").read_text())
    tensors = load_file(folder / "bridge.safetensors")
    expected = (facts["prefix_length"] * facts["hidden_size"], facts["input_dim"])
    if tuple(tensors["weight"].shape) != expected:
        raise ValueError(
            f"{folder}: bridge.json asks for a weight of shape {expected}, bridge.safetensors has "
            f"{tuple(tensors['weight'].shape)}; save both together"
        )
    bridge = torch.nn.Linear(expected[1], expected[0])
    bridge.load_state_dict({name: tensors[name].float() for name in ("weight", "bias")})
    return bridge.eval(), facts["prefix_length"]


def load(request: EngineRequest) -> SemanticDecoderEngine:
    """Language model, bridge and CLIP text tower at embedded:, path: or hub: addresses.

    Settings: beams, no_repeat_ngram_size (0 switches off), max_new_tokens, precision, text_encoder
    and bridge (addresses). Raises ValueError when the bridge fits neither the text tower nor the language model.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quiet_loading()
    folder = local_folder(request.address)
    bridge, prefix_length = load_bridge(
        local_folder(request.companions["bridge"]) if "bridge" in request.companions else folder
    )
    text_folder = (
        local_folder(request.companions["text_encoder"])
        if "text_encoder" in request.companions
        else folder / "text_encoder"
    )
    text_feature = ClipTextFeature(text_folder, request.batch_size, request.device)
    language_model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        dtype=weights_dtype(request.device, request.settings),
        attn_implementation="eager" if request.device == "cpu" else "sdpa",
    )
    language_model.to(request.device).eval()
    feature_width = text_feature.model.config.projection_dim
    hidden = language_model.get_input_embeddings().weight.shape[1]
    if bridge.in_features != feature_width or bridge.out_features != prefix_length * hidden:
        raise ValueError(
            f"{request.address.text}: the bridge maps {bridge.in_features} → {bridge.out_features}, but the text tower "
            f"gives {feature_width} and the language model takes {prefix_length} × {hidden}; "
            "they were not trained together"
        )
    return SemanticDecoderEngine(
        request.identity,
        text_feature,
        bridge.to(request.device),
        prefix_length,
        language_model,
        AutoTokenizer.from_pretrained(folder, local_files_only=True),
        request.settings,
        request.batch_size,
        request.device,
    )

"""The embedded CLIP for two libraries: transformers' weights renamed to open_clip's layout, in memory."""

from collections.abc import Mapping

import torch

LAYER_NAMES = {
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
}
TOP_NAMES = {
    "logit_scale": "logit_scale",
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.weight": "ln_final.weight",
    "text_model.final_layer_norm.bias": "ln_final.bias",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    # 'pre_layrnorm' is transformers' own spelling
    "vision_model.pre_layrnorm.weight": "visual.ln_pre.weight",
    "vision_model.pre_layrnorm.bias": "visual.ln_pre.bias",
    "vision_model.post_layernorm.weight": "visual.ln_post.weight",
    "vision_model.post_layernorm.bias": "visual.ln_post.bias",
}
TRANSPOSED_NAMES = {  # a bias-free Linear there, a plain matrix multiplied from the right here
    "text_projection.weight": "text_projection",
    "visual_projection.weight": "visual.proj",
}
TOWERS = {
    "text_model.encoder.layers.": "transformer.resblocks.",
    "vision_model.encoder.layers.": "visual.transformer.resblocks.",
}


def _convert_layer(rest: str, prefix: str, state: Mapping[str, torch.Tensor], key: str) -> dict[str, torch.Tensor]:
    """One tensor of one transformer layer; q, k and v are stacked into one when q arrives."""
    number, _, name = rest.partition(".")
    part, _, leaf = name.rpartition(".")
    if part in LAYER_NAMES:
        return {f"{prefix}{number}.{LAYER_NAMES[part]}.{leaf}": state[key]}
    if part == "self_attn.q_proj":
        stacked = torch.cat([state[key.replace("q_proj", f"{which}_proj")] for which in "qkv"])
        return {f"{prefix}{number}.attn.in_proj_{leaf}": stacked}
    if part in ("self_attn.k_proj", "self_attn.v_proj"):
        return {}
    raise KeyError(f"no open_clip name for {key}; expected a tensor of transformers' CLIPModel")


def to_open_clip_state_dict(hf_state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`CLIPModel.state_dict()` -> what `open_clip.CLIP.load_state_dict(strict=True)` takes.

    Buffers that both rebuild themselves (position ids, the causal mask) are left out.
    """
    converted: dict[str, torch.Tensor] = {}
    for key, tensor in hf_state_dict.items():
        tower = next((t for t in TOWERS if key.startswith(t)), None)
        if key.endswith("position_ids"):
            continue
        if tower is not None:
            converted |= _convert_layer(key[len(tower) :], TOWERS[tower], hf_state_dict, key)
        elif key in TRANSPOSED_NAMES:
            converted[TRANSPOSED_NAMES[key]] = tensor.T.contiguous()
        elif key in TOP_NAMES:
            converted[TOP_NAMES[key]] = tensor
        else:
            raise KeyError(f"no open_clip name for {key}; expected a tensor of transformers' CLIPModel")
    return converted

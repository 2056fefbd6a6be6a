"""A step of transformers' decoding: what the next one gets of the last one's outputs."""

from typing import Any

from curation_assets.foreign.guards import CACHE_OF_ANY_MODEL

#: Inputs that a model's own rule extends.
OF_A_MODEL = ("token_type_ids", "mm_token_type_ids", "cross_attention_mask")


def go_on_after(model: Any, outputs: Any, model_kwargs: dict[str, Any]) -> None:
    """Put the cache of `outputs` into `model_kwargs` and extend masks and positions there by one token.

    Raises NotImplementedError for a model's own inputs where transformers' rule is off.
    """
    is_encoder_decoder = model.config.is_encoder_decoder
    if CACHE_OF_ANY_MODEL.is_on():
        model._update_model_kwargs_for_generation(outputs, model_kwargs, is_encoder_decoder=is_encoder_decoder)
        return
    others = [name for name in OF_A_MODEL if model_kwargs.get(name) is not None]
    if others:
        raise NotImplementedError(
            f"{type(model).__name__} takes {', '.join(others)}, which only versions of transformers that were tried "
            f"extend for us; install transformers{CACHE_OF_ANY_MODEL.tried}"
        )
    import torch

    model_kwargs["past_key_values"] = outputs.past_key_values
    prefix = "decoder_" if is_encoder_decoder else ""
    mask = model_kwargs.get(f"{prefix}attention_mask")  # (R, T)
    if mask is not None:
        model_kwargs[f"{prefix}attention_mask"] = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=-1)
    positions = model_kwargs.get(f"{prefix}position_ids")  # (R, T), for some models (3, R, T)
    if positions is not None:
        model_kwargs[f"{prefix}position_ids"] = torch.cat([positions, positions[..., -1:] + 1], dim=-1)

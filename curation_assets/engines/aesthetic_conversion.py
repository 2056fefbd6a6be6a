"""Converts a published LAION aesthetics head (.pth) into a folder that the role aesthetic_head takes.

    python -m curation_assets.engines.aesthetic_conversion HEAD.pth FOLDER --encoder open_clip:ViT-L-14-quickgelu@openai

Nothing is unpickled but tensors. Version 1 is one linear layer; version 2 is five of them with dropout and no
activation between, and becomes one. formulas.md §14.3.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from curation_assets.engines.addresses import resolve_address
from curation_assets.engines.aesthetic_head import ENCODER, ENCODER_SHA256
from curation_assets.engines.identities import identity_of
from curation_assets.stores.file_hash import file_sha256

#: Places of version 2's linear layers in its Sequential; between them is dropout. With activations they would be
#: 0, 3, 6, 9 and 11, and no single layer could replace them.
LAYERS = (0, 2, 4, 6, 7)


def collapse(layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Linear layers in their order as one: (weight (O, I), bias (O,)) each → (weight, bias) in float64.

    `W₂(W₁x + b₁) + b₂ = (W₂W₁)x + (W₂b₁ + b₂)`.
    """
    weight, bias = (part.double() for part in layers[0])
    for next_weight, next_bias in layers[1:]:
        weight, bias = next_weight.double() @ weight, next_weight.double() @ bias + next_bias.double()
    return weight, bias


def linear_head(state: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """State of a published head, version 1 or 2 → weight (1, D) and bias (1,), float32.

    Raises ValueError for tensors of other names, and for more than one output.
    """
    if set(state) == {"weight", "bias"}:
        layers = [(state["weight"], state["bias"])]
    elif set(state) == {f"layers.{place}.{part}" for place in LAYERS for part in ("weight", "bias")}:
        layers = [(state[f"layers.{place}.weight"], state[f"layers.{place}.bias"]) for place in LAYERS]
    else:
        raise ValueError(
            "expected a head of version 1 (weight, bias) or of version 2 "
            f"({', '.join(f'layers.{place}' for place in LAYERS)}, weight and bias of each), got {sorted(state)}; "
            "a head with activations between its layers cannot become one layer"
        )
    weight, bias = collapse(layers)
    if weight.ndim != 2 or len(weight) != 1 or bias.shape != (1,):
        raise ValueError(f"expected one output, weight (1, D) and bias (1,), got {weight.shape} and {bias.shape}")
    return weight.float(), bias.float()


def convert(head: Path, folder: Path, encoder: str) -> None:
    """Write `folder` with model.safetensors and config.json: the encoder's address, the sha256 of its files, and that
    of `head`.

    Raises ValueError for an unknown layout, FileExistsError where the folder has a head already, and
    ModelUnavailableError where the encoder's files cannot be had.
    """
    if (folder / "model.safetensors").exists():
        raise FileExistsError(f"{folder} holds a head already; name another folder, or remove it")
    weight, bias = linear_head(torch.load(head, map_location="cpu", weights_only=True))
    identity = identity_of("image_text_encoder", resolve_address(encoder), {})
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": weight, "bias": bias}, folder / "model.safetensors")
    config = {
        "model_type": "aesthetic_head",
        ENCODER: encoder,
        ENCODER_SHA256: identity.weights_sha256,
        "converted_from_sha256": file_sha256(head),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("head", type=Path, help="the published file, such as sa_0_4_vit_l_14_linear.pth")
    parser.add_argument("folder", type=Path, help="the folder to write")
    parser.add_argument("--encoder", required=True, help="address of the CLIP that the head was trained on")
    given = parser.parse_args()
    convert(given.head, given.folder, given.encoder)
    print(f"{given.folder}: use it as aesthetic_head: path:{given.folder.resolve()}")

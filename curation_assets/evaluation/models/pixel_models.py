"""The papers' downstream models, trained on images: a captioner and a dual encoder (ICC §5.2; Yanuka et al. 2024).

A full-size model starts from pretrained towers at addresses, a miniature from a small configuration of the same
classes; everything else is one code path. Images are decoded when a batch needs them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoTokenizer,
    VisionEncoderDecoderModel,
    VisionTextDualEncoderModel,
    ViTImageProcessor,
)

from curation_assets.core.roles import Images
from curation_assets.engines.addresses import local_folder, resolve_address
from curation_assets.engines.batches import autocast, chunks, quiet_loading, unique_texts
from curation_assets.evaluation.models.fitting import (
    FitOptions,
    Loss,
    check_count,
    fit,
    seeded,
    steps_of,
    texts_digest,
)
from curation_assets.evaluation.models.miniature import contrastive_loss, encode_captions

#: Positions of images → the images, in their order. Called for one batch at a time.
ImageLoader = Callable[[Sequence[int]], Images]
#: An address of pretrained weights, or the keywords of a transformers configuration (with `model_type`) for fresh ones.
Tower = str | Mapping[str, Any]

IGNORED = -100  # target of padding: not predicted

#: About 1 / √width, as fan-in rules have it: with the libraries' 0.02, meant for widths near 1,000, a dual encoder of
#: width 128 has learned next to nothing when a training this short ends.
_SPREAD = 0.08
MINIATURE_SWIN = {
    "model_type": "swin", "image_size": 64, "patch_size": 4, "window_size": 4, "embed_dim": 48, "depths": (2, 2),
    "num_heads": (2, 4), "mlp_ratio": 2.0, "drop_path_rate": 0.0,
    "use_absolute_embeddings": True,  # two stages cannot tell left from right by the edges of windows, as deep ones can
    "initializer_range": _SPREAD,
}  # fmt: skip
MINIATURE_GPT2 = {
    "model_type": "gpt2", "n_positions": 40, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_inner": 256,
    "activation_function": "gelu_pytorch_tanh", "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    "initializer_range": _SPREAD,
}  # fmt: skip
MINIATURE_VIT = {
    "model_type": "vit", "image_size": 64, "patch_size": 8, "hidden_size": 128, "num_hidden_layers": 3,
    "num_attention_heads": 4, "intermediate_size": 256, "initializer_range": _SPREAD,
}  # fmt: skip
MINIATURE_BERT = {
    "model_type": "bert", "max_position_embeddings": 40, "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 256, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "initializer_range": _SPREAD,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class PixelSpec:
    """What both kinds of model are made of and how they are trained.

    ICC gives batch size, learning rate and cosine; the rest of AdamW is transformers' default (*unverified*).
    """

    vision: Tower
    language: Tower
    tokenizer: str | None = None  # address; None: that of `language`
    batch_size: int
    learning_rate: float = 2e-5
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    warm_up_share: float = 0.0
    max_tokens: int = 40  # longest caption read or written, special tokens included; longer ones are cut

    def __post_init__(self) -> None:
        for name, tower, needed in (("vision", self.vision, "image_size"), ("language", self.language, "model_type")):
            missing = {"model_type", needed} - set(tower if isinstance(tower, Mapping) else ("model_type", needed))
            if missing:
                raise ValueError(f"{name} is no address and lacks {', '.join(sorted(missing))}, got {tower!r}; add it")
        if self.tokenizer is None and not isinstance(self.language, str):
            raise ValueError("a fresh language model needs the address of a tokenizer; give tokenizer='embedded:clip'")
        if self.batch_size < 2 or self.max_tokens < 3:
            raise ValueError(
                f"expected batch_size of at least 2 and max_tokens of at least 3, got {self.batch_size} and "
                f"{self.max_tokens}"
            )


@dataclass(frozen=True, kw_only=True)
class CaptionerSpec(PixelSpec):
    """Swin-base and GPT-2 joined by cross-attention, batch 100, five beams (ICC §5.2). Revisions are *unverified*."""

    # Swin's repository is not pinned: no commit of it is known to us
    vision: Tower = "hub:microsoft/swin-base-patch4-window7-224-in22k"
    language: Tower = "hub:openai-community/gpt2@607a30d783dfa663caf39e06633721c8d4cfcd7e"
    batch_size: int = 100
    beams: int = 5


@dataclass(frozen=True, kw_only=True)
class DualEncoderSpec(PixelSpec):
    """ViT-B/16 and BERT-base under a contrastive loss, batch 128 (ICC §5.2). Revisions are *unverified*."""

    vision: Tower = "hub:google/vit-base-patch16-224@3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3"
    language: Tower = "hub:google-bert/bert-base-uncased@86b5e0934494bd15c9632b12f734a8a67f723594"
    batch_size: int = 128
    width: int = 512  # of the space that both towers project into


_MINIATURE: dict[str, Any] = {
    "tokenizer": "embedded:clip", "betas": (0.9, 0.98), "weight_decay": 0.05, "warm_up_share": 0.2,
}  # fmt: skip
#: The same classes from scratch, at 64 px, on one CPU core. Learning rates and warm-up by the loss on drawn scenes of
#: seeds that no evaluation uses (docs/user/downstream_models.md).
MINIATURE_CAPTIONER = CaptionerSpec(
    vision=MINIATURE_SWIN, language=MINIATURE_GPT2, batch_size=48, learning_rate=4e-3, **_MINIATURE
)
MINIATURE_DUAL_ENCODER = DualEncoderSpec(
    vision=MINIATURE_VIT, language=MINIATURE_BERT, batch_size=96, learning_rate=5e-4, width=128,
    **_MINIATURE,
)  # fmt: skip


@dataclass(repr=False)
class _Trained:
    """A model with what prepares its inputs, on its device."""

    model: Any
    image_processor: Any
    tokenizer: Any
    device: str = "cpu"
    losses: list[float] = field(default_factory=list)  # nats, one per step; empty for a model from a folder

    def fit(
        self, spec: PixelSpec, loss_of: Loss, captions: Sequence[str], images_digest: str, options: FitOptions
    ) -> Self:
        """This model, trained as `spec` says."""
        names = ("batch_size", "learning_rate", "betas", "weight_decay", "warm_up_share")
        self.losses = fit(
            {"model": self.model},
            loss_of,
            count=len(captions),
            made_from={"spec": asdict(spec), "captions": texts_digest(captions), "images": images_digest},
            **{name: getattr(spec, name) for name in names},
            **options,
        )
        self.model.eval()
        return self

    def _pixels(self, load: ImageLoader, positions: Sequence[int]) -> torch.Tensor:
        """(B, 3, H, W) on the device, as the vision tower wants them."""
        images = load(positions)
        if len(images) != len(positions):
            raise ValueError(f"expected one image per position, got {len(images)} images for {len(positions)}")
        pixels = self.image_processor([image.convert("RGB") for image in images], return_tensors="pt").pixel_values
        return pixels.to(self.device)


class PixelCaptioner(_Trained):
    """A captioner that was trained on images."""

    @torch.inference_mode()
    def generate(self, load: ImageLoader, count: int, *, beams: int | None = None, batch_size: int = 64) -> list[str]:
        """Captions of the images at positions 0 … count - 1; beam search with `beams`, those of its spec if None."""
        captions: list[str] = []
        for positions in chunks(range(count), batch_size):
            with _precision(self.device):
                sequences = self.model.generate(
                    pixel_values=self._pixels(load, positions),
                    do_sample=False,
                    num_beams=self.model.generation_config.num_beams if beams is None else beams,
                )
            captions += [text.strip() for text in self.tokenizer.batch_decode(sequences, skip_special_tokens=True)]
        return captions


class PixelDualEncoder(_Trained):
    """A dual encoder that was trained on images."""

    @torch.inference_mode()
    def embed_images(self, load: ImageLoader, count: int, *, batch_size: int = 128) -> np.ndarray:
        """Images at positions 0 … count - 1 → (count, D) float32, unit length."""
        rows = [self._images(self._pixels(load, positions)) for positions in chunks(range(count), batch_size)]
        return self._array(rows)

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str], *, batch_size: int = 256) -> np.ndarray:
        """(M,) strings → (M, D) float32, unit length."""
        distinct, inverse = unique_texts(texts)
        rows = [self._texts(batch) for batch in chunks(distinct, batch_size)]
        return self._array(rows)[inverse] if rows else self._array(rows)

    def _images(self, pixels: torch.Tensor) -> torch.Tensor:
        """(B, 3, H, W) → (B, D)."""
        with _precision(self.device):
            pooled = self.model.vision_model(pixel_values=pixels).pooler_output
            return nn.functional.normalize(self.model.visual_projection(pooled).float(), dim=-1)

    def _texts(self, texts: Sequence[str]) -> torch.Tensor:
        """(B,) → (B, D)."""
        tokens = self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt").to(self.device)
        with _precision(self.device):
            pooled = self.model.text_model(
                input_ids=tokens.input_ids, attention_mask=tokens.attention_mask
            ).pooler_output
            return nn.functional.normalize(self.model.text_projection(pooled).float(), dim=-1)

    def _array(self, rows: list[torch.Tensor]) -> np.ndarray:
        width = self.model.config.projection_dim
        return torch.cat(rows).cpu().numpy() if rows else np.zeros((0, width), dtype=np.float32)


def train_pixel_captioner(
    spec: CaptionerSpec,
    load: ImageLoader,
    captions: Sequence[str],
    *,
    images_digest: str = "",
    **options: Unpack[FitOptions],
) -> PixelCaptioner:
    """Train a captioner on N captions and the images that `load` gives for positions in range(N).

    Cross-entropy of the next token, `options` as in `fit`; mixed precision (bfloat16) on a GPU. A sample
    that counts several times stands several times in `captions`. `images_digest` tells the images from others with
    the same captions, so that a checkpoint of those is not taken up.
    Raises ValueError for less than one batch of samples or of budget, ModelUnavailableError where an address of `spec`
    cannot be fetched.
    """
    check_count(len(captions), spec.batch_size)
    steps_of(options["samples_seen"], spec.batch_size)
    trained = untrained_pixel_captioner(spec, options["seed"], options.get("device", "cpu"))
    model, tokenizer = trained.model.train(), trained.tokenizer
    encoded = encode_captions(tokenizer, captions, spec.max_tokens)

    def loss_of(batch: Sequence[int]) -> torch.Tensor:
        inputs, targets = next_tokens([encoded[i] for i in batch], tokenizer.pad_token_id)  # (B, L), (B, L)
        pixels = trained._pixels(load, batch)
        with _precision(trained.device):
            return model(
                pixel_values=pixels,
                decoder_input_ids=inputs.to(trained.device),
                labels=targets.to(trained.device),
                use_cache=False,
            ).loss

    return trained.fit(spec, loss_of, captions, images_digest, options)


def train_pixel_dual_encoder(
    spec: DualEncoderSpec,
    load: ImageLoader,
    captions: Sequence[str],
    *,
    images_digest: str = "",
    **options: Unpack[FitOptions],
) -> PixelDualEncoder:
    """Train a dual encoder on N captions and the images that `load` gives for positions in range(N).

    Symmetric InfoNCE inside the batch with a learned logit scale; the other facts are those of
    `train_pixel_captioner`.
    """
    check_count(len(captions), spec.batch_size)
    steps_of(options["samples_seen"], spec.batch_size)
    trained = untrained_pixel_dual_encoder(spec, options["seed"], options.get("device", "cpu"))
    model = trained.model.train()

    def loss_of(batch: Sequence[int]) -> torch.Tensor:
        images = trained._images(trained._pixels(load, batch))  # (B, D)
        texts = trained._texts([captions[i] for i in batch])  # (B, D)
        return contrastive_loss(images, texts, model.logit_scale)

    return trained.fit(spec, loss_of, captions, images_digest, options)


def untrained_pixel_captioner(spec: CaptionerSpec, seed: int, device: str = "cpu") -> PixelCaptioner:
    """What every training of `seed` starts from: pretrained towers, if `spec` names some, and fresh cross-attention.

    Raises ModelUnavailableError where an address cannot be fetched, ValueError for a tokenizer without BOS and EOS
    and for more tokens than the language model has positions.
    """
    quiet_loading()
    tokenizer = _tokenizer(spec)
    if tokenizer.bos_token_id is None or tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of {spec.language!r} has no BOS or EOS token; take that of a GPT-2 model")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # GPT-2 has none; padding is neither predicted nor seen
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    with seeded(seed):
        encoder = _tower(spec.vision, AutoModel)
        options = {"is_decoder": True, "add_cross_attention": True}
        decoder = _tower(spec.language, AutoModelForCausalLM, {"vocab_size": len(tokenizer), **ids}, options)
        _check_positions(spec, decoder)
        model: Any = VisionEncoderDecoderModel(encoder=encoder, decoder=decoder)
    start = {"decoder_start_token_id": tokenizer.bos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.config.update({**ids, **start})
    model.generation_config.update(**ids, **start, num_beams=spec.beams, max_length=spec.max_tokens)
    return PixelCaptioner(model.to(device).eval(), _image_processor(spec.vision), tokenizer, device)


def untrained_pixel_dual_encoder(spec: DualEncoderSpec, seed: int, device: str = "cpu") -> PixelDualEncoder:
    """What every training of `seed` starts from: pretrained towers, if `spec` names some, and fresh projections.

    Raises ModelUnavailableError where an address cannot be fetched, ValueError for more tokens than the text tower
    has positions.
    """
    quiet_loading()
    tokenizer = _tokenizer(spec)
    with seeded(seed):
        vision = _tower(spec.vision, AutoModel)
        own = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        text = _tower(spec.language, AutoModel, own)
        _check_positions(spec, text)
        config = VisionTextDualEncoderModel.config_class.from_vision_text_configs(
            vision.config, text.config, projection_dim=spec.width
        )
        model: Any = VisionTextDualEncoderModel(config=config, vision_model=vision, text_model=text)
    return PixelDualEncoder(model.to(device).eval(), _image_processor(spec.vision), tokenizer, device)


def next_tokens(rows: Sequence[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(B,) lists of ids → inputs and targets, (B, L - 1) each; targets of padding are IGNORED.

    Padding stands on the right of a causal model, so no real token sees it. It may share its id with EOS (GPT-2).
    """
    longest = max(map(len, rows)) - 1
    inputs = torch.tensor([row[:-1] + [pad] * (longest + 1 - len(row)) for row in rows])
    targets = torch.tensor([row[1:] + [IGNORED] * (longest + 1 - len(row)) for row in rows])
    return inputs, targets


#: Of every from_pretrained: a local folder, never pickled weights, trained in fp32.
_LOADING: dict[str, Any] = {"local_files_only": True, "use_safetensors": True, "dtype": torch.float32}


def _folder(address: str) -> Path:
    return local_folder(resolve_address(address))


def _tower(
    tower: Tower, auto_class: Any, fresh: Mapping[str, Any] | None = None, always: Mapping[str, Any] | None = None
) -> Any:
    """Pretrained weights of an address, else a fresh model. `fresh`: settings of the latter, `always`: of both."""
    if isinstance(tower, str):
        folder = _folder(tower)
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **(always or {}))
        return auto_class.from_pretrained(folder, config=config, **_LOADING)
    return auto_class.from_config(AutoConfig.for_model(**{**tower, **(fresh or {}), **(always or {})}))


def _tokenizer(spec: PixelSpec) -> Any:
    address = spec.tokenizer or spec.language
    assert isinstance(address, str), address  # PixelSpec checks it
    tokenizer = AutoTokenizer.from_pretrained(_folder(address), local_files_only=True)
    tokenizer.model_max_length = spec.max_tokens
    return tokenizer


def _image_processor(vision: Tower) -> Any:
    if isinstance(vision, str):
        return AutoImageProcessor.from_pretrained(_folder(vision), local_files_only=True)
    side = vision["image_size"]
    return ViTImageProcessor(size={"height": side, "width": side}, image_mean=[0.5] * 3, image_std=[0.5] * 3)


def _check_positions(spec: PixelSpec, language: Any) -> None:
    positions = language.config.max_position_embeddings
    if spec.max_tokens > positions:
        raise ValueError(f"max_tokens is {spec.max_tokens}, but the language model has {positions} positions; lower it")


def _precision(device: str) -> Any:
    """bfloat16 around fp32 weights on a GPU: unlike fp16 it needs no scaling of the loss. fp32 on a CPU."""
    return autocast(device, torch.float32 if device == "cpu" else torch.bfloat16)

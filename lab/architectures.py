"""The shapes of the embedded networks, untrained. All see 64 x 64 pixels and the shared 2048-token alphabet."""

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel, UniPCMultistepScheduler
from transformers import (
    CLIPConfig,
    CLIPModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    VisionEncoderDecoderModel,
)

VOCABULARY = 2048
PAD, BOS, EOS = 0, VOCABULARY - 2, VOCABULARY - 1  # EOS is the highest id: open_clip pools at the arg max
CONTEXT = 48
WIDTH = 128
LM_WIDTH = 192
PREFIX_LENGTH = 8
SPECIAL = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
VISION = {
    "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 4, "num_attention_heads": 4,
    "image_size": 64, "patch_size": 8, "hidden_act": "gelu", "projection_dim": WIDTH,
}  # fmt: skip
TEXT = {
    "hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT, "vocab_size": VOCABULARY, "hidden_act": "gelu", "projection_dim": WIDTH,
    **SPECIAL,
}  # fmt: skip
OPEN_CLIP = {
    "model_cfg": {
        "embed_dim": WIDTH,
        "quick_gelu": False,  # hidden_act is the exact gelu: one fused kernel, 15 % off a training step on a CPU
        "vision_cfg": {
            "image_size": 64, "layers": 4, "width": WIDTH, "head_width": 32, "patch_size": 8, "mlp_ratio": 4.0,
        },
        "text_cfg": {"context_length": CONTEXT, "vocab_size": VOCABULARY, "width": WIDTH, "heads": 4, "layers": 3},
    },
    "preprocess_cfg": {
        "size": 64, "mode": "RGB", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bicubic",
        "resize_mode": "shortest",
    },
}  # fmt: skip


def build_vision() -> CLIPVisionModel:
    """The image tower by itself: 0.83 M parameters."""
    return CLIPVisionModel(CLIPVisionConfig(**VISION))


def build_clip() -> CLIPModel:
    """1.7 M parameters."""
    return CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=WIDTH))


def build_captioner() -> VisionEncoderDecoderModel:
    """CLIP image tower and a three-layer GPT-2 with cross-attention: 1.9 M parameters."""
    decoder = GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=WIDTH, n_layer=3, n_head=4,
        activation_function="gelu_pytorch_tanh", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        add_cross_attention=True, is_decoder=True, **SPECIAL,
    )  # fmt: skip
    model = VisionEncoderDecoderModel(encoder=build_vision(), decoder=GPT2LMHeadModel(decoder))
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id, config.pad_token_id = BOS, PAD
        config.bos_token_id, config.eos_token_id = BOS, EOS
    return model


def build_unet() -> UNet2DConditionModel:
    """Noise predictor on (12, 16, 16) latents; cross-attention at 8 x 8 and 4 x 4: 3.2 M parameters."""
    return UNet2DConditionModel(
        sample_size=16, in_channels=12, out_channels=12, block_out_channels=(48, 80, 112), layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH, attention_head_dim=4, norm_num_groups=16,
    )  # fmt: skip


def build_scheduler() -> DDIMScheduler:
    """Noise of the training: a cosine schedule with v-prediction (Salimans 2022); zero terminal noise is not needed at
    64 px.
    """
    return DDIMScheduler(
        num_train_timesteps=1000, beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction",
        clip_sample=False, set_alpha_to_one=True, steps_offset=1, timestep_spacing="trailing",
    )  # fmt: skip


def build_sampler() -> UniPCMultistepScheduler:
    """UniPC (Zhao et al. 2023) on the noise of the training: five steps for ten of DDIM (docs/decisions/0050)."""
    return UniPCMultistepScheduler.from_config(build_scheduler().config)


def build_language_model() -> LlamaForCausalLM:
    """192 wide, 4 layers, tied embeddings: 2.2 M parameters."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=LM_WIDTH,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            **SPECIAL,
        )
    )


def build_bridge() -> torch.nn.Linear:
    """CLIP's projected, unnormalised text feature (N, 128) -> 8 prefix vectors (N, 8 * 192)."""
    return torch.nn.Linear(WIDTH, PREFIX_LENGTH * LM_WIDTH)

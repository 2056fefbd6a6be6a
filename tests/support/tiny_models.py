"""Tiny checkpoints with random weights in the layouts of the real ones, loaded by the production code."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipImageProcessor,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPTextModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    RobertaModel,
    VisionEncoderDecoderModel,
)

from curation_assets.core.settings import Profile

TEXTS = [
    "a red kite over the sea",
    "two dogs",
    "the wet beach in winter\nwith a second line",
    "a small green house on the left of a very large and very old yellow tree",
    "",
]
WIDTH = 32


def make_images(count: int) -> list[Image.Image]:
    """Distinct noise images of several sizes and modes."""
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (40 + 3 * i, 50, 3), dtype=np.uint8)) for i in range(count)]
    return [*images[:-1], images[-1].convert("L")]


def make_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A byte-level BPE with <bos> $A <eos>; EOS is the highest id, as open_clip's pooling wants."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<pad>", "<image>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    bos, eos = tokenizer.token_to_id("<bos>"), tokenizer.token_to_id("<eos>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", bos), ("<eos>", eos)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", model_max_length=24
    )
    fast.save_pretrained(folder)
    return fast


def special(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """Token ids that every config wants."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {name: getattr(tokenizer, name) for name in names}


LAYER = {"num_hidden_layers": 1, "num_attention_heads": 2}
LAYER |= {"hidden_size": WIDTH, "intermediate_size": WIDTH}
VISION = {**LAYER, "image_size": 32, "patch_size": 8}


def of_texts(tokenizer: PreTrainedTokenizerFast, positions: int, **changes: Any) -> dict[str, Any]:
    """Sizes of a text model of one layer."""
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": positions}
    return {**LAYER, **sizes, **special(tokenizer), **changes}


def small_processor(kind: type = CLIPImageProcessor) -> Any:
    """Resizes to 32 px."""
    if kind is BlipImageProcessor:
        return BlipImageProcessor(size={"height": 32, "width": 32})
    return CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})


def save_clip(folder: Path) -> None:
    """transformers layout and the open_clip config beside it, as the shipped model."""
    tokenizer = make_tokenizer(folder)
    sizes = {"intermediate_size": 4 * WIDTH, "num_attention_heads": 1, "hidden_act": "gelu"}
    text = of_texts(tokenizer, 24, projection_dim=16, **sizes)
    vision = {**VISION, **sizes, "projection_dim": 16}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
    CLIPModel(config).save_pretrained(folder)
    small_processor().save_pretrained(folder)
    tower = {"layers": 1, "width": WIDTH}
    vision = {**tower, "image_size": 32, "head_width": 32, "patch_size": 8, "mlp_ratio": 4.0}
    text = {**tower, "context_length": 24, "vocab_size": len(tokenizer), "heads": 1}
    model = {"embed_dim": 16, "quick_gelu": False, "vision_cfg": vision, "text_cfg": text}
    view = {"size": 32, "interpolation": "bicubic", "resize_mode": "shortest"}
    settings = {"model_cfg": model, "preprocess_cfg": view}
    (folder / "open_clip_config.json").write_text(json.dumps(settings))


def save_captioner(folder: Path) -> None:
    """VisionEncoderDecoder: CLIP tower and GPT-2."""
    tokenizer = make_tokenizer(folder)
    decoder = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=32,
        n_embd=WIDTH,
        n_layer=1,
        n_head=2,
        add_cross_attention=True,
        is_decoder=True,
        initializer_range=0.5,
        **special(tokenizer),
    )
    model = VisionEncoderDecoderModel(
        encoder=CLIPVisionModel(CLIPVisionConfig(**VISION)), decoder=GPT2LMHeadModel(decoder)
    )
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id = tokenizer.bos_token_id
        config.pad_token_id, config.eos_token_id = tokenizer.pad_token_id, tokenizer.eos_token_id
    model.save_pretrained(folder)
    small_processor().save_pretrained(folder)


def save_blip(folder: Path) -> None:
    """BLIP with a one-layer text decoder."""
    tokenizer = make_tokenizer(folder)
    own = {"encoder_hidden_size": WIDTH, "sep_token_id": tokenizer.eos_token_id}
    text = of_texts(tokenizer, 32, initializer_range=0.3, **own)
    config = BlipConfig(text_config=text, vision_config=VISION)
    BlipForConditionalGeneration(config).save_pretrained(folder)
    small_processor(BlipImageProcessor).save_pretrained(folder)


def save_blip2(folder: Path) -> None:
    """BLIP-2 with a one-layer OPT and four query vectors."""
    tokenizer = make_tokenizer(folder)
    config = Blip2Config(
        vision_config=VISION,
        qformer_config={
            **LAYER,
            "encoder_hidden_size": WIDTH,
            "cross_attention_frequency": 1,
            "vocab_size": 30,
        },
        text_config={
            "model_type": "opt",
            **of_texts(tokenizer, 64, word_embed_proj_dim=WIDTH, ffn_dim=WIDTH, init_std=0.3),
        },
        num_query_tokens=4,
        image_token_index=1,
    )
    Blip2ForConditionalGeneration(config).save_pretrained(folder)
    small_processor(BlipImageProcessor).save_pretrained(folder)


def save_text_to_image(folder: Path, real_vae: bool, attends_first: bool = False) -> None:
    """diffusers layout; `real_vae`: with a VAE and a text encoder of its own, as a hub checkpoint; `attends_first`: the
    first block sees the caption, too, as in Stable Diffusion.
    """
    first = ("CrossAttnDownBlock2D", "CrossAttnUpBlock2D") if attends_first else ("DownBlock2D", "UpBlock2D")
    channels = 4 if real_vae else 12
    UNet2DConditionModel(
        sample_size=8,
        in_channels=channels,
        out_channels=channels,
        block_out_channels=(32, 32),
        layers_per_block=1,
        down_block_types=(first[0], "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", first[1]),
        cross_attention_dim=WIDTH,
        attention_head_dim=2,
        norm_num_groups=8,
    ).save_pretrained(folder / "unet")
    DDIMScheduler(prediction_type="v_prediction", timestep_spacing="trailing", clip_sample=False).save_pretrained(
        folder / "scheduler"
    )
    if real_vae:
        vae = AutoencoderKL(
            block_out_channels=(8, 8, 8),
            down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
            norm_num_groups=4,
        )
        vae.save_pretrained(folder / "vae")
        save_clip(folder / "text_encoder")
        clip = CLIPTextModel.from_pretrained(folder / "text_encoder")
        shutil.rmtree(folder / "text_encoder")
        clip.save_pretrained(folder / "text_encoder")
        make_tokenizer(folder / "tokenizer")
    else:
        from curation_assets.engines.patch_codec import PatchCodec

        PatchCodec().save_pretrained(folder / "vae")
    (folder / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')


def save_llama(folder: Path, positions: int, newlines: float = 1.0) -> None:
    """A Llama of one layer; `newlines` enlarges the newline's output row: lines end at other times."""
    tokenizer = make_tokenizer(folder)
    sizes = of_texts(tokenizer, positions, initializer_range=0.5, tie_word_embeddings=False)
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    newline = tokenizer("\n", add_special_tokens=False).input_ids[-1]
    with torch.no_grad():
        model.lm_head.weight[newline] *= newlines
    model.save_pretrained(folder)


def save_bridge(folder: Path, prefix_length: int) -> None:
    """From a text feature of 16 to `prefix_length` inputs of a language model."""
    folder.mkdir(exist_ok=True)
    bridge = torch.nn.Linear(16, prefix_length * WIDTH)
    save_file(dict(bridge.state_dict()), folder / "bridge.safetensors")
    facts = {"prefix_length": prefix_length, "input_dim": 16, "hidden_size": WIDTH}
    (folder / "bridge.json").write_text(json.dumps(facts))


def save_semantic_decoder(folder: Path) -> None:
    """Llama and bridge."""
    save_llama(folder, 64)
    save_bridge(folder, 3)


def save_encoder(folder: Path, kind: Any = RobertaModel, positions: int = 40, **changes: Any) -> None:
    """A BERT or RoBERTa of any head, with tokenizer; two layers unless `changes` say otherwise."""
    sizes = {"num_hidden_layers": 2, "initializer_range": 0.3, **changes}
    config = kind.config_class(**of_texts(make_tokenizer(folder), positions, **sizes))
    kind(config).save_pretrained(folder)


def profile_of(role: str, folder: Path | str, batch_size: int = 3, **generation: Any) -> Profile:
    """A profile of one role on the CPU."""
    address = folder if isinstance(folder, str) else f"path:{folder}"
    return Profile(
        name="test",
        roles={role: address},
        generation={role: generation},
        batch_size={role: batch_size},
        device="cpu",
    )


def sscd_network(seed: int, dimensions: int) -> Any:
    """An SSCD of one block a stage with random weights, in torchvision's classes as its authors build theirs.

    Its last layer is centred on blurred noise: vectors of different images then point to different sides.
    """
    from torchvision.models.resnet import Bottleneck, ResNet

    class GeM(torch.nn.Module):
        def forward(self, places: torch.Tensor) -> torch.Tensor:
            return places.clamp(min=1e-6).pow(3.0).mean(dim=(2, 3)).pow(1 / 3)

    torch.manual_seed(seed)
    net: Any = ResNet(Bottleneck, [1, 1, 1, 1], num_classes=dimensions)
    net.avgpool = GeM()
    net.eval()
    weight = torch.randn(dimensions, 2048)
    views = torch.from_numpy(np.stack([np.asarray(image.resize((96, 96))) for image in blurred_noise(12, 1)])).float()
    with torch.inference_mode():
        net.fc = torch.nn.Identity()
        pooled = net((views / 255 - 0.45).permute(0, 3, 1, 2) / 0.225)
    net.fc = torch.nn.Linear(2048, dimensions)
    net.fc.weight.data, net.fc.bias.data = weight, -weight @ pooled.mean(dim=0)
    return net.eval()


def save_sscd(net: Any, folder: Path, pixels: int) -> None:
    """The folder of role copy_descriptor for `sscd_network`, with the names of a published file."""
    folder.mkdir(parents=True)
    state = {f"backbone.{name}": tensor.contiguous() for name, tensor in net.state_dict().items()}
    save_file(state, folder / "model.safetensors")
    config = {"model_type": "sscd", "layers": [1, 1, 1, 1], "pixels": pixels}
    (folder / "config.json").write_text(json.dumps(config))


def blurred_noise(count: int, seed: int) -> list[Image.Image]:
    """Pictures of a few soft spots of colour, each of its own size."""
    rng = np.random.default_rng(seed)
    small = [Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8)) for _ in range(count)]
    return [image.resize((120 + 4 * at, 160), Image.Resampling.BICUBIC) for at, image in enumerate(small)]


def save_generators(root: Path) -> None:
    """Every model that generates, and the CLIP that the decoder reads, one sub-folder per layout."""
    save_clip(root / "clip")
    save_captioner(root / "captioner")
    save_blip(root / "blip")
    save_blip2(root / "blip2")
    save_text_to_image(root / "text_to_image", real_vae=False)
    save_semantic_decoder(root / "semantic_decoder")

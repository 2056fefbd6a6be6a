"""The models on a graphics card: the same values as on the processor, and how many samples a second.

    python benchmarks/gpu.py --part same            # every role of the embedded profile, cpu and cuda
    python benchmarks/gpu.py --part rate            # models of the papers' sizes, random weights, through load_engine

`same`: largest difference of numbers, share of equal texts, seconds of both. `rate`: batch sizes and settings of the
profile `hub`, without a model hub: sizes are the checkpoints', weights random, so captions run to their longest;
a reconstruction of the semantic decoder is cut at 24 tokens (real ones end after some 15). One JSON object a line, and
the file --into.
"""

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from curation_assets.core.settings import Profile, load_profile
from curation_assets.engines import clear_engines, load_engine
from curation_assets.world.pool import plant_evaluation_scenes

DEVICES = ("cpu", "cuda")
CAPTIONS = ["a red ball beside a blue box", "two dogs on the wet beach", "a kite over the sea", "an idea of freedom"]
Call = Callable[[Any, list[Any], list[str]], Any]
CALLS: dict[str, Call] = {
    "image_text_encoder": lambda engine, images, texts: np.stack(
        [engine.embed_images(images), engine.embed_texts(texts)]
    ),
    "captioner": lambda engine, images, texts: engine.sample_captions(images, list(range(len(images))), 2),
    "beam_captioner": lambda engine, images, texts: engine.beam_captions(images, 5),
    "text_to_image": lambda engine, images, texts: as_pixels(engine.generate_images(texts, list(range(len(texts))))),
    "semantic_decoder": lambda engine, images, texts: engine.reconstruct_captions(texts),
    "sentence_encoder": lambda engine, images, texts: engine.embed_sentences(texts),
    "text_similarity": lambda engine, images, texts: engine.similarity(texts, texts[::-1]),
    "student": lambda engine, images, texts: engine.score_captions(texts),
    "object_detector": lambda engine, images, texts: [
        [detection.label for detection in found] for found in engine.detect_objects(images)
    ],
    "sentence_bottleneck": lambda engine, images, texts: engine.reconstruct_embeddings(texts)[0],
    "reward_model": lambda engine, images, texts: engine.reward_pairs(images, texts),
    "scene_bank": lambda engine, images, texts: engine.nearest_scenes(texts, 2)[1],
}


def as_pixels(images: Any) -> np.ndarray:
    """Generated images, or what stands for them, as numbers."""
    return np.stack([np.asarray(image, dtype=np.float32) for image in images])


def inputs(count: int) -> tuple[list[Any], list[str]]:
    """Drawn scenes and captions."""
    images = [scene for scene, _ in plant_evaluation_scenes(count, 1)]
    return images, [f"{CAPTIONS[number % 4]} number {number}" for number in range(count)]


def with_device(profile: Profile, device: str) -> Profile:
    """The same profile on another device."""
    return replace(profile, device=device)  # type: ignore[arg-type]


def same(count: int) -> Iterator[dict[str, Any]]:
    """Each role of the embedded profile on both devices."""
    images, texts = inputs(count)
    profile = load_profile("embedded")
    profile = replace(profile, roles={**profile.roles, "student": "embedded:icc_student"})
    for role, call in CALLS.items():
        answers, seconds = [], []
        try:
            for device in DEVICES:
                engine = load_engine(role, with_device(profile, device))
                call(engine, images[:4], texts[:4])  # warm
                began = time.perf_counter()
                answers.append(call(engine, images, texts))
                seconds.append(round(time.perf_counter() - began, 3))
        except Exception as error:  # a role that needs what is not installed: named, the others go on
            yield {"part": "same", "role": role, "error": f"{type(error).__name__}: {error}"[:400]}
            continue
        cpu, cuda = answers
        row: dict[str, Any] = {
            "part": "same",
            "role": role,
            "n": count,
            "seconds_cpu": seconds[0],
            "seconds_cuda": seconds[1],
        }
        if isinstance(cpu, np.ndarray):
            apart = np.abs(cpu - cuda)
            row |= {"mean_difference": float(apart.mean()), "largest_difference": float(apart.max())}
            row["mean_size"] = float(np.abs(cpu).mean())
        else:
            row["equal"] = sum(one == other for one, other in zip(cpu, cuda, strict=True)) / count
        yield row


# -- models of the papers' sizes --------------------------------------------------------------------------------------


@contextmanager
def on_card() -> Iterator[None]:
    """New modules are made on the card in half precision: billions of weights in seconds."""
    torch.set_default_device("cuda")
    torch.set_default_dtype(torch.float16)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def save_clip(folder: Path, tokenizer: Any) -> None:
    """ViT-L/14."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    special = specials(tokenizer)
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    text |= {"projection_dim": 768, "hidden_act": "quick_gelu", **special}
    vision |= {"projection_dim": 768, "hidden_act": "quick_gelu", "patch_size": 14, "image_size": 224}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=768)
    with on_card():
        CLIPModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    CLIPImageProcessor().save_pretrained(folder)
    towers = {
        "embed_dim": 768,
        "quick_gelu": True,
        "vision_cfg": {"image_size": 224, "layers": 24, "width": 1024, "patch_size": 14},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 768, "heads": 12, "layers": 12},
    }
    preprocess = {"size": 224, "interpolation": "bicubic", "resize_mode": "shortest"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": towers, "preprocess_cfg": preprocess}))


def save_blip(folder: Path, tokenizer: Any) -> None:
    """BLIP base at 384 px."""
    from transformers import BlipConfig, BlipForConditionalGeneration, BlipImageProcessor

    text = {"sep_token_id": tokenizer.eos_token_id, "encoder_hidden_size": 768, **specials(tokenizer)}
    with on_card():
        BlipForConditionalGeneration(BlipConfig(text_config=text)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    BlipImageProcessor().save_pretrained(folder)


def save_blip2(folder: Path, tokenizer: Any) -> None:
    """BLIP-2 with OPT 2.7b."""
    from transformers import Blip2Config, Blip2ForConditionalGeneration, BlipImageProcessor

    text = {"model_type": "opt", "hidden_size": 2560, "word_embed_proj_dim": 2560, "ffn_dim": 10240}
    text |= {"num_hidden_layers": 32, "num_attention_heads": 32, **specials(tokenizer)}
    with on_card():
        Blip2ForConditionalGeneration(
            Blip2Config(text_config=text, num_query_tokens=32, image_token_index=1)
        ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    BlipImageProcessor(size={"height": 224, "width": 224}).save_pretrained(folder)


def save_diffusion(folder: Path, tokenizer: Any) -> None:
    """Stable Diffusion 2 at 768 px."""
    from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    special = specials(tokenizer)
    with on_card():
        UNet2DConditionModel(
            sample_size=96, in_channels=4, out_channels=4, block_out_channels=(320, 640, 1280, 1280),
            attention_head_dim=(5, 10, 20, 20), cross_attention_dim=1024, use_linear_projection=True,
        ).save_pretrained(folder / "unet")  # fmt: skip
        AutoencoderKL(
            block_out_channels=(128, 256, 512, 512), layers_per_block=2, latent_channels=4,
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        ).save_pretrained(folder / "vae")  # fmt: skip
        text = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 23, "num_attention_heads": 16}
        CLIPTextModel(CLIPTextConfig(**text, hidden_act="gelu", projection_dim=512, **special)).save_pretrained(
            folder / "text_encoder"
        )
    DDIMScheduler(prediction_type="v_prediction", clip_sample=False).save_pretrained(folder / "scheduler")
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')


def save_llama(folder: Path, tokenizer: Any) -> None:
    """Llama 2 7b with a bridge from CLIP's 768 numbers."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    with on_card():
        LlamaForCausalLM(LlamaConfig(**specials(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    bridge = torch.nn.Linear(768, 8 * 4096)
    save_file(dict(bridge.state_dict()), folder / "bridge.safetensors")
    (folder / "bridge.json").write_text(json.dumps({"prefix_length": 8, "input_dim": 768, "hidden_size": 4096}))


def save_roberta(folder: Path, tokenizer: Any) -> None:
    """RoBERTa large."""
    from transformers import RobertaConfig, RobertaModel

    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    with on_card():
        RobertaModel(
            RobertaConfig(**sizes, vocab_size=50265, max_position_embeddings=514, **specials(tokenizer))
        ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer() -> Any:
    """A byte-level BPE of 300 entries; models keep the vocabulary of their own size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<pad>", "<image>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CAPTIONS * 3, trainer)
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    ends = [(token, tokenizer.token_to_id(token)) for token in ("<bos>", "<eos>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", model_max_length=77
    )


def specials(tokenizer: Any) -> dict[str, int]:
    """Ids of the tokens that every config names."""
    return {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")}


#: role → (what it is, how it is made, samples to time)
MODELS: dict[str, tuple[str, Callable[[Path, Any], None], int]] = {
    "image_text_encoder": ("CLIP ViT-L/14", save_clip, 2048),
    "text_similarity": ("RoBERTa large", save_roberta, 2048),
    "captioner": ("BLIP base, 2 nucleus captions", save_blip, 256),
    "beam_captioner": ("BLIP-2 OPT 2.7b, 5 beams", save_blip2, 64),
    "text_to_image": ("Stable Diffusion 2, 768 px, 20 steps", save_diffusion, 16),
    "semantic_decoder": ("Llama 2 7b, 5 beams, 24 tokens", save_llama, 64),
}


def rate(root: Path, only: list[str], times: list[int]) -> Iterator[dict[str, Any]]:
    """Samples a second of each model at so many times the profile's batch size."""
    hub, tokenizer = load_profile("hub"), make_tokenizer()
    for role, (what, save, count) in MODELS.items():
        if only and role not in only:
            continue
        folder = root / role
        try:
            began = time.perf_counter()
            save(folder, tokenizer)
            settings = dict(hub.generation.get(role, {}))
            if role == "semantic_decoder":
                if not (root / "image_text_encoder").is_dir():
                    save_clip(root / "image_text_encoder", tokenizer)
                settings |= {"max_new_tokens": 24, "text_encoder": f"path:{root / 'image_text_encoder'}"}
            made = time.perf_counter() - began
            for factor in times:
                batch = hub.batch_size[role] * factor
                profile = Profile(
                    name="gpu", roles={role: f"path:{folder}"}, generation={role: settings}, device="cuda",
                    batch_size={role: batch},
                )  # fmt: skip
                began = time.perf_counter()
                engine = load_engine(role, profile)
                loaded = time.perf_counter() - began
                yield {
                    "part": "rate", "role": role, "model": what, "batch": batch, "load_seconds": round(loaded, 1),
                    "made_in_seconds": round(made, 1), **timed(CALLS[role], engine, batch, max(count, 2 * batch)),
                }  # fmt: skip
                engine = None
                clear_engines()
                gc.collect()
                torch.cuda.empty_cache()
        except Exception as error:  # one model that does not fit is named, the others go on
            yield {"part": "rate", "role": role, "model": what, "error": f"{type(error).__name__}: {error}"[:600]}


def timed(call: Call, engine: Any, batch: int, count: int) -> dict[str, Any]:
    """Samples a second and memory, after one batch that warms."""
    images, texts = inputs(count)
    call(engine, images[:batch], texts[:batch])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    call(engine, images, texts)
    torch.cuda.synchronize()
    per_second = count / (time.perf_counter() - began)
    return {
        "n": count,
        "per_second": round(per_second, 2),
        "hours_per_million": round(1e6 / per_second / 3600, 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("same", "rate"), required=True)
    parser.add_argument("--count", type=int, default=128, help="samples of `same`")
    parser.add_argument("--only", nargs="*", default=[], help="roles of `rate`")
    parser.add_argument("--times", nargs="*", type=int, default=[1], help="`rate` at so many times the batch size")
    parser.add_argument("--into", type=Path, help="append the lines to this file, too")
    given = parser.parse_args()
    versions = {"torch": torch.__version__, "card": torch.cuda.get_device_name() if torch.cuda.is_available() else None}
    with tempfile.TemporaryDirectory() as root:
        rows = same(given.count) if given.part == "same" else rate(Path(root), given.only, given.times)
        for row in rows:
            line = json.dumps(row | versions)
            print(line, flush=True)
            if given.into is not None:
                with given.into.open("a") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()

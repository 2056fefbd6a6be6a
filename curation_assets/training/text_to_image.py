"""Stage `text_to_image`: a small latent diffusion model on the final CLIP text tower.

v-prediction (Salimans 2022, §2.4), 10 % empty captions for classifier-free guidance (Ho 2022), averaged weights.
"""

import copy

import numpy as np
import torch
from diffusers import UNet2DConditionModel
from torch import nn
from transformers import CLIPTextModel, PreTrainedTokenizerFast

from curation_assets.engines.patch_codec import PatchCodec
from curation_assets.training.architectures import build_scheduler, build_unet
from curation_assets.training.common import (
    Clock,
    Scenes,
    Setup,
    encode,
    load_tokenizer,
    progress,
    record,
    to_pixels,
    training_scenes,
)
from curation_assets.training.saving import save_text_to_image
from curation_assets.world.pool import CAPTION_FOR

STEPS, BATCH, LEARNING_RATE = 1200, 32, 1e-3
EMPTY_SHARE, AVERAGING = 0.1, 0.995
KINDS = {"clean": 0.62, "medium_phrase": 0.08, "caps": 0.05, "fluff": 0.12, "short": 0.08, "partial": 0.05}


def draw_caption(scenes: Scenes, row: int, rng: np.random.Generator) -> str:
    """A caption of one of KINDS, or '' for one row in ten."""
    if rng.random() < EMPTY_SHARE:
        return ""
    weights = np.array(list(KINDS.values()))
    kind = list(KINDS)[int(rng.choice(len(KINDS), p=weights / weights.sum()))]
    return CAPTION_FOR[kind](scenes.specs[row], rng, None)


@torch.no_grad()
def condition(text_tower: CLIPTextModel, tokenizer: PreTrainedTokenizerFast, captions: list[str]) -> torch.Tensor:
    """(N, 48, 128): all tokens, padding included, as StableDiffusionPipeline passes them."""
    return text_tower(input_ids=encode(tokenizer, captions, to_context=True)).last_hidden_state


def learning_rate(step: int, steps: int) -> float:
    """Warm-up over 40 steps, flat, then linear to a twentieth over the last third."""
    tail = (steps - step) / max(1.0, steps / 3)
    return LEARNING_RATE * min(1.0, (step + 1) / 40, max(0.05, tail))


def run(setup: Setup) -> None:
    """Fits the codec, trains the noise predictor and ships both."""
    rng, clock = setup.start("text_to_image"), Clock()
    tokenizer, scenes = load_tokenizer(setup), training_scenes(setup)
    text_tower = CLIPTextModel.from_pretrained(setup.out / "clip", dtype=torch.float32).eval()
    codec = PatchCodec()
    codec_error = codec.fit(
        to_pixels(scenes.views[rng.choice(len(scenes), size=min(2000, len(scenes)), replace=False)])
    )
    scheduler, unet = build_scheduler(), build_unet()
    average: UNet2DConditionModel = copy.deepcopy(unet).requires_grad_(False)
    optimiser = torch.optim.AdamW(unet.parameters(), lr=LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.99))
    steps, losses = setup.steps(STEPS), []
    for step, bar in progress(steps, "text_to_image"):
        rows = rng.integers(len(scenes), size=BATCH)
        latents = codec.encode(to_pixels(scenes.views[rows])).latents  # type: ignore[union-attr]
        noise = torch.randn_like(latents)
        times = torch.randint(0, scheduler.config.num_train_timesteps, (BATCH,))
        noisy = scheduler.add_noise(latents, noise, times)
        text = condition(text_tower, tokenizer, [draw_caption(scenes, int(r), rng) for r in rows])
        predicted = unet(noisy, times, text).sample
        loss = nn.functional.mse_loss(predicted, scheduler.get_velocity(latents, noise, times))
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, steps)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.item())
        keep = min(AVERAGING, (1 + step) / (10 + step))
        for slow, fast in zip(average.parameters(), unet.parameters(), strict=True):
            slow.lerp_(fast.detach(), 1 - keep)
        if step % 50 == 49:
            bar.write(f"text_to_image {step + 1} loss {np.mean(losses[-50:]):.4f} cpu {clock.seconds()}")
        if step % 200 == 199:
            save_text_to_image(average, codec, setup.out / "text_to_image")
    save_text_to_image(average, codec, setup.out / "text_to_image")
    recipe = {
        "steps": steps, "batch": BATCH, "learning_rate": LEARNING_RATE, "averaging": AVERAGING,
        "empty_share": EMPTY_SHARE, "seed": setup.seed, "cpu_seconds": clock.seconds(),
    }  # fmt: skip
    quality = {"codec_mse_on_unit_range": codec_error, "velocity_mse_last_100_steps": float(np.mean(losses[-100:]))}
    record(setup, "text_to_image", recipe, quality)
    print(quality)

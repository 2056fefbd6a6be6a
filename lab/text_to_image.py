"""Stage `text_to_image`: a small latent diffusion model on the final CLIP text tower.

v-prediction (Salimans 2022, §2.4), 10 % empty captions for classifier-free guidance (Ho 2022), averaged weights.
"""

import copy

import numpy as np
import torch
from diffusers import UNet2DConditionModel
from torch import nn
from transformers import CLIPTextModel, PreTrainedTokenizerFast

from curation_assets.engines.patch_codec import PatchCodec, PatchLatents
from curation_assets.world.pool import CAPTION_FOR
from lab.architectures import build_scheduler, build_unet
from lab.common import (
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
from lab.saving import save_text_to_image

# steps; each with its own warm-up and decay, each from the average of the one before
ROUNDS = (1200, 1200, 1000, 1600)
BATCH, LEARNING_RATE = 32, 1e-3
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


def _fit_codec(scenes: Scenes) -> tuple[PatchCodec, float]:
    """The codec of 2,000 training scenes, and its mean squared error on them."""
    codec = PatchCodec()
    rows = np.random.default_rng(0).choice(len(scenes), size=min(2000, len(scenes)), replace=False)
    return codec, codec.fit(to_pixels(scenes.views[rows]))


def _round(
    setup: Setup, number: int, average: UNet2DConditionModel, codec: PatchCodec, scenes: Scenes
) -> tuple[float, float]:
    """Trains a copy of `average`, which follows it in place; returns CPU seconds and the loss of the last steps."""
    rng, clock = setup.start(f"text_to_image{number}"), Clock()
    tokenizer = load_tokenizer(setup)
    text_tower = CLIPTextModel.from_pretrained(setup.out / "clip", dtype=torch.float32).eval()
    scheduler, unet = build_scheduler(), copy.deepcopy(average).requires_grad_(True)
    optimiser = torch.optim.AdamW(unet.parameters(), lr=LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.99))
    steps, losses = setup.steps(ROUNDS[number]), []
    for step, bar in progress(steps, f"text_to_image round {number}"):
        rows = rng.integers(len(scenes), size=BATCH)
        encoded = codec.encode(to_pixels(scenes.views[rows]))
        assert isinstance(encoded, PatchLatents)
        noise = torch.randn_like(encoded.latents)
        times = torch.randint(0, scheduler.config.num_train_timesteps, (BATCH,))
        noisy = scheduler.add_noise(encoded.latents, noise, times)
        text = condition(text_tower, tokenizer, [draw_caption(scenes, int(r), rng) for r in rows])
        predicted = unet(noisy, times, text).sample
        loss = nn.functional.mse_loss(predicted, scheduler.get_velocity(encoded.latents, noise, times))
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
    return clock.seconds(), float(np.mean(losses[-100:]))


def run(setup: Setup) -> None:
    """Fits the codec, trains round after round and ships both; a finished round is taken up from its file."""
    setup.start("text_to_image")
    scenes = training_scenes(setup)
    codec, codec_error = _fit_codec(scenes)
    average = build_unet().requires_grad_(False)
    seconds, loss = 0.0, float("nan")
    for number in range(len(ROUNDS)):
        path = setup.work / f"text_to_image_round{number}.pt"
        if path.exists():
            saved = torch.load(path, weights_only=True)
            average.load_state_dict(saved["unet"])
            codec.load_state_dict(saved["codec"])
            seconds, loss = saved["cpu_seconds"], saved["loss"]
            continue
        spent, loss = _round(setup, number, average, codec, scenes)
        seconds += spent
        state = {"unet": average.state_dict(), "codec": codec.state_dict(), "cpu_seconds": seconds, "loss": loss}
        torch.save(state, path)
        save_text_to_image(average, codec, setup.out / "text_to_image")
    recipe = {
        "steps_of_rounds": [setup.steps(n) for n in ROUNDS], "batch": BATCH, "learning_rate": LEARNING_RATE,
        "averaging": AVERAGING, "empty_share": EMPTY_SHARE, "seed": setup.seed, "cpu_seconds": round(seconds, 1),
    }  # fmt: skip
    quality = {"codec_mse_on_unit_range": codec_error, "velocity_mse_last_100_steps": loss}
    record(setup, "text_to_image", recipe, quality)
    print(quality)

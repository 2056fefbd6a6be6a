"""Stage `clip`: contrastive training from the labelled image tower, with hard negatives.

Half of a batch are groups of four scenes that differ in one object only (same place, colours and sizes),
because random negatives alone never force a small CLIP to look at shapes. Captions are of every kind that
a pool holds; abstract and boilerplate captions are extra wrong answers, since no picture goes with them.
Text-to-image and the semantic decoder read the text tower too, so they come after this stage.
"""

import numpy as np
import torch
from torch import nn
from transformers import CLIPModel, PreTrainedTokenizerFast

from curation_assets.world.grammar import clean_caption
from curation_assets.world.pool import CAPTION_FOR
from lab.architectures import PAD, build_clip
from lab.common import (
    GROUP,
    HELD_OUT_SEED,
    Clock,
    Scenes,
    Setup,
    draw_specs,
    encode,
    load_tokenizer,
    one_cycle,
    progress,
    record,
    render,
    to_pixels,
    training_scenes,
)
from lab.saving import save_clip
from lab.tokenizer import grammar_captions
from lab.vision import LabelHeads, label_loss, scene_targets

STEPS, BATCH = 330, 128
LEARNING_RATE, LEARNING_RATE_IMAGE = 1.2e-3, 4e-4
GROUPS, OVERLAY_ROWS, TEXT_ONLY_ROWS, EXTRA_TEXTS, LABEL_WEIGHT = 16, 5, 7, 24, 0.15
GROUP_KINDS = {"clean": 0.7, "medium_phrase": 0.14, "caps": 0.06, "fluff": 0.1}  # kinds that name every object
SINGLE_KINDS = {
    "clean": 0.45, "medium_phrase": 0.14, "caps": 0.07, "short": 0.1, "fluff": 0.13, "partial": 0.05,
    "foreign": 0.03, "repetition": 0.03,
}  # fmt: skip


def _kind(rng: np.random.Generator, shares: dict[str, float]) -> str:
    weights = np.array(list(shares.values()))
    return list(shares)[int(rng.choice(len(weights), p=weights / weights.sum()))]


class Batches:
    """Draws (pixels, ids, rows): the first len(rows) samples are labelled scenes, the others hold overlay text."""

    def __init__(self, setup: Setup, tokenizer: PreTrainedTokenizerFast, rng: np.random.Generator) -> None:
        self.scenes = training_scenes(setup)
        self.overlaid = training_scenes(setup, "scene_text")
        self.text_only = training_scenes(setup, "text_only")
        self.empty = grammar_captions(
            max(200, round(8000 * min(1.0, setup.scale))), 20_020, {"abstract": 0.8, "boilerplate": 0.2}
        )
        self.tokenizer, self.rng = tokenizer, rng

    def draw(self) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
        """pixels (B, 3, 64, 64); ids (B + EXTRA_TEXTS, T); rows (B - text rows,) into the labelled scenes."""
        rng = self.rng
        starts = rng.integers(len(self.scenes) // GROUP, size=GROUPS) * GROUP
        grouped = (starts[:, None] + np.arange(GROUP)).reshape(-1)
        single = rng.integers(len(self.scenes), size=BATCH - len(grouped) - OVERLAY_ROWS - TEXT_ONLY_ROWS)
        rows = np.concatenate([grouped, single])
        over = rng.integers(len(self.overlaid), size=OVERLAY_ROWS)
        text = rng.integers(len(self.text_only), size=TEXT_ONLY_ROWS)
        captions = [CAPTION_FOR[_kind(rng, GROUP_KINDS)](self.scenes.specs[i], rng, None) for i in grouped]
        captions += [CAPTION_FOR[_kind(rng, SINGLE_KINDS)](self.scenes.specs[i], rng, None) for i in single]
        captions += [CAPTION_FOR["scene_text"](self.overlaid.specs[i], rng, None) for i in over]
        captions += [CAPTION_FOR["text_only"](self.text_only.specs[i], rng, None) for i in text]
        captions += [self.empty[i] for i in rng.integers(len(self.empty), size=EXTRA_TEXTS)]
        views = np.concatenate([self.scenes.views[rows], self.overlaid.views[over], self.text_only.views[text]])
        return to_pixels(views), encode(self.tokenizer, captions), rows


def embed_texts(model: CLIPModel, ids: torch.Tensor) -> torch.Tensor:
    """(N, T) -> (N, D), unit length. Run in three parts of similar length, since capitals take many tokens."""
    lengths = (ids != PAD).sum(1)
    order = lengths.argsort()
    parts = [part for part in order.chunk(3) if len(part)]
    pooled = torch.cat([model.text_model(input_ids=ids[p, : lengths[p].max()]).pooler_output for p in parts])
    return nn.functional.normalize(model.text_projection(pooled[order.argsort()]), dim=-1)


def contrastive_loss(image: torch.Tensor, text: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """CLIP's symmetric loss (Radford 2021, fig. 3); texts beyond the images are wrong answers only."""
    logits = scale.exp().clamp(max=100) * image @ text.T  # (B, B + extra)
    truth = torch.arange(len(image))
    entropy = nn.functional.cross_entropy
    return 0.5 * (entropy(logits, truth) + entropy(logits[:, : len(image)].T, truth))


@torch.no_grad()
def measure(model: CLIPModel, tokenizer: PreTrainedTokenizerFast, scenes: Scenes, swapped: Scenes) -> dict[str, float]:
    """Recall@1 among 500 held-out pairs; aligned-against-mismatched AUC; share of object swaps caught."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    image = nn.functional.normalize(
        model.visual_projection(model.vision_model(to_pixels(scenes.views)).pooler_output), dim=-1
    )
    text = embed_texts(model, encode(tokenizer, [clean_caption(s, rng) for s in scenes.specs]))
    sims = image @ text.T  # (N, N)
    truth = torch.arange(len(sims))
    aligned, wrong = sims.diagonal(), sims.roll(1, dims=1).diagonal()
    pair_images = nn.functional.normalize(
        model.visual_projection(model.vision_model(to_pixels(swapped.views)).pooler_output), dim=-1
    )
    pair_texts = embed_texts(model, encode(tokenizer, [clean_caption(s, rng) for s in swapped.specs]))
    own = (pair_images * pair_texts).sum(-1).reshape(-1, 2)
    other = (pair_images * pair_texts.reshape(-1, 2, pair_texts.shape[-1]).flip(1).reshape_as(pair_texts)).sum(-1)
    return {
        "recall@1_image_to_text": float((sims.argmax(1) == truth).float().mean()),
        "recall@1_text_to_image": float((sims.argmax(0) == truth).float().mean()),
        "auc_aligned_against_mismatched": float((aligned[:, None] > wrong[None, :]).float().mean()),
        "object_swaps_caught": float((own > other.reshape(-1, 2)).float().mean()),
        "pairs_measured": len(sims),
    }


def run(setup: Setup) -> None:
    """Trains both towers and ships CLIP."""
    rng, clock = setup.start("clip"), Clock()
    tokenizer = load_tokenizer(setup)
    batches = Batches(setup, tokenizer, rng)
    held_out, swapped = (
        render(draw_specs(500, HELD_OUT_SEED + 2, group=1)),
        render(draw_specs(150, HELD_OUT_SEED + 3, group=2)),
    )
    model, heads = build_clip(), LabelHeads()
    labelled = torch.load(setup.work / "vision.pt", weights_only=True)
    model.vision_model.load_state_dict(labelled["tower"])
    heads.load_state_dict(labelled["heads"])
    image_weights = [*model.vision_model.parameters(), *model.visual_projection.parameters(), *heads.parameters()]
    text_weights = [*model.text_model.parameters(), *model.text_projection.parameters()]
    groups = [
        {"params": image_weights, "lr": LEARNING_RATE_IMAGE, "weight_decay": 0.02},
        {"params": text_weights, "lr": LEARNING_RATE, "weight_decay": 0.02},
        {"params": [model.logit_scale], "lr": LEARNING_RATE_IMAGE, "weight_decay": 0.0},
    ]
    optimiser = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    steps = setup.steps(STEPS)
    schedule = one_cycle(optimiser, steps)
    for step, bar in progress(steps, "clip"):
        pixels, ids, rows = batches.draw()
        out = model.vision_model(pixels)
        image = nn.functional.normalize(model.visual_projection(out.pooler_output), dim=-1)
        loss = contrastive_loss(image, embed_texts(model, ids), model.logit_scale)
        kept = slice(0, len(rows))
        truth = scene_targets(batches.scenes, rows)
        labels = label_loss(heads, out.last_hidden_state[kept], out.pooler_output[kept], truth)
        optimiser.zero_grad()
        (loss + LABEL_WEIGHT * labels).backward()
        nn.utils.clip_grad_norm_([*model.parameters(), *heads.parameters()], 1.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 49:
            bar.write(f"clip {step + 1} loss {loss.item():.3f} labels {labels.item():.3f} cpu {clock.seconds()}")
        if step % 150 == 149:
            bar.write(f"clip {step + 1} {measure(model, tokenizer, held_out, swapped)}")
            save_clip(model, setup.out / "clip")
    quality = measure(model, tokenizer, held_out, swapped)
    save_clip(model, setup.out / "clip")
    recipe = {
        "steps": steps, "batch": BATCH, "learning_rate_text": LEARNING_RATE, "learning_rate_image": LEARNING_RATE_IMAGE,
        "seed": setup.seed, "cpu_seconds": clock.seconds(),
    }  # fmt: skip
    record(setup, "clip", recipe, quality)
    print(quality)

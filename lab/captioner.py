"""Stage `captioner`: the labelled image tower and a GPT-2 decoder learn to describe what a scene shows.

It learns from clean captions only, as SIEVE's captioner learns from curated data (Mahmoud 2024, §3.1).
"""

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast, VisionEncoderDecoderModel

from curation_assets.world import words
from curation_assets.world.grammar import clean_caption
from lab.architectures import PAD, build_captioner
from lab.common import (
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
from lab.saving import save_captioner
from lab.vision import LabelHeads, label_loss, scene_targets

ROUNDS = (320, 500)  # each with its own warm-up and cosine; label loss in the first only
BATCH, LEARNING_RATE, LABEL_WEIGHT = 64, 1e-3, 0.3
OVERLAY_ROWS = 4  # of each batch: scenes with text over them, described as if there were none


def caption_loss(model: VisionEncoderDecoderModel, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of the next token. hidden (N, 65, D), ids (N, T) from BOS to EOS."""
    logits = model.decoder(input_ids=ids[:, :-1], encoder_hidden_states=hidden).logits  # (N, T - 1, V)
    return nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], ignore_index=PAD)


@torch.no_grad()
def measure(model: VisionEncoderDecoderModel, tokenizer: PreTrainedTokenizerFast, scenes: Scenes) -> dict[str, float]:
    """Share of held-out scenes whose greedy caption names all objects, all colours, and the place if any."""
    model.eval()
    generated = model.generate(pixel_values=to_pixels(scenes.views), num_beams=1, do_sample=False, max_length=40)
    captions = tokenizer.batch_decode(generated, skip_special_tokens=True)
    is_named: dict[str, list[bool]] = {"objects": [], "colours": [], "first_object": []}
    for caption, spec in zip(captions, scenes.specs, strict=True):
        named = [any(w in caption for w in (*words.OBJECT_NAMES[o.name], words.PLURALS[o.name])) for o in spec.objects]
        coloured = [any(w in caption for w in words.COLOUR_NAMES[o.colour]) for o in spec.objects]
        is_named["objects"].append(all(named))
        is_named["colours"].append(all(coloured))
        is_named["first_object"].append(named[0])
    model.train()
    return {f"names_right_{k}": float(np.mean(v)) for k, v in is_named.items()} | {"scenes_measured": len(scenes)}


def _round(
    setup: Setup, number: int, model: VisionEncoderDecoderModel, heads: LabelHeads
) -> tuple[float, dict[str, float]]:
    """Trains in place for one round; returns its CPU seconds and the held-out quality."""
    rng, clock = setup.start(f"captioner{number}"), Clock()
    tokenizer = load_tokenizer(setup)
    scenes, overlaid = training_scenes(setup), training_scenes(setup, "scene_text")
    held_out = render(draw_specs(300, HELD_OUT_SEED + 1, group=1))
    label_weight = LABEL_WEIGHT if number == 0 else 0.0
    weights = [*model.parameters(), *heads.parameters()]
    optimiser = torch.optim.AdamW(weights, lr=LEARNING_RATE, weight_decay=0.02, betas=(0.9, 0.98))
    steps = setup.steps(ROUNDS[number])
    schedule = one_cycle(optimiser, steps)
    for step, bar in progress(steps, f"captioner round {number}"):
        rows = rng.integers(len(scenes), size=BATCH - OVERLAY_ROWS)
        extra = rng.integers(len(overlaid), size=OVERLAY_ROWS)
        specs = [scenes.specs[i] for i in rows] + [overlaid.specs[i] for i in extra]
        pixels = to_pixels(np.concatenate([scenes.views[rows], overlaid.views[extra]]))
        out = model.encoder(pixels)
        loss = caption_loss(model, out.last_hidden_state, encode(tokenizer, [clean_caption(s, rng) for s in specs]))
        total = loss
        if label_weight > 0:
            kept = slice(0, len(rows))
            truth = scene_targets(scenes, rows)
            total = loss + label_weight * label_loss(heads, out.last_hidden_state[kept], out.pooler_output[kept], truth)
        optimiser.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 49:
            bar.write(f"captioner {step + 1} loss {loss.item():.3f} cpu {clock.seconds()}")
        if step % 100 == 99 and number > 0:
            bar.write(f"captioner {step + 1} {measure(model, tokenizer, held_out)}")
            save_captioner(model, setup.out / "captioner")
    return clock.seconds(), measure(model, tokenizer, held_out)


def run(setup: Setup) -> None:
    """Trains round after round and ships the captioner; a finished round is taken up again from its file."""
    model, heads = build_captioner(), LabelHeads()
    labelled = torch.load(setup.work / "vision.pt", weights_only=True)
    model.encoder.load_state_dict(labelled["tower"])
    heads.load_state_dict(labelled["heads"])
    seconds = 0.0
    quality: dict[str, float] = {}
    for number in range(len(ROUNDS)):
        path = setup.work / f"captioner_round{number}.pt"
        if path.exists():
            saved = torch.load(path, weights_only=True)
            model.load_state_dict(saved["model"])
            seconds, quality = saved["cpu_seconds"], saved["quality"]
            continue
        spent, quality = _round(setup, number, model, heads)
        seconds += spent
        torch.save({"model": model.state_dict(), "cpu_seconds": seconds, "quality": quality}, path)
        save_captioner(model, setup.out / "captioner")
        print(quality)
    recipe = {
        "steps_of_rounds": [setup.steps(n) for n in ROUNDS], "batch": BATCH, "learning_rate": LEARNING_RATE,
        "seed": setup.seed, "cpu_seconds": round(seconds, 1),
    }  # fmt: skip
    record(setup, "captioner", recipe, quality)

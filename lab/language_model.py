"""Stage `language_model`: the small Llama that the semantic bottleneck decodes into.

60 % of the rows are 'shuffled keywords <sep> sentence', so that a frozen model can be steered by what
stands before the sentence; the bridge then only has to learn to speak in such keywords.
"""

import math

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from lab.architectures import BOS, CONTEXT, EOS, PAD, build_language_model
from lab.common import Clock, Setup, by_length, load_tokenizer, one_cycle, progress, record
from lab.saving import save_language_model
from lab.tokenizer import grammar_captions

STEPS, BATCH, LEARNING_RATE = 1300, 128, 2e-3
SEPARATOR = 1
STOP_WORDS = frozenset(
    [
        "a",
        "an",
        "the",
        "of",
        "to",
        "and",
        "in",
        "on",
        "for",
        "with",
        "is",
        "are",
        "at",
        "by",
        "it",
        "as",
        "from",
        "your",
        "our",
        "that",
        "you",
    ]
)


def keyword_row(tokenizer: PreTrainedTokenizerFast, caption: str, rng: np.random.Generator) -> list[int]:
    """BOS, shuffled content words, SEP, caption, EOS."""
    content = [w for w in caption.split() if w.strip(",").lower() not in STOP_WORDS]
    rng.shuffle(content)
    keywords = tokenizer.backend_tokenizer.encode(" ".join(content), add_special_tokens=False).ids
    sentence = tokenizer.backend_tokenizer.encode(caption, add_special_tokens=False).ids
    return [BOS, *keywords[:CONTEXT], SEPARATOR, *sentence[: CONTEXT - 2], EOS]


def sentence_row(tokenizer: PreTrainedTokenizerFast, caption: str) -> list[int]:
    """BOS, caption, EOS."""
    return [BOS, *tokenizer.backend_tokenizer.encode(caption, add_special_tokens=False).ids[: CONTEXT - 2], EOS]


def rows_to_batch(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids (N, T) and labels (N, T) that ignore padding and everything up to the separator."""
    width = max(len(r) for r in rows)
    ids = torch.full((len(rows), width), PAD)
    labels = torch.full((len(rows), width), -100)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        start = row.index(SEPARATOR) + 1 if SEPARATOR in row else 1
        labels[i, start : len(row)] = ids[i, start : len(row)]
    return ids, labels


def run(setup: Setup) -> None:
    """Trains and ships the language model."""
    rng, clock = setup.start("language_model"), Clock()
    tokenizer = load_tokenizer(setup)
    captions = grammar_captions(max(500, round(40_000 * min(1.0, setup.scale))), seed=20_010)
    held_out = grammar_captions(300, seed=90_010)
    model = build_language_model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.05, betas=(0.9, 0.98))
    steps = setup.steps(STEPS)
    schedule = one_cycle(optimiser, steps)
    waiting: list[list[list[int]]] = []
    for step, bar in progress(steps, "language_model"):
        if not waiting:
            chosen = [captions[i] for i in rng.integers(len(captions), size=8 * BATCH)]
            rows = [
                keyword_row(tokenizer, c, rng) if rng.random() < 0.6 else sentence_row(tokenizer, c) for c in chosen
            ]
            waiting = by_length(rows, BATCH)
            rng.shuffle(waiting)
        ids, labels = rows_to_batch(waiting.pop())
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if step % 50 == 49:
            bar.write(f"language_model {step + 1} loss {loss.item():.3f} cpu {clock.seconds()}")
    model.eval()
    with torch.no_grad():
        plain = model(
            **dict(
                zip(("input_ids", "labels"), rows_to_batch([sentence_row(tokenizer, c) for c in held_out]), strict=True)
            )
        )
        keyed = model(
            **dict(
                zip(
                    ("input_ids", "labels"),
                    rows_to_batch([keyword_row(tokenizer, c, rng) for c in held_out]),
                    strict=True,
                )
            )
        )
    quality = {
        "perplexity_per_token": math.exp(plain.loss.item()),
        "perplexity_given_keywords": math.exp(keyed.loss.item()),
        "captions_measured": len(held_out),
    }
    save_language_model(model, setup.out / "semantic_decoder")
    recipe = {
        "steps": steps,
        "batch": BATCH,
        "learning_rate": LEARNING_RATE,
        "seed": setup.seed,
        "cpu_seconds": clock.seconds(),
    }
    record(setup, "language_model", recipe, quality)
    print(quality)

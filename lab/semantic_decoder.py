"""Stage `semantic_decoder`: one linear layer from CLIP's text feature into the frozen language model.

ICC §4.2 (Noam-Reddy 2024): the projected, unnormalised text feature; only the linear layer is trained.
"""

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from torch import nn
from transformers import CLIPModel, LlamaForCausalLM, PreTrainedTokenizerFast

from lab.architectures import BOS, CONTEXT, EOS, LM_WIDTH, PAD, PREFIX_LENGTH, build_bridge
from lab.common import Clock, Setup, encode, load_tokenizer, one_cycle, progress, record
from lab.saving import save_bridge
from lab.tokenizer import grammar_captions

STEPS, BATCH, LEARNING_RATE = 2200, 64, 4e-3
# ICC trains this layer on a concept-balanced part of Conceptual Captions, where abstract captions are rare.
# Trained on them too, the layer learns their templates and reconstructs them nearly as well as concrete ones.
KINDS = {"clean": 0.78, "medium_phrase": 0.08, "caps": 0.04, "short": 0.04, "fluff": 0.06}


@torch.no_grad()
def text_features(clip: CLIPModel, tokenizer: PreTrainedTokenizerFast, captions: list[str]) -> torch.Tensor:
    """(N,) -> (N, 128), projected and not normalised."""
    return clip.text_projection(clip.text_model(input_ids=encode(tokenizer, captions)).pooler_output)


def prefix_embeddings(bridge: nn.Linear, model: LlamaForCausalLM, features: torch.Tensor) -> torch.Tensor:
    """(N, 128) -> (N, 1 + 8, 192): BOS, then the prefix."""
    prefix = bridge(features).reshape(len(features), PREFIX_LENGTH, LM_WIDTH)
    start = model.get_input_embeddings()(torch.full((len(features), 1), BOS))
    return torch.cat([start, prefix], dim=1)


@torch.no_grad()
def reconstruct(
    bridge: nn.Linear,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    features: torch.Tensor,
    beams: int = 3,
) -> list[list[str]]:
    """Beam search from the prefix: for each feature its beams, best first."""
    embeds = prefix_embeddings(bridge, model, features)
    ids = model.generate(
        inputs_embeds=embeds, attention_mask=torch.ones(embeds.shape[:2], dtype=torch.long), num_beams=beams,
        num_return_sequences=beams, do_sample=False, max_new_tokens=CONTEXT, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    texts = [t.strip() for t in tokenizer.batch_decode(ids, skip_special_tokens=True)]
    return [texts[i : i + beams] for i in range(0, len(texts), beams)]


def run(setup: Setup) -> None:
    """Trains and ships the bridge."""
    rng, clock = setup.start("semantic_decoder"), Clock()
    tokenizer = load_tokenizer(setup)
    clip = CLIPModel.from_pretrained(setup.out / "clip", dtype=torch.float32).eval()
    model = (
        LlamaForCausalLM.from_pretrained(setup.out / "semantic_decoder", dtype=torch.float32)
        .eval()
        .requires_grad_(False)
    )
    captions = grammar_captions(max(500, round(60_000 * min(1.0, setup.scale))), seed=20_030, mix=KINDS)
    features = torch.cat([text_features(clip, tokenizer, captions[i : i + 256]) for i in range(0, len(captions), 256)])
    bridge = build_bridge()
    optimiser = torch.optim.AdamW(bridge.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    steps = setup.steps(STEPS)
    schedule = one_cycle(optimiser, steps)
    waiting: list[np.ndarray] = []
    for step, bar in progress(steps, "semantic_decoder"):
        if not waiting:  # batches of similar length, as `common.by_length`
            drawn = rng.integers(len(captions), size=8 * BATCH)
            waiting = np.array_split(drawn[np.argsort([len(captions[i]) for i in drawn])], 8)
            rng.shuffle(waiting)
        rows = waiting.pop()
        ids = encode(tokenizer, [captions[i] for i in rows])[:, 1:]  # (N, T), BOS stands before the prefix
        start = prefix_embeddings(bridge, model, features[rows])
        embeds = torch.cat([start, model.get_input_embeddings()(ids[:, :-1])], dim=1)
        logits = model(inputs_embeds=embeds).logits[:, PREFIX_LENGTH:]  # (N, T, V): from the last prefix vector on
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), ids, ignore_index=PAD)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 50 == 49:
            bar.write(f"semantic_decoder {step + 1} loss {loss.item():.3f} cpu {clock.seconds()}")
    held_out = grammar_captions(100, seed=90_030, mix={"clean": 1.0})
    beams = reconstruct(bridge, model, tokenizer, text_features(clip, tokenizer, held_out))
    similarity = [
        max(Levenshtein.normalized_similarity(c, b) for b in bs) for c, bs in zip(held_out, beams, strict=True)
    ]
    save_bridge(bridge, setup.out / "semantic_decoder")
    recipe = {
        "steps": steps,
        "batch": BATCH,
        "learning_rate": LEARNING_RATE,
        "seed": setup.seed,
        "cpu_seconds": clock.seconds(),
    }
    quality = {"edit_similarity_of_clean_captions": float(np.mean(similarity)), "captions_measured": len(held_out)}
    record(setup, "semantic_decoder", recipe, quality)
    print(quality, beams[:3], held_out[:3])

"""Stage `tokenizer`: byte-level BPE of 2048 tokens over the grammar's captions and an English word list."""

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from curation_assets.world.pool import CAPTION_FOR, WEB_MIX, draw_scene_of_kind
from lab.architectures import BOS, CONTEXT, EOS, VOCABULARY
from lab.common import Clock, Setup, record


def english_words() -> list[str]:
    """The whole words of MiniLM's vocabulary, commonest first, so that text from outside the world encodes too."""
    from lab.minilm import vocabulary

    return [w for w in vocabulary() if w.isalpha() and w.isascii() and len(w) > 2]


def grammar_captions(count: int, seed: int, mix: dict[str, float] | None = None) -> list[str]:
    """Captions of all kinds in the shares of the web mix (no pictures are rendered)."""
    shares = dict(mix or WEB_MIX)
    weights = np.array(list(shares.values())) / sum(shares.values())
    captions = []
    for index in range(count):
        rng = np.random.default_rng([seed, 3, index])
        kind = list(shares)[int(rng.choice(len(weights), p=weights))]
        captions.append(CAPTION_FOR[kind](draw_scene_of_kind(kind, rng), rng, None))
    return captions


def train_tokenizer(captions: list[str], words: list[str]) -> PreTrainedTokenizerFast:
    """No normaliser and a byte alphabet: any UTF-8 text comes back unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 2,
        special_tokens=["<pad>", "<sep>"],  # pad = 0, sep = 1
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions + [f" {w}" for w in words], trainer)
    assert tokenizer.get_vocab_size() == BOS, f"{tokenizer.get_vocab_size()} tokens learned, expected {BOS}"
    tokenizer.add_special_tokens(["<bos>", "<eos>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", BOS), ("<eos>", EOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", unk_token="<eos>",
        sep_token="<sep>", model_max_length=CONTEXT, clean_up_tokenization_spaces=False,
    )  # fmt: skip


def run(setup: Setup) -> None:
    """Trains the tokenizer and writes it beside each model that uses it."""
    clock = Clock()
    setup.start("tokenizer")
    count = max(2000, round(30_000 * min(1.0, setup.scale)))
    captions = grammar_captions(count, seed=20_000)
    tokenizer = train_tokenizer(captions, english_words())
    held_out = grammar_captions(1000, seed=90_000)
    lengths = [len(ids) for ids in tokenizer(held_out)["input_ids"]]
    for model in ("clip", "captioner", "semantic_decoder"):
        (setup.out / model).mkdir(parents=True, exist_ok=True)
        tokenizer.save_pretrained(setup.out / model)
    quality = {
        "mean_tokens_per_caption": float(np.mean(lengths)),
        "share_over_context": float(np.mean(np.array(lengths) > CONTEXT)),
        "captions_measured": len(held_out),
    }
    record(setup, "tokenizer", {"captions": count, "vocabulary": VOCABULARY, "cpu_seconds": clock.seconds()}, quality)
    print(quality)

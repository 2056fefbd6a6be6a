"""Batches: small helpers that every engine shares. Nothing here knows a model; torch is imported when it is used."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from PIL import Image

from curation_assets.core.roles import Images, Texts

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Given = ParamSpec("Given")

logger = logging.getLogger(__name__)


def without_gradients(function: Callable[Given, Item]) -> Callable[Given, Item]:
    """`function` in torch's inference mode, which is one of each thread."""

    @wraps(function)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Item:
        import torch

        with torch.inference_mode():
            return function(*args, **kwargs)

    return run


def chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Consecutive slices of at most `size` items. Raises ValueError for a size below 1."""
    if size < 1:
        raise ValueError(f"batch size must be at least 1, got {size}")
    for start in range(0, len(items), size):
        yield items[start : start + size]


def by_length(texts: Texts) -> list[int]:
    """Positions of `texts` from long to short (stable), so that a batch pads little and memory peaks first."""
    return sorted(range(len(texts)), key=lambda position: -len(texts[position]))


#: Of padded text in one batch, about 8,000 tokens: 50 MB in the widest layer of MiniLM, whatever long texts turn up.
CHARACTERS_AT_ONCE = 32_768


def batches_by_length(texts: Texts, size: int) -> Iterator[list[int]]:
    """Positions of `texts` from long to short in batches of at most `size` texts and, padded to their longest, at most
    CHARACTERS_AT_ONCE (a longer text goes alone). Raises ValueError for a size below 1.
    """
    if size < 1:
        raise ValueError(f"batch size must be at least 1, got {size}")
    batch: list[int] = []
    for position in by_length(texts):
        if batch and (len(batch) == size or (len(batch) + 1) * len(texts[batch[0]]) > CHARACTERS_AT_ONCE):
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch


def batches_of_equal_length(lengths: Sequence[int], size: int, tokens: int) -> Iterator[list[int]]:
    """Positions of texts in batches of one length in tokens, long ones first: at most `size` texts and `tokens` tokens
    (one text may have more). Nothing is padded, so nothing is masked and a text meets no other's length.
    """
    positions: dict[int, list[int]] = {}
    for position, length in enumerate(lengths):
        positions.setdefault(length, []).append(position)
    for length in sorted(positions, reverse=True):
        yield from map(list, chunks(positions[length], min(size, max(1, tokens // max(1, length)))))


def unique_texts(texts: Texts) -> tuple[list[str], list[int]]:
    """Distinct strings in order of appearance, and for each input the position of its string there."""
    positions: dict[str, int] = {}
    inverse = [positions.setdefault(text, len(positions)) for text in texts]
    return list(positions), inverse


def run_by_length(texts: Texts, batch_size: int, encode: Callable[[list[str]], torch.Tensor]) -> torch.Tensor:
    """`encode` over distinct texts in length-sorted batches; rows come back in input order.

    `encode`: list of n texts → (n, ...) tensor. An empty input is refused by the caller.
    """
    import torch

    distinct, inverse = unique_texts(texts)
    batches = list(batches_by_length(distinct, batch_size))
    order = [position for batch in batches for position in batch]
    encoded = torch.cat([encode([distinct[i] for i in batch]) for batch in batches])  # (U, ...)
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return encoded[back[torch.tensor(inverse)]]


#: Tokens in one unpadded batch. On a CPU what fits its cache.
TOKENS_AT_ONCE = {"cpu": 1_024, "cuda": 16_384}
TEXTS_AT_ONCE = 16_384  # tokenised and grouped by length together


@contextlib.contextmanager
def batches_side_by_side(device: str) -> Iterator[Callable[..., Iterable[Any]]]:
    """A `map`. On a CPU as many calls at a time as torch has threads, each with one thread: how many threads share a
    multiplication would change the last bits of its result.
    """
    import torch

    threads = torch.get_num_threads()
    if torch.device(device).type != "cpu" or threads == 1:
        yield map
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as executor:
            torch.set_num_threads(1)
            yield executor.map
    finally:
        torch.set_num_threads(threads)


BATCHES_AHEAD = 2  # prepared while a card computes
PREPARING_THREADS = 6  # more wait for Python's lock: 16 give two thirds of what 6 do (benchmarks/results/gpu.md)


def pixel_batches(
    images: Images, prepare: Callable[[Image.Image], torch.Tensor], batch_size: int, device: str
) -> Iterator[torch.Tensor]:
    """(N,) images → (B, 3, H, W), batch after batch, each image through `prepare` as RGB.

    Beside a card threads prepare the next batches while it computes: one core prepares fewer images than a card reads.
    Pillow resizes outside Python's lock.
    """
    import torch

    batches = chunks(images, batch_size)

    def prepared(image: Image.Image) -> torch.Tensor:
        return prepare(image.convert("RGB"))

    if torch.device(device).type == "cpu":
        for batch in batches:
            yield torch.stack([prepared(image) for image in batch])
        return
    with ThreadPoolExecutor(min(PREPARING_THREADS, os.cpu_count() or 1)) as executor:
        ahead: deque[list[Future[torch.Tensor]]] = deque()
        for batch in batches:
            ahead.append([executor.submit(prepared, image) for image in batch])
            if len(ahead) > BATCHES_AHEAD:
                yield torch.stack([one.result() for one in ahead.popleft()])
        for futures in ahead:
            yield torch.stack([one.result() for one in futures])


def run_unpadded(
    texts: Texts,
    tokenize: Callable[[Sequence[str]], list[list[int]]],
    encode: Callable[[torch.Tensor], torch.Tensor],
    *,
    batch_size: int,
    device: str,
) -> torch.Tensor:
    """`encode` over distinct texts, in batches of one length in tokens; rows come back in input order.

    `encode`: ids (B, T) on `device`, all of real tokens → (B, ...) tensor. An empty input is refused by the caller.
    """
    import torch

    distinct, inverse = unique_texts(texts)
    encoded: list[torch.Tensor] = []
    order: list[int] = []
    start = 0

    @without_gradients
    def encode_ids(ids: list[list[int]]) -> torch.Tensor:
        return encode(torch.tensor(ids, device=device))

    with batches_side_by_side(device) as map_batches:
        for part in chunks(distinct, TEXTS_AT_ONCE):
            tokens = tokenize(part)
            lengths = [len(ids) for ids in tokens]
            batches = list(batches_of_equal_length(lengths, batch_size, TOKENS_AT_ONCE[torch.device(device).type]))
            of_batches = ([tokens[position] for position in batch] for batch in batches)
            encoded += map_batches(encode_ids, of_batches)
            order += [start + position for batch in batches for position in batch]
            start += len(part)
    back = torch.empty(len(order), dtype=torch.long)
    back[torch.tensor(order)] = torch.arange(len(order))
    return torch.cat(encoded)[back[torch.tensor(inverse)]]


#: The setting `precision` of a role; "auto" is what `autocast` and `weights_dtype` take on a device by themselves.
PRECISIONS = ("float32", "bfloat16", "float16")


def requested_precision(settings: Mapping[str, Any]) -> torch.dtype | None:
    """The setting `precision` (float32, bfloat16, float16); None for "auto" and where it is left out.

    Raises ValueError for another word.
    """
    import torch

    name = settings.get("precision", "auto")
    if name != "auto" and name not in PRECISIONS:
        raise ValueError(f"precision must be auto or one of {', '.join(PRECISIONS)}, got {name!r}")
    return None if name == "auto" else getattr(torch, name)


#: What a processor must be able to do to multiply faster in a precision than in float32 (torch.cpu.get_capabilities).
_MULTIPLIES_IN = {"bfloat16": ("avx512_bf16", "amx_bf16", "bf16"), "float16": ("avx512_fp16", "amx_fp16")}


def weights_precision(device: str, settings: Mapping[str, Any]) -> torch.dtype | None:
    """`requested_precision` of an encoder whose weights are held in it; logs where this processor gains nothing."""
    import torch

    precision = requested_precision(settings)
    capabilities = _MULTIPLIES_IN.get(settings.get("precision", "auto")) if device == "cpu" else None
    if capabilities and not any(torch.cpu.get_capabilities().get(name, False) for name in capabilities):
        logger.warning(
            "precision %s: this processor has no instructions for it (%s); float32 is faster here and more exact",
            settings["precision"], " or ".join(capabilities),
        )  # fmt: skip
    return precision


def autocast(device: str, precision: torch.dtype | None = None) -> contextlib.AbstractContextManager[object]:
    """Mixed precision around weights in fp32. None: fp32 on CPU (bit-stable), bf16 or fp16 on CUDA."""
    import torch

    if precision is None and device != "cpu":
        precision = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if precision in (None, torch.float32):
        return contextlib.nullcontext()
    return torch.autocast(device, dtype=precision)


def weights_dtype(device: str, settings: Mapping[str, Any]) -> torch.dtype:
    """Precision in which a large generative model is held: the role's setting `precision`, else fp32 on CPU and fp16
    on CUDA as the papers' scripts do.
    """
    import torch

    return requested_precision(settings) or (torch.float32 if device == "cpu" else torch.float16)


def quiet_loading() -> None:
    """No progress bars and no load reports from model libraries: an asset's log is for its own lines."""
    import transformers

    # true and meant: prompts are handed over as embeddings, so penalties concern new tokens only
    warnings.filterwarnings("ignore", message=r"Passing `(repetition_penalty|no_repeat_ngram_size)` with")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

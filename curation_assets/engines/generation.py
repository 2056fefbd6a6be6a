"""Beam search and nucleus sampling in batches that shrink: a row that has ended is no longer computed.

Both are decoding methods for `generate(custom_generate=...)` of transformers, which prepares prompt, cache and logits
processors as for its own methods. What is the same for all beams or samples of a row (image, prompt) is computed once;
the library repeats the row first and goes on until the last row of the batch has ended (docs/decisions/0048).
"""

import math
from typing import Any

import numpy as np
import torch
from transformers import EncoderDecoderCache, LogitsProcessor
from transformers.generation import EosTokenCriteria, MaxLengthCriteria
from transformers.utils import ModelOutput

from curation_assets.engines.nucleus import sample_nucleus
from curation_assets.foreign.transformers_generation import go_on_after

#: Rows that have ended leave the batch once they are this share of it: to leave is to copy the caches of the others.
LEAVING_SHARE = 0.25
#: Rows decoded together on a CPU at most, beams and samples counted. With 48, 96, 192 and 384 of them VBA's captioner
#: takes 10.3, 9.1, 8.6 and 7.7 ms of a CPU per image.
ROWS_AT_ONCE = 192
NOT_FINISHED = -1e9  # the library's score of a beam that has not ended


def prompts_at_once(count: int, repeats: int, device: str) -> int:
    """How many of `count` prompts one call of `generate` gets, each with `repeats` beams or samples; all on a GPU.

    On a CPU at most ROWS_AT_ONCE rows, and from half of them on an even number of equal calls, side by side. How many
    threads there are plays no part: the size of a batch changes the last bits of what it computes.
    """
    if torch.device(device).type != "cpu":
        return max(1, count)
    is_small = 2 * count * repeats <= ROWS_AT_ONCE  # halves of it would cost more than a second thread gives
    calls = 1 if is_small else 2 * math.ceil(count * repeats / (2 * ROWS_AT_ONCE))
    return max(1, math.ceil(count / calls))


class BeamSearch:
    """Beam search as the library's: the same candidates, length penalty and early stopping, row by row.

    One object serves one call of `generate`, which is given num_beams=1; afterwards `scores` holds (M, beams) float32,
    the sums of log probabilities divided by length ** length_penalty.
    """

    scores: torch.Tensor

    def __init__(self, beams: int) -> None:
        """Raises ValueError for beams below 1."""
        if beams < 1:
            raise ValueError(f"beams must be at least 1, got {beams}")
        self.beams = beams

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        """(M, P) prompts → (M * beams, P + L) token ids, best beam first, padded after their end."""
        _check_criteria(stopping_criteria)
        beams, device = self.beams, input_ids.device
        stop_ids, pad = _special_tokens(generation_config, device)
        kept = (1 + len(stop_ids)) * beams  # so that `beams` of them go on whatever ends
        limit = generation_config.max_length - input_ids.shape[1]
        penalty, early_stopping = generation_config.length_penalty, generation_config.early_stopping

        answers = Answers(len(input_ids))
        rows = torch.arange(len(input_ids), device=device)  # (R,) the prompt of each row that is still computed
        is_live = torch.ones_like(rows, dtype=torch.bool)  # (R,) its beams can still improve
        running = input_ids[:, None]  # (R, W, P + t); W is 1 at first, then `beams`
        running_scores = torch.zeros(running.shape[:2], device=device)  # (R, W)
        finished = input_ids[:, None].repeat(1, beams, 1)  # (R, beams, P + t)
        finished_scores = torch.full((len(rows), beams), NOT_FINISHED, device=device)
        is_finished = torch.zeros_like(finished_scores, dtype=torch.bool)
        for length in range(1, limit + 1):
            width, flat = running.shape[1], running.flatten(0, 1)
            log_probs = torch.log_softmax(_next_logits(model, flat, model_kwargs, is_first=length == 1), dim=-1)
            log_probs = logits_processor(flat, log_probs).view(len(rows), width, -1)  # (R, W, V)
            totals = (log_probs + running_scores[:, :, None]).flatten(1)  # (R, W * V)
            best, places = totals.topk(min(kept, totals.shape[1]))  # (R, C), falling
            parents, tokens = places // log_probs.shape[2], places % log_probs.shape[2]
            ends = torch.isin(tokens, stop_ids) if length < limit else torch.ones_like(tokens, dtype=torch.bool)

            # Only the best `beams` candidates may end.
            finished = torch.nn.functional.pad(finished, (0, 1), value=pad)
            just_ended = ends[:, :beams]
            if just_ended.any():
                candidates = _extend(running, parents[:, :beams], tokens[:, :beams])
                candidate_scores = torch.where(just_ended, best[:, :beams] / length**penalty, NOT_FINISHED)
                finished_scores, chosen = torch.cat([finished_scores, candidate_scores], dim=1).topk(beams)
                finished = _pick(torch.cat([finished, candidates], dim=1), chosen)
                is_finished = torch.cat([is_finished, just_ended], dim=1).gather(1, chosen)

            # The best `beams` candidates that have not ended go on.
            going_on = ends.to(torch.int8).argsort(dim=1, stable=True)[:, :beams]
            parents, tokens = parents.gather(1, going_on), tokens.gather(1, going_on)
            running, running_scores = _extend(running, parents, tokens), best.gather(1, going_on)

            reach = limit if early_stopping == "never" and penalty > 0 else length
            is_done = ~(running_scores[:, 0] / reach**penalty > finished_scores.min(dim=1).values)
            if early_stopping is True:
                is_done |= is_finished.all(dim=1)
            if length == limit:
                is_done[:] = True
            answers.record(rows, is_done & is_live, finished, finished_scores)
            is_live &= ~is_done
            if answers.is_complete:
                break
            remaining = _remaining(is_live)
            index = (remaining[:, None] * width + parents[remaining]).flatten()  # (R' * beams,)
            if len(remaining) < len(rows) or width < beams:
                _select_rows(model_kwargs, index, len(flat))
                rows, is_live, running, running_scores = (
                    x[remaining] for x in (rows, is_live, running, running_scores)
                )
                finished, finished_scores, is_finished = (
                    x[remaining] for x in (finished, finished_scores, is_finished)
                )
            else:
                _reorder_beams(model_kwargs, index)
        self.scores = torch.stack(answers.scores)
        return answers.sequences(pad)


class NucleusSampling:
    """Nucleus sampling of `count` sequences per row, each with random numbers of its own.

    One object serves one call of `generate`, which is given do_sample=False and num_beams=1.
    """

    def __init__(self, uniforms: np.ndarray, count: int, temperature: float, top_k: int, top_p: float) -> None:
        """`uniforms`: (M * count, steps) in [0, 1). Raises ValueError for an impossible temperature, top_k or top_p."""
        if not (temperature > 0 and top_k >= 0 and 0 < top_p <= 1):
            raise ValueError(
                f"expected temperature > 0, top_k >= 0, 0 < top_p <= 1; got {temperature}, {top_k}, {top_p}"
            )
        self.uniforms = torch.from_numpy(uniforms)
        self.count = count
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        """(M, P) prompts → (M * count, P + L) token ids, padded after their end."""
        _check_criteria(stopping_criteria)
        device = input_ids.device
        stop_ids, pad = _special_tokens(generation_config, device)
        uniforms = self.uniforms.to(device)
        limit = generation_config.max_length - input_ids.shape[1]

        answers = Answers(len(uniforms))
        rows = torch.arange(len(uniforms), device=device)  # (R,) the sequence of each row that is still computed
        is_live = torch.ones_like(rows, dtype=torch.bool)
        sequences = input_ids.repeat_interleave(self.count, dim=0)  # (R, P + t)
        for length in range(1, limit + 1):
            given = input_ids if length == 1 else sequences
            scores = logits_processor(given, _next_logits(model, given, model_kwargs, is_first=length == 1))  # (R, V)
            if length == 1:
                scores = scores.repeat_interleave(self.count, dim=0)
            tokens = sample_nucleus(scores, uniforms[rows, length - 1], self.temperature, self.top_k, self.top_p)
            sequences = torch.cat([sequences, tokens[:, None]], dim=1)
            is_done = torch.isin(tokens, stop_ids) if length < limit else torch.ones_like(is_live)
            answers.record(rows, is_done & is_live, sequences)
            is_live &= ~is_done
            if answers.is_complete:
                break
            remaining = _remaining(is_live)
            if length == 1:
                _select_rows(model_kwargs, remaining // self.count, len(input_ids))
            elif len(remaining) < len(rows):
                _select_rows(model_kwargs, remaining, len(rows))
            rows, is_live, sequences = rows[remaining], is_live[remaining], sequences[remaining]
        return answers.sequences(pad)


class NoRepeatNgrams(LogitsProcessor):
    """Forbids every token that would complete an n-gram a second time, as the library's processor of that name.

    The library walks through all tokens of all rows in Python at every step; this one compares on the device.
    """

    def __init__(self, size: int) -> None:
        """Raises ValueError for a size below 1."""
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        self.size = size

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """(R, T) tokens so far, (R, V) scores → (R, V), minus infinity at the forbidden tokens."""
        length = input_ids.shape[1]
        if length < self.size:
            return scores
        beginnings = input_ids.unfold(1, self.size, 1)[:, :, :-1]  # (R, T - n + 1, n - 1), without the last token
        last = input_ids[:, length - self.size + 1 :]  # (R, n - 1)
        is_repeated = (beginnings == last[:, None]).all(dim=2)  # (R, T - n + 1)
        row, start = is_repeated.nonzero(as_tuple=True)
        scores = scores.clone()
        scores[row, input_ids[row, start + self.size - 1]] = -torch.inf
        return scores


class Answers:
    """Sequences of rows that have ended, by the number of their prompt or sample."""

    def __init__(self, count: int) -> None:
        self.tokens: list[torch.Tensor] = [torch.empty(0)] * count
        self.scores: list[torch.Tensor] = [torch.empty(0)] * count
        self.missing = count

    @property
    def is_complete(self) -> bool:
        """Whether every row has ended."""
        return self.missing == 0

    def record(
        self, rows: torch.Tensor, has_ended: torch.Tensor, tokens: torch.Tensor, scores: torch.Tensor | None = None
    ) -> None:
        """Keeps `tokens` (R, ..., T) and `scores` (R, ...) where `has_ended` (R,); `rows` (R,): their numbers."""
        for position, number in zip(has_ended.nonzero()[:, 0].tolist(), rows[has_ended].tolist(), strict=True):
            self.tokens[number] = tokens[position]
            if scores is not None:
                self.scores[number] = scores[position]
            self.missing -= 1

    def sequences(self, pad: int) -> torch.Tensor:
        """(count * ..., L), padded at the end to the longest of them."""
        longest = max(tokens.shape[-1] for tokens in self.tokens)
        padded = [torch.nn.functional.pad(x, (0, longest - x.shape[-1]), value=pad) for x in self.tokens]
        return torch.stack(padded).flatten(0, -2)


def _check_criteria(stopping_criteria: Any) -> None:
    """Raises ValueError for a criterion other than length and end tokens, such as a time limit of a checkpoint."""
    others = [type(c).__name__ for c in stopping_criteria if not isinstance(c, (MaxLengthCriteria, EosTokenCriteria))]
    if others:
        raise ValueError(
            f"generation_config of the checkpoint sets {', '.join(others)}; only max_length, max_new_tokens and "
            "eos_token_id are read, remove the others"
        )


def _special_tokens(generation_config: Any, device: torch.device) -> tuple[torch.Tensor, int]:
    """(E,) end tokens and the padding token, which is the first end token where the model names none."""
    stop_ids = torch.as_tensor(
        [] if generation_config.eos_token_id is None else generation_config.eos_token_id,
        dtype=torch.long,
        device=device,
    ).reshape(-1)
    pad = generation_config.pad_token_id
    if pad is None:
        pad = stop_ids[0] if len(stop_ids) else 0
    return stop_ids, int(pad)


def _next_logits(model: Any, input_ids: torch.Tensor, model_kwargs: dict[str, Any], *, is_first: bool) -> torch.Tensor:
    """(R, P + t) → (R, V) float32; the cache in `model_kwargs` grows by what was read."""
    inputs = model.prepare_inputs_for_generation(
        input_ids, next_sequence_length=None if is_first else 1, is_first_iteration=is_first, **model_kwargs
    )
    outputs = model(**inputs, return_dict=True)
    go_on_after(model, outputs, model_kwargs)
    model_kwargs.pop("inputs_embeds", None)  # from here on the prompt lies in the cache
    return outputs.logits[:, -1].float()


def _remaining(is_live: torch.Tensor) -> torch.Tensor:
    """Positions of the rows to go on with: all, or the live ones where enough others have ended to pay for a copy."""
    live = is_live.nonzero()[:, 0]
    if len(is_live) - len(live) >= LEAVING_SHARE * len(is_live):
        return live
    return torch.arange(len(is_live), device=is_live.device)


def _select_rows(model_kwargs: dict[str, Any], index: torch.Tensor, count: int) -> None:
    """Keeps or repeats rows of all that has an entry for each of the `count` rows: caches, masks, encoder states."""

    def selected(value: Any) -> Any:
        if isinstance(value, ModelOutput):
            return type(value)(**{name: selected(part) for name, part in value.items()})
        is_by_row = isinstance(value, torch.Tensor) and value.dim() > 0 and len(value) == count
        return value.index_select(0, index) if is_by_row else value

    model_kwargs["past_key_values"].reorder_cache(index)
    model_kwargs.update({name: selected(value) for name, value in model_kwargs.items()})


def _reorder_beams(model_kwargs: dict[str, Any], index: torch.Tensor) -> None:
    """Moves beams within their row. The beams of a row see one image, so what is read of it stays where it is."""
    cache = model_kwargs["past_key_values"]
    (cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache).reorder_cache(index)


def _pick(sequences: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """(R, W, T) and (R, C) numbers of sequences → (R, C, T)."""
    return sequences.gather(1, chosen[:, :, None].expand(-1, -1, sequences.shape[2]))


def _extend(sequences: torch.Tensor, parents: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """(R, W, T), (R, C), (R, C) → (R, C, T + 1)."""
    return torch.cat([_pick(sequences, parents), tokens[:, :, None]], dim=2)

"""The role text_similarity: BERTScore F1 by greedy matching of token embeddings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from curation_assets.core.roles import ModelIdentity, Texts
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import (
    TOKENS_AT_ONCE,
    autocast,
    batches_of_equal_length,
    batches_side_by_side,
    chunks,
    quiet_loading,
    requested_precision,
    unique_texts,
    without_gradients,
)
from curation_assets.engines.needs import RoleNeeds

if TYPE_CHECKING:
    import torch

NEEDS = RoleNeeds(settings=("layer", "precision"))

BLANKS = re.compile(r"\s+")
#: Pairs matched at once: 4,096 × 32 × 32 tokens × 4 B = 16 MiB.
PAIRS_AT_ONCE = 4096


@dataclass(eq=False, repr=False)
class BertScoreEngine:
    """BERTScore F1 (Zhang et al. 2020 §3) without idf and without baseline rescaling (formulas.md §1.5).

    Our own matching instead of the bert-score package: with transformers 5 that package fails on an empty
    string, and it takes neither a revision nor a second thread of work; a test compares the two to 1e-5.
    """

    identity: ModelIdentity
    model: Any
    tokenizer: Any
    layer: int  # how many layers run; the hidden state after the last of them is matched
    batch_size: int
    device: str
    precision: torch.dtype | None = None  # see `batches.autocast`

    def __post_init__(self) -> None:
        positions = self.model.config.max_position_embeddings
        if self.model.config.model_type in ("roberta", "xlm-roberta", "camembert"):
            positions -= 2  # these number positions from pad_token_id + 1
        self.context_length = min(self.tokenizer.model_max_length, positions)

    @without_gradients
    def similarity(self, candidates: Texts, references: Texts) -> np.ndarray:
        """Pairwise F1: (N,), (N,) → (N,) float64 in [-1, 1]. An empty candidate or reference scores 0.

        Repeated blanks are collapsed first. Special tokens may be matched with but do not count.
        Raises ValueError for lists of unequal length.
        """
        if len(candidates) != len(references):
            raise ValueError(
                f"expected one reference per candidate, got {len(candidates)} candidates, {len(references)} references"
            )
        count = len(candidates)
        cleaned = [BLANKS.sub(" ", text).strip() for text in (*candidates, *references)]
        distinct, inverse = unique_texts(cleaned)
        encoded = self._encode(distinct)
        pairs = [(inverse[i], inverse[count + i]) for i in range(count)]
        distinct_pairs, pair_of = unique_pairs(pairs)
        # neighbours of like length pad little
        order = sorted(range(len(distinct_pairs)), key=lambda p: sum(len(encoded[t][0]) for t in distinct_pairs[p]))
        scores = np.zeros(len(distinct_pairs))
        for positions in chunks(order, PAIRS_AT_ONCE):
            candidate_tokens = [encoded[distinct_pairs[p][0]] for p in positions]
            reference_tokens = [encoded[distinct_pairs[p][1]] for p in positions]
            scores[list(positions)] = greedy_f1(candidate_tokens, reference_tokens).numpy()
        return scores[pair_of] if count else np.zeros(0)

    def _encode(self, texts: list[str]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Per text: (T, D) unit token vectors, and (T,) whether a token counts (is no special token).

        A batch holds texts of one length, so nothing is padded (docs/decisions/0044).
        """
        import torch

        if not texts:
            return []
        tokens = self.tokenizer(texts, truncation=True, max_length=self.context_length, return_special_tokens_mask=True)
        lengths = [len(ids) for ids in tokens.input_ids]
        at_once = TOKENS_AT_ONCE[torch.device(self.device).type]
        batches = list(batches_of_equal_length(lengths, self.batch_size, at_once))
        encoded: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * len(texts)
        with batches_side_by_side(self.device) as map_batches:
            hidden = map_batches(self._hidden, ([tokens.input_ids[i] for i in batch] for batch in batches))
            for batch, states in zip(batches, hidden, strict=True):
                for position, vectors in zip(batch, states, strict=True):
                    encoded[position] = (vectors, ~torch.tensor(tokens.special_tokens_mask[position], dtype=torch.bool))
        return [item for item in encoded if item is not None]

    @without_gradients
    def _hidden(self, ids: list[list[int]]) -> torch.Tensor:
        """(B, T) token ids → (B, T, D) unit vectors on the CPU."""
        import torch

        input_ids = torch.tensor(ids, device=self.device)
        with autocast(self.device, self.precision):
            output = self.model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids))
        return torch.nn.functional.normalize(output.last_hidden_state.float(), dim=-1).cpu()


def unique_pairs(pairs: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[int]]:
    """Distinct pairs in order of appearance, and for each input the index of its pair."""
    index_of: dict[tuple[int, int], int] = {}
    inverse = [index_of.setdefault(pair, len(index_of)) for pair in pairs]
    return list(index_of), inverse


def greedy_f1(
    candidates: Sequence[tuple[torch.Tensor, torch.Tensor]],
    references: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """BERTScore F1 of B pairs of encoded texts: each token takes its best partner; mean over counting tokens.

    An item is ((T, D) unit vectors, (T,) bool: counts). Returns (B,) float64; 0 where a side has no counting
    token.
    """
    import torch

    candidate, candidate_real, candidate_counts = _pad(candidates)
    reference, reference_real, reference_counts = _pad(references)
    cosines = torch.bmm(candidate, reference.transpose(1, 2))  # (B, Tc, Tr)
    # Partners are all real tokens, special ones included; padding is never a partner.
    both = candidate_real[:, :, None] & reference_real[:, None, :]
    cosines = torch.where(both, cosines, -torch.inf)
    precision = _mean_where(cosines.amax(dim=2), candidate_counts)  # (B,)
    recall = _mean_where(cosines.amax(dim=1), reference_counts)
    f1 = 2 * precision * recall / (precision + recall)
    is_empty = ~candidate_counts.any(dim=1) | ~reference_counts.any(dim=1)
    return torch.where(is_empty | f1.isnan(), 0.0, f1)


def _mean_where(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    import torch

    total = torch.where(counts, values, 0.0).double().sum(dim=1)
    return total / counts.sum(dim=1).clamp(min=1)


def _pad(
    items: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, T, D) vectors, (B, T) is a real token, (B, T) counts."""
    import torch

    pad = torch.nn.utils.rnn.pad_sequence
    vectors = pad([vectors for vectors, _ in items], batch_first=True)
    real = pad([torch.ones(len(counts), dtype=torch.bool) for _, counts in items], batch_first=True)
    return vectors, real, pad([counts for _, counts in items], batch_first=True)


def load(request: EngineRequest) -> BertScoreEngine:
    """An encoder (BERT, RoBERTa, MiniLM) for BERTScore: embedded:bertscore-minilm, path: or hub:.

    Setting `layer`: how many layers run, all if left out (hub:roberta-large: 17). Layers above are dropped.
    Setting `precision`: of the arithmetic (auto, float32, bfloat16, float16).
    Raises ValueError for a layer that the model does not have.
    """
    import torch
    from transformers import AutoModel, AutoTokenizer

    quiet_loading()
    folder = local_folder(request.address)
    model = AutoModel.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        dtype=torch.float32,
        add_pooling_layer=False,
        attn_implementation="eager",
    )
    layers = len(model.encoder.layer)
    layer = int(request.settings.get("layer", layers))
    if not 1 <= layer <= layers:
        raise ValueError(f"{request.address.text}: layer must be in [1, {layers}], got {layer}")
    model.encoder.layer = model.encoder.layer[:layer]
    # bert-score reads RoBERTa's words as if a blank stood before the first; BERT's tokenizer ignores the
    # switch
    is_byte_level = model.config.model_type == "roberta"
    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, **({"add_prefix_space": True} if is_byte_level else {})
    )
    return BertScoreEngine(
        request.identity,
        model.to(request.device).eval(),
        tokenizer,
        layer,
        request.batch_size,
        request.device,
        requested_precision(request.settings),
    )

"""Muon: which weights it takes, and that its steps are those of the paper."""

import numpy as np
import pytest
import torch
from torch import nn

from curation_assets.evaluation.models.miniature import _tokenizer, untrained_captioner, untrained_dual_encoder
from curation_assets.evaluation.models.muon import MOMENTUM, Muon, hidden_matrices, orthogonalised

torch.set_num_threads(1)


@pytest.mark.parametrize("shape", [(3, 6, 6), (2, 4, 9), (2, 9, 4)])
def test_updates_keep_singular_vectors_and_lose_singular_values(shape: tuple[int, int, int]) -> None:
    drawn = np.random.default_rng(0).normal(size=shape)
    u, values, v = np.linalg.svd(drawn, full_matrices=False)
    expected = values / np.linalg.norm(drawn, axis=(1, 2))[:, None]
    for _ in range(4):
        expected = 3.4445 * expected - 4.775 * expected**3 + 2.0315 * expected**5
    got = orthogonalised(torch.from_numpy(drawn), iterations=4).numpy()
    np.testing.assert_allclose(got, (u * expected[:, None]) @ v, atol=1e-10)
    assert np.abs(expected[values > 1] - 1).max() < 0.4


def test_no_gradient_and_a_gradient_of_zeros_move_nothing_but_by_weight_decay() -> None:
    still, decayed = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(2, 3))
    decayed.grad = torch.zeros(2, 3)
    Muon([still, decayed], lr=0.1, weight_decay=0.5).step()
    assert still.tolist() == torch.ones(2, 3).tolist()
    np.testing.assert_allclose(decayed.detach(), 0.95)


def test_two_steps_are_those_of_torch() -> None:
    """It computes in bfloat16: a twentieth of a step apart at most."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(6, 4, generator=generator)
    ours, theirs = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    settings = {"lr": 0.1, "weight_decay": 0.05}
    one = Muon([ours], **settings)
    other = torch.optim.Muon([theirs], momentum=MOMENTUM, ns_steps=3, adjust_lr_fn="match_rms_adamw", **settings)
    for _ in range(2):
        ours.grad = torch.randn(6, 4, generator=generator)
        theirs.grad = ours.grad.clone()
        one.step()
        other.step()
    assert (ours - start).abs().max() > 0.05
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=0)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"expected matrices, got a parameter of shape \(3,\)"):
        Muon([nn.Parameter(torch.ones(3))], lr=0.1)


def test_embeddings_biases_and_queries_are_left_to_adamw() -> None:
    tokenizer = _tokenizer()
    captioner = untrained_captioner(16, tokenizer, 0)
    taken = {id(matrix) for matrix in hidden_matrices({"decoder": captioner})}
    left = {name for name, parameter in captioner.named_parameters() if id(parameter) not in taken}
    assert {name for name in left if not name.endswith(".bias")} == {
        "reader.0.weight", "language_model.transformer.wte.weight", "language_model.transformer.wpe.weight",
        "language_model.transformer.ln_f.weight",
        *(f"language_model.transformer.h.{i}.ln_{n}.weight" for i in (0, 1) for n in ("1", "2", "cross_attn")),
    }  # fmt: skip
    pool, tower = untrained_dual_encoder(16, tokenizer, 0)
    log_scale = nn.Parameter(torch.tensor(0.0))
    taken = {id(matrix) for matrix in hidden_matrices({"pool": pool, "tower": tower, "log_scale": log_scale})}
    assert id(pool.queries) not in taken
    assert id(pool.values.weight) in taken
    assert id(tower.text_projection.weight) in taken
    assert all(parameter.ndim == 2 for parameter in [*pool.parameters(), *tower.parameters()] if id(parameter) in taken)
    pool.values.weight.requires_grad_(False)
    assert id(pool.values.weight) not in {id(matrix) for matrix in hidden_matrices({"pool": pool})}

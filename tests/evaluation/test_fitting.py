"""The training loop: budgets in samples seen, order, and trainings that are killed and go on."""

import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import nn

from curation_assets.evaluation.models.fitting import epoch_batches, fit

torch.set_num_threads(1)

BATCH = 4


class Regression(nn.Module):
    """Everything that a resume has to bring back: shared weights, batch norm's averages, dropout."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first = nn.Linear(3, 8)
            self.norm = nn.BatchNorm1d(8)
            self.dropout = nn.Dropout(0.5)
            self.last = nn.Linear(8, 3)
            self.unused = nn.Linear(2, 2)  # no loss reaches it, so it has no moments

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(self.norm(self.first(inputs)))
        return self.last(hidden) @ self.first.weight.T @ self.first.weight  # (B, 3)


def train(
    checkpoint: Path | None = None,
    progress: Callable[[int], None] | None = None,
    samples_seen: int = 42,
    learning_rate: float = 0.01,
    data: str = "one",
    seed: int = 7,
    checkpoint_seconds: float = 0.0,
    muon_ratio: float | None = None,
) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and final weights."""
    inputs = torch.linspace(-1, 1, 30).reshape(10, 3)  # 10 samples
    model, scale = Regression(), nn.Parameter(torch.tensor(0.5))

    def loss_of(batch: Sequence[int]) -> torch.Tensor:
        return (model(inputs[batch]) * scale - inputs[batch].flip(1)).square().mean()

    losses = fit(
        {"model": model, "scale": scale}, loss_of, count=10, batch_size=BATCH, samples_seen=samples_seen, seed=seed,
        learning_rate=learning_rate, made_from={"data": data}, checkpoint=checkpoint,
        checkpoint_seconds=checkpoint_seconds, progress=progress, muon_ratio=muon_ratio,
    )  # fmt: skip
    return losses, [*model.state_dict().values(), scale.detach()]


def test_a_budget_is_samples_seen_in_whole_batches() -> None:
    done: list[int] = []
    losses, _ = train(progress=done.append)
    assert len(losses) == 10  # 42 // 4
    assert done == list(range(1, 11))
    with pytest.raises(ValueError, match=r"at least one batch \(4 samples\), got samples_seen=3; raise samples_seen"):
        train(samples_seen=3)


def test_epochs_draw_without_replacement_and_budgets_are_exact() -> None:
    batches = list(epoch_batches(count=10, batch_size=3, steps=7, seed=2))
    assert [len(batch) for batch in batches] == [3] * 7
    for start in (0, 3):  # three batches an epoch, one sample left out each time
        assert len({i for batch in batches[start : start + 3] for i in batch}) == 9
    assert batches == list(epoch_batches(10, 3, 7, 2))
    assert batches != list(epoch_batches(10, 3, 7, 3))
    with pytest.raises(ValueError, match="at least one batch of 11 samples, got 10; lower batch_size"):
        list(epoch_batches(10, 11, 1, 0))


def test_trainings_are_seeded_and_leave_the_callers_randomness_alone() -> None:
    state = torch.get_rng_state()
    one, again, other = train(seed=4), train(seed=4), train(seed=5)
    assert one[0] == again[0] != other[0]
    assert all(map(torch.equal, one[1], again[1]))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("muon_ratio", [None, 2.0])
@pytest.mark.parametrize("stop_at", [1, 2, 5, 9])
def test_an_interrupted_training_ends_with_the_same_bits(
    stop_at: int, muon_ratio: float | None, tmp_path: Path
) -> None:
    """Dropout and batch norm included; interrupted inside an epoch and between two."""
    train_so = functools.partial(train, muon_ratio=muon_ratio)
    straight = train_so()

    def interrupt(step: int) -> None:
        if step == stop_at:
            raise KeyboardInterrupt

    file = tmp_path / "training.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train_so(file, interrupt)
    done: list[int] = []
    resumed = train_so(file, done.append)
    assert done == list(range(stop_at, 11))
    assert resumed[0] == straight[0]
    assert all(map(torch.equal, resumed[1], straight[1]))
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    done.clear()
    assert train_so(file, done.append)[0] == straight[0]
    assert done == [10]  # nothing left to train


KILLED = """
import os, signal, sys, torch
from pathlib import Path
torch.set_num_threads(1)
from tests.evaluation.test_fitting import train
def kill(step):
    if step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
train(Path(sys.argv[1]), kill)
"""


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As in the killed process: sums of floats depend on the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_a_killed_process_is_resumed_by_another(tmp_path: Path) -> None:
    file = tmp_path / "training.safetensors"
    run = subprocess.run(
        [sys.executable, "-c", KILLED, str(file)], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert run.returncode == -signal.SIGKILL
    done: list[int] = []
    resumed, straight = train(file, done.append), train()
    assert done == [6, 7, 8, 9, 10]
    assert resumed[0] == straight[0]
    assert all(map(torch.equal, resumed[1], straight[1]))


@pytest.mark.parametrize(
    "other",
    [{"data": "two"}, {"seed": 8}, {"samples_seen": 44}, {"learning_rate": 0.02}, {"muon_ratio": 2.0}],
    ids=lambda other: str(other),
)
def test_a_checkpoint_of_another_training_is_ignored(other: dict[str, object], tmp_path: Path) -> None:
    file = tmp_path / "training.safetensors"
    train(file)
    done: list[int] = []
    assert train(file, done.append, **other)[0] == train(**other)[0]  # type: ignore[arg-type]
    assert done[0] == 1


def test_a_damaged_checkpoint_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "training.safetensors"
    train(file)
    file.write_bytes(file.read_bytes()[:-50])
    assert train(file)[0] == train()[0]


def test_a_checkpoint_is_written_when_its_time_has_come_and_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "training.safetensors"
    existed: list[bool] = []
    train(file, lambda step: existed.append(file.is_file()), checkpoint_seconds=3600)
    assert existed == [False] * 9 + [True]
    with safe_open(file, framework="pt") as stream:
        assert len(stream.get_tensor("losses")) == 10
        assert '"data": "one"' in stream.metadata()["made_from"]


def test_a_loss_that_is_not_finite_ends_the_training_before_it_spoils_the_weights(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.tensor(1.0))
    calls: list[int] = []

    def loss_of(batch: Sequence[int]) -> torch.Tensor:
        calls.append(1)
        return weight * (float("nan") if len(calls) == 3 else 1.0)

    with pytest.raises(ValueError, match=r"the loss is nan at step 3 of 5; lower learning_rate, got 0\.1"):
        fit({"weight": weight}, loss_of, count=4, batch_size=2, samples_seen=10, seed=0, learning_rate=0.1)
    assert torch.isfinite(weight)

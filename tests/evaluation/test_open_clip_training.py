"""CLIP from scratch by open_clip's trainer: from the tars of an export to an encoder, a stop in between."""

import contextlib
import importlib
import io
import json
import math
import tarfile
from pathlib import Path

import numpy as np
import psutil
import pytest
import webdataset as wds
from open_clip_train.params import parse_args
from PIL import Image

from curation_assets.engines import load_engine
from curation_assets.evaluation.models import open_clip_main
from curation_assets.evaluation.models.open_clip_training import (
    PROCESS,
    SCALES,
    TrainingFailedError,
    last_loss,
    train_clip,
    training_command,
)
from curation_assets.flow.context import PoolContext
from curation_assets.outputs.exports.webdataset import write_training_tars
from curation_assets.stores.images import tar_index
from tests.support.command import curate
from tests.support.id_lists import read_subset
from tests.support.lineage_pools import finished_photos
from tests.support.tiny_models import profile_of

SAMPLES_SEEN = 800  # 25 steps of the tiny scale
REPEATED = 3  # times that the first sample is in the training set


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    return finished_photos(tmp_path_factory.mktemp("home"), per_shard=16)


@pytest.fixture(scope="module")
def tars(ctx: PoolContext, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    ids = ctx.store.scan("raw/samples").collect().filter(status="kept")["sample_id"].sort().to_list()
    assert len(ids) == 46
    out = tmp_path_factory.mktemp("export") / "tars"
    return write_training_tars(ctx, [ids[0]] * REPEATED + ids[1:], out, name="control", max_samples=16)


def test_an_id_listed_m_times_is_in_the_training_tars_m_times(ctx: PoolContext, tars: list[Path]) -> None:
    assert [tar.name for tar in tars] == ["00000000.tar", "00000001.tar", "00000002.tar"]
    keys = [one["__key__"] for one in wds.WebDataset([str(tar) for tar in tars], shardshuffle=False)]
    assert len(keys) == len(set(keys)) == 45 + REPEATED
    ids = read_subset(tars[0].parent / "sample_ids.npy")
    (most,) = {sample_id for sample_id in ids if ids.count(sample_id) > 1}
    assert sorted(key for key in keys if key.startswith(most)) == [f"{most}-{copy}" for copy in range(REPEATED)]
    with pytest.raises(ValueError, match="32 lower-case hex digits, got 'abc'"):
        write_training_tars(ctx, ["abc"], tars[0].parent.with_name("none"), name="control")


@pytest.mark.slow
def test_a_killed_training_goes_on_and_ends_as_an_encoder(ctx: PoolContext, tars: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "model"
    seen: list[int] = []

    def kill_in_the_third_part(samples: int) -> None:
        seen.append(samples)
        if sum(seen) > 2 / 5 * SAMPLES_SEEN:
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.Error):  # other children of this process may end meanwhile
                    if PROCESS in child.cmdline():
                        child.kill()

    with pytest.raises(TrainingFailedError, match="SIGKILL") as failure:
        train_clip(SCALES["tiny"], tars[0].parent, out, samples_seen=SAMPLES_SEEN, progress=kill_in_the_third_part)
    assert "goes on from its last checkpoint" in str(failure.value)
    log_of_trainer = out / ".training" / "run" / "out.log"
    assert "Its log is in" in str(failure.value)  # the last lines shown may be those of its killed readers
    assert "Start epoch 2" in log_of_trainer.read_text()
    assert not (out / "open_clip_model.safetensors").exists()
    with pytest.raises(ValueError, match="another seed; choose a new folder"):
        train_clip(SCALES["tiny"], tars[0].parent, out, samples_seen=SAMPLES_SEEN, seed=1)

    arguments = ("evaluate", "clip", tars[0].parent, "--scale", "tiny", "--samples-seen", SAMPLES_SEEN)
    arguments += ("--out", out, "--devices", 0)
    run = curate(*arguments)
    assert run.exit_code == 0, run.output
    assert f"800 samples seen; the model is in {out}" in run.stdout
    log = log_of_trainer.read_text()
    starts = [log.count(f"Start epoch {part}") for part in range(5)]
    assert starts == [1, 1, 2, 1, 1]  # the first two were not done again
    assert not list(out.rglob("*.pt"))
    card = json.loads((out / "card.json").read_text())
    assert (card["steps"], card["samples_seen"], card["scale"]["name"]) == (25, SAMPLES_SEEN, "tiny")
    assert card["last_loss"] == last_loss(out / ".training" / "run" / "out.log")
    assert card["last_loss"] < math.log(32) - 0.1  # log(batch) is what guessing gives

    encoder = load_engine("image_text_encoder", profile_of("image_text_encoder", out))
    index = tar_index(tars[0])
    names = [name for name in index.members if name.endswith(".jpg")]
    images = encoder.embed_images([Image.open(io.BytesIO(index.read(name))) for name in names])
    texts = encoder.embed_texts([index.read(name.replace(".jpg", ".txt")).decode() for name in names])
    assert images.shape == texts.shape == (16, 64)
    assert np.linalg.norm(images, axis=1) == pytest.approx(np.ones(16), abs=1e-5)
    cosines = images @ texts.T  # (16, 16)
    assert np.diag(cosines).mean() > cosines.mean()  # learned, though little in 25 steps

    weights = out / "open_clip_model.safetensors"
    written = weights.stat().st_mtime_ns
    assert curate(*arguments).exit_code == 0  # finished: nothing is trained again
    assert weights.stat().st_mtime_ns == written


@pytest.mark.slow
@pytest.mark.parametrize("scale", SCALES.values(), ids=list(SCALES))
def test_the_trainer_reads_the_command_of_every_scale(scale: object, tmp_path: Path) -> None:
    chosen = SCALES[scale.name]  # type: ignore[attr-defined]
    command = training_command(
        chosen, tmp_path / "tars", tmp_path / "out", devices=chosen.devices, machines=chosen.machines
    )
    place = command.index(PROCESS)
    parsed = parse_args(command[place + 2 :])
    processes = max(1, chosen.devices * chosen.machines)
    assert parsed.batch_size * processes == chosen.batch_size
    assert parsed.train_num_samples * parsed.epochs == chosen.samples_seen
    assert (parsed.model, parsed.lr, parsed.warmup) == (chosen.model, chosen.learning_rate, chosen.warm_up)
    assert (parsed.beta2, parsed.epochs, parsed.seed) == (0.95 if chosen.name == "xlarge" else 0.98, 5, 0)
    assert parsed.dataset_resampled
    assert parsed.local_loss
    assert parsed.gather_with_grad
    assert parsed.grad_checkpointing
    assert parsed.precision == ("amp" if chosen.devices else "fp32")
    assert (parsed.resume, parsed.report_to, parsed.dataset_type) == ("latest", "", "webdataset")
    assert parsed.train_data == str(tmp_path / "tars")
    if processes > 1:
        run = importlib.import_module("torch.distributed.run")
        launched = run.get_args_parser().parse_args(command[command.index(run.__name__) + 1 :])
        assert (launched.module, launched.training_script) == (True, PROCESS)
        least = "1:" if chosen.machines == 1 else ""  # torchrun's default is a range
        assert (launched.nnodes, launched.nproc_per_node) == (f"{least}{chosen.machines}", str(chosen.devices))


def test_numbers_of_the_scales_are_those_published() -> None:
    published = {
        "debug": ("ViT-B-32", 128_000, 1024, 1e-4, 500),
        "small": ("ViT-B-32", 12_800_000, 4096, 5e-4, 500),
        "medium": ("ViT-B-32", 128_000_000, 4096, 5e-4, 500),
        "large": ("ViT-B-16", 1_280_000_000, 8192, 5e-4, 500),
        "xlarge": ("ViT-L-14", 12_800_000_000, 90_112, 1e-3, 10_000),
    }
    found = {
        name: (scale.model, scale.samples_seen, scale.batch_size, scale.learning_rate, scale.warm_up)
        for name, scale in SCALES.items()
        if name != "tiny"
    }
    assert found == published
    assert SCALES["small"].steps(None, devices=1) == 5 * 628  # 625 batches of 4096, filled up for 4 workers


def test_a_path_that_the_trainer_takes_for_a_pattern_is_refused(tmp_path: Path) -> None:
    for name in ("8.tar", "x-09.tar", "train.tar", "00.tar"):
        (tmp_path / name).touch()
    tars = open_clip_main.tars_of(tmp_path)
    assert [tar.name for tar in tars] == ["00.tar", "8.tar", "train.tar", "x-09.tar"]
    assert wds.shardlists.expand_urls("::".join(map(str, tars))) == [str(tar) for tar in tars]
    (tmp_path / "{a,b}").mkdir()
    (tmp_path / "{a,b}" / "0.tar").touch()
    with pytest.raises(ValueError, match="as patterns; move the tars"):
        open_clip_main.tars_of(tmp_path / "{a,b}")


def test_what_cannot_be_trained_is_refused_in_a_sentence(tars: list[Path], tmp_path: Path) -> None:
    folder = tars[0].parent
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken"
    broken.mkdir()
    with tarfile.open(broken / "0.tar", "w") as tar:
        for name in ("1.jpg", "1.txt"):
            info = tarfile.TarInfo(name)
            info.size = 9
            tar.addfile(info, io.BytesIO(b"no image!"))
    for arguments, sentence in (
        (
            (folder, "--scale", "small"),
            "the tars hold 48 samples with image and caption, fewer than one batch of 4,096",
        ),
        (
            (folder, "--scale", "tiny", "--samples-seen", 100),
            "100 samples seen are fewer than one batch of 32 for each",
        ),
        ((folder, "--scale", "tiny", "--dry-run", "--devices", 5), "cannot be shared by 5 devices"),
        ((folder, "--scale", "tiny", "--devices", 32), "32 GPUs were requested and torch sees"),
        ((folder, "--scale", "tiny", "--machines", 2), "several machines start the command that --dry-run prints"),
        ((folder, "--scale", "tiny", "--out", folder), "is not empty and holds no training"),
        ((folder, "--scale", "gigantic"), "no scale 'gigantic'; expected one of tiny, debug"),
        ((tmp_path / "empty", "--scale", "tiny"), "holds no .tar"),
        ((broken, "--scale", "tiny"), "export the subset again"),
    ):
        run = curate("evaluate", "clip", *arguments)
        assert run.exit_code == 1
        assert sentence in " ".join(run.stderr.split()), run.output


def test_dry_run_prints_the_command_and_writes_nothing(tars: list[Path]) -> None:
    before = sorted(tars[0].parent.parent.rglob("*"))
    run = curate("evaluate", "clip", tars[0].parent, "--scale", "tiny", "--dry-run", "--seed", 7)
    assert run.exit_code == 0, run.output
    (line,) = run.stdout.splitlines()
    assert line.startswith(f"python -m {PROCESS} {tars[0].parent}-clip-tiny --train-data ")
    assert " --seed 7 " in line
    assert sorted(tars[0].parent.parent.rglob("*")) == before


def test_the_reader_leaves_pickles_in_the_tar_and_keeps_samples_of_two_tars_apart(tmp_path: Path) -> None:
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as tar:
            for name in ("a/1.JPG", "a/1.txt", "a/1.pyd", "a/1.pickle", "a/1.json", "a/1.jpg.gz", "a/1.npy"):
                info = tarfile.TarInfo(name)
                info.size = 1
                tar.addfile(info, io.BytesIO(str(number).encode()))
    reading = open_clip_main.Reading()
    samples = list(reading.read_tars([{"url": str(tmp_path / f"{number}.tar")} for number in (0, 1)]))
    assert [set(one) - {"__url__"} for one in samples] == [{"__key__", "jpg", "txt"}] * 2
    assert [(one["__key__"], one["jpg"], one["txt"]) for one in samples] == [("a/1", b"0", b"0"), ("a/1", b"1", b"1")]


def test_a_reader_that_finds_nothing_stops(tmp_path: Path) -> None:
    (tmp_path / "0.tar").write_bytes(b"no tar")
    reading = open_clip_main.Reading()
    endless = ({"url": str(tmp_path / "0.tar")} for _ in range(10 * open_clip_main.MAX_ERRORS))
    with pytest.raises(RuntimeError, match="1001 errors in 0 samples"):
        list(reading.read_tars(endless))

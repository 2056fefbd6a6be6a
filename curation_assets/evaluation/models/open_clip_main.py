"""open_clip's trainer with our reader of tars.

`python -m curation_assets.evaluation.models.open_clip_main OUT ARGUMENTS`.

ARGUMENTS are those of open_clip_train, whose loop, losses and checkpoints run as they are; `--train-data` names a
folder of tars. At the end the model is in the folder OUT, as safetensors. What is replaced, and why
(docs/decisions/0026): open_clip_train 3.3 breaks on the markers that webdataset 0.2.111 puts between tars, hands every
member of a tar to a decoder that unpickles some of them, and shuffles by the clock.
"""

import json
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from curation_assets.foreign.open_clip_training import leave_out, read_tars_with
from curation_assets.stores.documents import save_tensors, save_text
from curation_assets.stores.image_formats import TRAINING_EXTENSIONS
from curation_assets.stores.images import DEFAULT_LIMITS

WORK = ".training"  # folder of OUT: hidden, so that what lies there is no part of the model's identity
RUN = "run"  # and of the trainer in it
#: Configurations of models that open_clip does not have.
MODEL_CONFIGS = Path(__file__).with_name("clip_models")
#: What of a tar is read. The rest never reaches webdataset's decoder, which unpickles `.pyd` and `.pickle`.
READ_SUFFIXES = frozenset((*TRAINING_EXTENSIONS, "txt"))
MAX_ERRORS = 1000  # that are never too many
LOGGED_ERRORS = 100  # of one process
#: Set by a process that holds our standard input: when it ends, so does this process.
ENDS_WITH_STDIN = "CURATION_ENDS_WITH_STDIN"
#: What open_clip imports where it is installed, a fifth of the time to start; no scale needs it.
UNUSED = ("wandb", "tensorboard", "torch.utils.tensorboard", "transformers", "timm")


def tars_of(folder: Path) -> list[Path]:
    """The tars that a training reads, sorted.

    Raises ValueError for none, and for a path that the trainer would take for a pattern of paths.
    """
    tars = sorted(folder.expanduser().absolute().glob("*.tar"))
    if not tars:
        raise ValueError(f"{folder} holds no .tar; write them with `curate export webdataset SUBSET --out {folder}`")
    for tar in tars:
        if re.search(r"::|[{}\\]", str(tar)):
            raise ValueError(f"{tar}: the trainer reads '::', {{, }} and \\ as patterns; move the tars")
    return tars


def is_read(member: str) -> bool:
    """True for images and captions by the suffix that webdataset gives a member: all after the first dot."""
    return member.rpartition("/")[2].partition(".")[2].lower() in READ_SUFFIXES


class Reading:
    """What one process that reads tars has come upon."""

    def __init__(self) -> None:
        self.samples = 0
        self.errors = 0

    def report(self, error: Exception) -> bool:
        """Log an error and go on.

        Raises RuntimeError where more than half of all fails: the trainer reads on until a batch is full, which is for
        ever where nothing can be decoded.
        """
        self.errors += 1
        if self.errors <= LOGGED_ERRORS:
            logging.warning(f"a sample or a tar is skipped: {error!r} {error.__cause__ or ''}")
        if self.errors > max(MAX_ERRORS, self.samples / 2):
            raise RuntimeError(f"{self.errors} errors in {self.samples} samples that were read") from error
        return True

    def read_tars(self, sources: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Tars as `{"url": …}` → samples: key, image bytes, caption bytes."""
        from webdataset.tariterators import group_by_keys, tar_file_expander, url_opener

        streams = url_opener(sources, handler=self.report)
        members = tar_file_expander(streams, handler=self.report, select_files=is_read)
        for sample in group_by_keys(members, handler=self.report):
            self.samples += 1
            yield sample


def prepare() -> None:
    """Repair open_clip_train in this process and bound what decoding an image may cost."""
    import open_clip
    from PIL import Image

    reading = Reading()  # every worker has a copy
    read_tars_with(reading.read_tars, reading.report)
    open_clip.add_model_config(MODEL_CONFIGS)
    Image.init()  # loads all plugins, so that none is added later
    Image.ID[:] = DEFAULT_LIMITS.formats  # what is tried, in this order; EPS would start Ghostscript
    Image.MAX_IMAGE_PIXELS = DEFAULT_LIMITS.max_pixels
    warnings.filterwarnings("error", category=Image.DecompressionBombWarning)  # the sample is skipped


def write_model(checkpoint: Path, model: str, epoch: int, out: Path) -> None:
    """open_clip_config.json and open_clip_model.safetensors in `out`, from a checkpoint of the trainer (a pickle, of
    which tensors and plain values alone are read).

    Raises ValueError for a checkpoint of another epoch, or with weights that are not finite.
    """
    import open_clip
    import torch
    from open_clip.transform import PreprocessCfg

    saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    if saved["epoch"] != epoch:
        raise ValueError(f"{checkpoint} is of epoch {saved['epoch']}, expected {epoch}")
    # Several processes train a wrapped model, whose names begin with "module."
    state = {name.removeprefix("module."): tensor.contiguous() for name, tensor in saved["state_dict"].items()}
    broken = [name for name, tensor in state.items() if not tensor.isfinite().all()]
    if broken:
        raise ValueError(f"the training diverged: {len(broken)} tensors are not finite, such as {broken[0]}")
    preprocess = {name: value for name, value in asdict(PreprocessCfg()).items() if name not in ("size", "mode")}
    config = {"model_cfg": open_clip.get_model_config(model), "preprocess_cfg": preprocess}
    save_text(out / "open_clip_config.json", json.dumps(config, indent=2) + "\n")
    save_tensors(out / "open_clip_model.safetensors", state)


def main(out: Path, arguments: Sequence[str]) -> int:
    """Train, then write the model; the exit status."""
    if os.environ.get(ENDS_WITH_STDIN):
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    leave_out(UNUSED)
    from open_clip_train.params import parse_args

    # Here and not on the command line: torchrun takes `--logs` for one of its own options and refuses it as ambiguous.
    arguments = [*arguments, "--logs", str(out / WORK), "--name", RUN]
    parsed = parse_args(arguments)
    arguments += ["--train-data", "::".join(map(str, tars_of(Path(parsed.train_data))))]  # the last one counts
    prepare()
    try:
        import open_clip_train.main

        status = open_clip_train.main.main(arguments)
        if not status and int(os.environ.get("RANK", 0)) == 0:
            latest = out / WORK / RUN / "checkpoints" / open_clip_train.main.LATEST_CHECKPOINT_NAME
            write_model(latest, parsed.model, parsed.epochs, out)
    finally:
        logging.disable()  # the trainer makes all loggers talk: torch would report 60 lines after an error's traceback
    return int(status or 0)


def _end_with_stdin() -> None:
    os.read(0, 1)  # returns when the writing end is closed; nothing is ever written
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

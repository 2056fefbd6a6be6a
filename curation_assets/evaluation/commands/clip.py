"""curate evaluate clip: train CLIP from scratch on an exported subset."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from curation_assets.cli.commands import command
from curation_assets.cli.common import notice, show
from curation_assets.core.progress import reporter_for


@command("evaluate clip", "Evaluation")
def train_clip_of_export(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Tars of `curate export webdataset`, or any like them.")
    ],
    scale: Annotated[str, typer.Option("--scale", help="tiny (a CPU), debug, small, medium, large or xlarge.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the model (default: DIR-clip-SCALE); goes on after a stop.")
    ] = None,
    samples_seen: Annotated[int | None, typer.Option(help="Other than the scale's own number.")] = None,
    seed: Annotated[int, typer.Option(help="Of the initial weights and the order of samples.")] = 0,
    devices: Annotated[
        int | None,
        typer.Option(help="GPUs per machine; 0 is the CPU (default: all there are; --dry-run: the scale's)."),
    ] = None,
    machines: Annotated[int | None, typer.Option(help="For --dry-run: machines that train together.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command for a GPU machine, and do nothing.")
    ] = False,
) -> None:
    """Train CLIP from scratch on exported tars, at one of DataComp's scales.

    What comes out is a folder for `image_text_encoder: path:FOLDER`.
    """
    from curation_assets.evaluation.models.open_clip_training import (
        check_samples,
        get_scale,
        train_clip,
        training_command,
    )

    chosen = get_scale(scale)
    out = out or folder.absolute().with_name(f"{folder.absolute().name}-clip-{chosen.name}")
    seen = chosen.samples_seen if samples_seen is None else samples_seen
    if dry_run:
        check_samples(folder, chosen)
        per_machine = chosen.devices if devices is None else devices
        together = machines or chosen.machines
        command = training_command(
            chosen, folder, out, devices=per_machine, machines=together, samples_seen=samples_seen, seed=seed
        )
        show(shlex.join(["python", *command[1:]]))
        notice(
            f"Scale {chosen.name} is {chosen.model}, batch {chosen.batch_size:,}, {seen:,} samples seen, and meant for "
            f"{chosen.needs}. The command is for {together} × {per_machine} GPUs (--machines, --devices)."
            if per_machine
            else f"Scale {chosen.name} is {chosen.model}, batch {chosen.batch_size:,}, {seen:,} samples seen, on a CPU."
        )
        return
    if machines is not None and machines > 1:
        raise ValueError("several machines start the command that --dry-run prints, on each of them")
    if devices is None:
        import torch

        devices = torch.cuda.device_count()
    if not devices and chosen.devices:
        notice(f"Scale {chosen.name} is meant for {chosen.needs}; on a CPU it takes very long. See --dry-run.")
    total = chosen.steps(samples_seen, devices) * chosen.batch_size
    with reporter_for().task("samples seen", total) as advance:
        train_clip(chosen, folder, out, devices=devices, samples_seen=samples_seen, seed=seed, progress=advance)
    show(f"{total:,} samples seen; the model is in {out}")
    notice(f"Use it: image_text_encoder: path:{out.absolute()}")

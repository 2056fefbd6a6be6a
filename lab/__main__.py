"""`python -m lab --out DIR`: rebuilds the embedded models, stage by stage, resumable.

`python -m lab photo_pair --pairs PAIRS --out DIR` trains on your photos (`photo_pair --help`), and
`image_kind --pairs TABLE --out DIR` on images whose kind you know, `reward_photos --photos TABLE --out DIR` on photos
with several captions. All of it runs in a checkout: the wheel holds the weights only.
"""

import argparse
import importlib
import sys
from pathlib import Path

from lab.common import Setup

STAGES = (
    "tokenizer", "initialise", "vision", "language_model", "captioner", "clip", "text_to_image",
    "semantic_decoder", "object_detector", "reward_model", "scene_bank", "manifest",
)  # fmt: skip


def parse() -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--work", type=Path, help="folder for intermediate files (default OUT/.work)")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="run these, in their order")
    parser.add_argument("--scale", type=float, default=1.0, help="share of each recipe's steps; .01 is a smoke run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--again", action="store_true", help="run a stage even if it finished before")
    return parser.parse_args()


def main() -> None:
    """Runs the requested stages; a stage that finished before in the same work folder is skipped."""
    if sys.argv[1:2] in (["photo_pair"], ["image_kind"], ["reward_photos"]):
        importlib.import_module(f"lab.{sys.argv[1]}").main(sys.argv[2:])
        return
    arguments = parse()
    setup = Setup(
        arguments.out, arguments.work or arguments.out / ".work", arguments.scale, arguments.threads, arguments.seed
    )
    for stage in (s for s in STAGES if s in arguments.stages):
        done = setup.work / f"done_{stage}"
        if done.exists() and not arguments.again and stage != "manifest":
            print(f"{stage}: done before, skipped (--again runs it anew)")
            continue
        importlib.import_module(f"lab.{stage}").run(setup)
        done.write_text(f"scale {setup.scale}, seed {setup.seed}\n")


if __name__ == "__main__":
    main()

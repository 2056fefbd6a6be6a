"""The walk of one row: which of our files a run goes through from a registered row to its verdict.

    python benchmarks/walk.py [--package FOLDER]

Runs a pool of 40 captions in this process, with a profile hook, and prints three counts: our frames and files on the
stack when the first shard registers; our files that are entered from then until the first verdict is computed; and the
calls between rooms among them, down to a lower room and up to a higher one, each pair of files once. The rooms' order
is that of tool.importlinter in pyproject.toml. `--package` is a checkout of another version, to compare with.
"""

import argparse
import sys
import tempfile
import threading
import tomllib
from pathlib import Path
from types import FrameType
from typing import Any

FIRST, LAST = "register_shard", "judge"  # functions: a shard's rows are registered; rows get verdicts
POOL = "texts"


class Walk:
    """What a profile hook sees of calls into the package `root`."""

    def __init__(self, root: Path) -> None:
        self.root = str(root) + "/"
        self.stack: list[str] = []  # our files on the stack at registration, innermost first
        self.files: dict[str, None] = {}  # from registration on, in order of entry
        self.calls: dict[tuple[str, str], None] = {}  # (caller's file, callee's file), of those
        self.is_over = False

    def ours(self, frame: FrameType | None) -> str | None:
        """The file of a frame relative to the package; None for a frame of somebody else."""
        name = frame.f_code.co_filename if frame else ""
        return name[len(self.root) :] if name.startswith(self.root) else None

    def caller(self, frame: FrameType) -> str | None:
        """The file of the nearest of our frames that called."""
        outer = frame.f_back
        while outer and self.ours(outer) is None:
            outer = outer.f_back
        return self.ours(outer)

    def hook(self, frame: FrameType, event: str, _: Any) -> None:
        """What sys.setprofile calls."""
        if event != "call" or self.is_over or (file := self.ours(frame)) is None:
            return
        name = frame.f_code.co_name
        if not self.stack:
            if name != FIRST:
                return
            outer: FrameType | None = frame
            while outer:
                if inside := self.ours(outer):
                    self.stack.append(inside)
                outer = outer.f_back
        self.files[file] = None
        if (caller := self.caller(frame)) and caller != file:
            self.calls[caller, file] = None
        self.is_over = name.startswith(LAST) and file.startswith("selection/")


def rooms_in_order(repository: Path) -> list[str]:
    """The rooms of a version, highest first."""
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return [name.strip("() ").removeprefix("curation_assets.") for layer in layers for name in layer.split("|")]


def main() -> None:
    """Run the pool and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, default=Path(__file__).parents[1], help="a checkout; default this one")
    repository = parser.parse_args().package.resolve()
    sys.path.insert(0, str(repository))
    from curation_assets import __file__ as package
    from curation_assets.cli import app

    walk = Walk(Path(str(package)).parent)
    with tempfile.TemporaryDirectory() as folder:
        captions = Path(folder) / "captions.csv"
        rows = [f"a {colour} {thing}" for colour in ("red", "green", "blue", "grey") for thing in range(10)]
        captions.write_text("\n".join(["caption", *rows]) + "\n", encoding="utf-8")
        home = ["--home", str(Path(folder) / "home")]
        app(["pool", "add", POOL, str(captions), *home], standalone_mode=False)
        threading.setprofile(walk.hook)
        sys.setprofile(walk.hook)
        try:
            app(["run", POOL, *home], standalone_mode=False)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    if not walk.is_over:
        sys.exit(f"no call of {FIRST}, or of {LAST}… in selection/ after it, was seen: were they renamed?")
    order = rooms_in_order(repository)
    rank = {room: place for place, room in enumerate(order)}
    pairs = [(rank.get(_room(caller), 0), rank.get(_room(callee), 0)) for caller, callee in walk.calls]
    print(f"on the stack when the first shard registers: {len(walk.stack)} frames in {len(set(walk.stack))} files")
    print(f"from there to the first verdict: {len(walk.files)} files")
    print(f"calls between them: {sum(a < b for a, b in pairs)} down, {sum(a > b for a, b in pairs)} up")
    print("\n".join(f"  {file}" for file in walk.files))


def _room(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


if __name__ == "__main__":
    main()

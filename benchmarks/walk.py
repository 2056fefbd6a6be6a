"""Walks: our frames from `curate run` to a method, and our files that a row, an option, a model, a click enter.

    python benchmarks/walk.py [--package FOLDER]

Runs a pool of 40 captions in this process, with a profile hook, and prints per walk three counts: our frames and files
on the stack when its first function is called (of a value each frame, too); our files that are entered from then until
its last one is; and the calls between rooms among them, down to a lower room and up to a higher one, each pair of files
once. A click is the run
of one asset as a process of the UI makes it, from the code location's definitions on. The rooms' order is that of
tool.importlinter in pyproject.toml. `--package` is a checkout of another version, to compare with.
"""

import argparse
import inspect
import shutil
import sys
import tempfile
import threading
import tomllib
from pathlib import Path
from types import FrameType
from typing import Any

#: Walk → its first function; its last one, and the folder of that.
WALKS = {
    "value": ("icc", "write", "stores/"),  # the method is called; its table is written
    "row": ("register_shard", "judge", "selection/"),  # a shard's rows are registered; rows get verdicts
    "option": ("load_pool", "policies_of", "flow/"),  # the declaration is read; who cuts reads `fraction`
    "address": ("load_engine", "load", "engines/"),  # the role of a model; its file loads what the address names
    "click": ("build_definitions", "register_shard", ""),
}
POOL = "texts"


class Walk:
    """What a profile hook sees of calls into the package `root`."""

    def __init__(self, root: Path, first: str, last: str, where: str) -> None:
        self.root, self.first, self.last, self.where = str(root) + "/", first, last, where
        self.stack: list[tuple[str, str]] = []  # (file, function) of ours at the first call, innermost first
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
        if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # an import runs bodies of modules and classes
            return
        name = frame.f_code.co_name
        if not self.stack:
            if name != self.first or (name == "icc" and file != "methods/icc.py"):
                return
            outer: FrameType | None = frame
            while outer:
                if inside := self.ours(outer):
                    self.stack.append((inside, outer.f_code.co_name))
                outer = outer.f_back
        self.files[file] = None
        if (caller := self.caller(frame)) and caller != file:
            self.calls[caller, file] = None
        is_last = name.startswith(self.last) if self.last == "judge" else name == self.last
        self.is_over = is_last and file.startswith(self.where) and len(self.files) > 1


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

    walks = {name: Walk(Path(str(package)).parent, *ends) for name, ends in WALKS.items()}

    def hook(frame: FrameType, event: str, argument: Any) -> None:
        for walk in walks.values():
            walk.hook(frame, event, argument)

    with tempfile.TemporaryDirectory() as folder:
        captions = Path(folder) / "captions.csv"
        rows = [f"a {colour} {thing}" for colour in ("red", "green", "blue", "grey") for thing in range(10)]
        captions.write_text("\n".join(["caption", *rows]) + "\n", encoding="utf-8")
        home = ["--home", str(Path(folder) / "home")]
        app(["pool", "add", POOL, str(captions), *home], standalone_mode=False)
        threading.setprofile(hook)
        sys.setprofile(hook)
        try:
            app(["run", POOL, *home], standalone_mode=False)
            click(Path(folder) / "home")
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    rank = {room: place for place, room in enumerate(rooms_in_order(repository))}
    for name, walk in walks.items():
        if not walk.is_over:
            sys.exit(f"{name}: no call of {walk.first}, or of {walk.last} after it, was seen: were they renamed?")
        pairs = [(rank.get(_room(caller), 0), rank.get(_room(callee), 0)) for caller, callee in walk.calls]
        print(f"{name}, from {walk.first} to {walk.last}: {len(walk.files)} files")
        print(f"  on the stack at the first: {len(walk.stack)} frames in {len({file for file, _ in walk.stack})} files")
        if name == "value":
            print("\n".join(f"    {file} {function}" for file, function in reversed(walk.stack)))
        print(f"  calls between them: {sum(a < b for a, b in pairs)} down, {sum(a > b for a, b in pairs)} up")
        print("\n".join(f"    {file}" for file in walk.files))


def click(home: Path) -> None:
    """Make the first table of a shard anew, as the UI's own process does once it was launched."""
    import dagster as dg

    from curation_assets.core.settings import load_settings
    from curation_assets.definitions import build_definitions
    from curation_assets.defs.launch import prepare_instance

    for path in home.glob(f"work/{POOL}/raw/registered_shards/*"):
        shutil.rmtree(path)
    settings = load_settings(home, "embedded")
    with prepare_instance(settings) as instance:
        job = build_definitions(settings).get_implicit_global_asset_job_def()
        key = dg.AssetKey([POOL, "raw", "registered_shards"])
        job.execute_in_process(asset_selection=[key], partition_key=f"{POOL}-000000", instance=instance)


def _room(file: str) -> str:
    return file.partition("/")[0].removesuffix(".py")


if __name__ == "__main__":
    main()

"""What an installation weighs: the environment as locked, its CUDA libraries, and each direct dependency.

    python benchmarks/installation.py [--fresh] [--into benchmarks/results/installation.md]

Bytes are blocks on disk of the files that a package's RECORD lists, with their compiled bytecode. "With its own": what
goes when the dependency alone is taken out, packages that nothing else needs included. `--fresh` installs
requirements.lock into a new environment, as `make install` does, measures seconds and bytes, and deletes it.
"""

import argparse
import ast
import importlib.metadata as metadata
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[1]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
CUDA = re.compile(r"nvidia-|cuda-|triton$")  # as the Makefile has it
#: Bytes of torch's libraries that its CPU build has not.
CUDA_FILES = re.compile(r"cuda|nccl|nvshmem|cusparse|cudnn|cublas|caffe2_nvrtc")


def on_disk(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.is_file() else 0


def bytes_of(distribution: metadata.Distribution, only: re.Pattern[str] | None = None) -> int:
    """Blocks of a package's files and of their bytecode."""
    total = 0
    for file in distribution.files or ():
        if only is not None and not only.search(file.name):
            continue
        path = Path(str(distribution.locate_file(file)))
        cached = path.parent.joinpath("__pycache__").glob(f"{path.stem}.*.pyc") if path.suffix == ".py" else ()
        total += on_disk(path) + sum(map(on_disk, cached))
    return total


def needs(distribution: metadata.Distribution, extras: Iterable[str]) -> dict[str, set[str]]:
    """Name → extras of what a package with these extras requires on this machine."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for requirement in map(Requirement, distribution.requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found[canonicalize_name(requirement.name)] |= requirement.extras
    return found


def reached(roots: Mapping[str, set[str]], installed: Mapping[str, metadata.Distribution]) -> set[str]:
    """Names of all packages that are installed for these."""
    seen: dict[str, set[str]] = {}
    waiting = [(name, frozenset(extras)) for name, extras in roots.items()]
    while waiting:
        name, extras = waiting.pop()
        if name not in installed or (name in seen and extras <= seen[name]):
            continue
        seen.setdefault(name, set()).update(extras)
        waiting += [(one, frozenset(of)) for one, of in needs(installed[name], seen[name]).items()]
    return set(seen)


def imports() -> dict[str, set[str]]:
    """Name of a package → files of ours that import it; where none does, those that name it in a text."""
    owners, found = metadata.packages_distributions(), defaultdict[str, set[str]](set)
    for path in (REPOSITORY / "curation_assets").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for owner in {owner for name in names for owner in owners.get(name.partition(".")[0], ())}:
                file = path.relative_to(REPOSITORY / "curation_assets").as_posix()
                found[canonicalize_name(owner)].add(file)
    texts = {
        path.relative_to(REPOSITORY / "curation_assets").as_posix(): path.read_text(encoding="utf-8")
        for path in (REPOSITORY / "curation_assets").rglob("*.py")
    }
    for package, of in owners.items():
        for owner in {canonicalize_name(one) for one in of} - found.keys():
            named = re.compile(rf"[\"'](?:{re.escape(package)}|{re.escape(owner)})[\"'./]")
            found[owner] |= {file for file, text in texts.items() if named.search(text)}
    return found


def fresh() -> str:
    """Seconds and bytes of a new environment from the lock."""
    with tempfile.TemporaryDirectory() as name:
        python = Path(name) / "venv" / "bin" / "python"
        uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(python.parents[1])], check=True)
        began = time.perf_counter()
        command = [uv, "pip", "install", "--quiet", "--python", str(python), "--require-hashes", "--compile-bytecode"]
        subprocess.run([*command, "--link-mode", "copy", "-r", "requirements.lock"], check=True, cwd=REPOSITORY)
        seconds = time.perf_counter() - began
        total = sum(on_disk(path) for path in python.parents[1].rglob("*") if not path.is_symlink())
    return f"A new environment from requirements.lock: {total / 1e9:.2f} GB on disk, {seconds:.0f} s.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", action="store_true", help="Install the lock into a new environment, too.")
    parser.add_argument("--into", type=Path, default=REPOSITORY / "benchmarks" / "results" / "installation.md")
    given = parser.parse_args()
    installed = {canonicalize_name(one.name): one for one in metadata.distributions()}
    size = {name: bytes_of(one) for name, one in installed.items()}
    direct = {canonicalize_name(one.name): one.extras for one in map(Requirement, PROJECT["dependencies"])}
    every, used = reached(direct, installed), imports()
    cuda = {name for name in size if CUDA.match(name)}
    inside = bytes_of(installed["torch"], CUDA_FILES)
    total, of_cuda = sum(size.values()), sum(size[name] for name in cuda)
    lines = [
        "# What an installation weighs",
        "",
        f"`python benchmarks/installation.py{' --fresh' if given.fresh else ''}`, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}; MB are 10⁶ bytes of blocks on disk, bytecode included.",
        "",
        "| | GB |",
        "|---|---:|",
        f"| all packages of the environment ({len(size)}; the lock with the developers' tools) | {total / 1e9:.2f} |",
        f"| of these CUDA's libraries and triton ({len(cuda)} packages) | {of_cuda / 1e9:.2f} |",
        f"| CUDA's part of torch itself, by the names of its files | {inside / 1e9:.2f} |",
        f"| what is left with torch's CPU build, computed: the first line less these two | "
        f"{(total - of_cuda - inside) / 1e9:.2f} |",
        f"| what the wheel alone brings, without extras ({len(every)} packages) | "
        f"{sum(size[name] for name in every) / 1e9:.2f} |",
        f"| the same with torch's CPU build | {(sum(size[name] for name in every - cuda) - inside) / 1e9:.2f} |",
        "",
        *([fresh()] if given.fresh else []),
        "| direct dependency | own MB | with its own MB | what is its own | files that import it, or name it | rooms |",
        "|---|---:|---:|---|---|---|",
    ]
    rows = []
    for name in direct:
        own = every - reached({one: extras for one, extras in direct.items() if one != name}, installed)
        files = sorted(used.get(name, ()))
        rows.append((sum(size[one] for one in own), name, own - {name}, files))
    for together, name, own, files in sorted(rows, key=lambda row: (-row[0], row[1])):
        others = ", ".join(sorted(own, key=lambda one: -size[one])[:4]) + (
            f" and {len(own) - 4} more" if len(own) > 4 else ""
        )
        shown = ", ".join(files[:2]) + (f" and {len(files) - 2} more" if len(files) > 2 else "") or "none"
        rooms = ", ".join(sorted({file.partition("/")[0] for file in files}))
        lines.append(
            f"| {name} | {size.get(name, 0) / 1e6:.1f} | {together / 1e6:.1f} | {others} | {shown} | {rooms} |"
        )
    lines += ["", "| extra | packages | MB that it adds |", "|---|---|---:|"]
    for extra, texts in PROJECT["optional-dependencies"].items():
        named = {canonicalize_name(one.name): one.extras for one in map(Requirement, texts)}
        if extra != "dev" and named.keys() <= size.keys():
            added = reached({**direct, **named}, installed) - every
            lines.append(f"| {extra} | {', '.join(named)} | {sum(size[one] for one in added) / 1e6:.1f} |")
    given.into.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

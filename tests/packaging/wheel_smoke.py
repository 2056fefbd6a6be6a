"""The wheel as a stranger meets it: built, installed where no repository is, run from an empty folder to two subsets.

`make test-wheel` runs it (a minute or two); so does continuous integration. Needs uv and a package registry.
"""

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image, ImageDraw

REPOSITORY = Path(__file__).parents[2]
CAPTIONS = (
    "a red square on a white wall",
    "two blue circles side by side",
    "a man rides a brown horse on the beach",
    "happiness is a choice",
    "a small dog sleeps on a green sofa",
    "the best deals of the season",
    "a woman in a yellow coat holds an umbrella",
    "an old boat tied to a wooden pier",
    "what a wonderful day",
    "three apples in a glass bowl",
    "a train crosses a stone bridge",
    "click here for more information",
)
COLOURS = ("red", "green", "blue", "orange", "purple", "black")
SUBSETS = {"texts": ("icc", 3), "photos": ("clip", 3)}  # pool → policy and least size of its subset, of 12 samples


def main() -> None:
    """Build, install, run, check. Raises on the first thing that does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uv", default="uv", help="the uv to build and install with")
    uv = parser.parse_args().uv
    with tempfile.TemporaryDirectory(prefix="curation-wheel-") as folder:
        root = Path(folder)
        wheel = build(uv, root / "dist")
        binaries = install(uv, wheel, root / "environment")
        check_pools(binaries, root / "empty")
    print("wheel: built, installed and run from an empty folder to the subsets of two pools")


def build(uv: str, out: Path) -> Path:
    """The wheel, made from the source distribution as a registry would get it."""
    run(uv, "build", "--quiet", "--out-dir", out, REPOSITORY, cwd=REPOSITORY)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    package = {"curation_assets", wheel.name.partition("-py3")[0] + ".dist-info"}
    assert tops == package, f"the wheel holds {sorted(tops)}"
    print(f"wheel: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB")
    return wheel


def install(uv: str, wheel: Path, environment: Path) -> Path:
    """Folder of the commands of a fresh environment with the wheel and what it declares, nothing for development."""
    run(uv, "venv", "--quiet", "--python", sys.executable, environment, cwd=REPOSITORY)
    python = environment / "bin" / "python"
    locked = REPOSITORY / "requirements.lock"
    run(uv, "pip", "install", "--quiet", "--python", python, "--constraint", locked, wheel, cwd=environment)
    return environment / "bin"


def check_pools(binaries: Path, folder: Path) -> None:
    """A pool of captions and a pool of photographs, both to their subsets, in `folder`."""
    folder.mkdir()
    curate = binaries / "curate"
    where = run(binaries / "python", "-c", "import curation_assets; print(curation_assets.__file__)", cwd=folder)
    assert Path(where.strip()).is_relative_to(binaries.parent), f"the wheel's environment imports {where}"
    captions = folder / "captions.csv"
    pl.DataFrame({"caption": CAPTIONS}).write_csv(captions)
    draw_photos(folder / "photos" / "00000.tar")
    for pool, source in (("texts", captions), ("photos", folder / "photos")):
        policy, least = SUBSETS[pool]
        run(curate, "pool", "add", pool, source, cwd=folder)
        run(curate, "run", pool, cwd=folder)
        subset = folder / "data" / "work" / pool / "filtered" / "subsets" / f"{policy}.npy"
        assert subset.is_file(), f"{pool}: no subset {subset}; there are {sorted(folder.rglob('*.npy'))}"
        ids = np.load(subset)
        assert least <= len(ids) < len(CAPTIONS), f"{pool}: {policy} keeps {len(ids)} of {len(CAPTIONS)}"
        kept = "".join(f"{half:016x}" for half in ids[0].tolist())
        reason = run(curate, "why", kept, "--pool", pool, cwd=folder)
        assert "kept" in reason, f"{pool}: why {kept} prints {reason}"
        exported = folder / "exports" / pool
        run(curate, "export", "npy", policy, "--pool", pool, "--out", exported, cwd=folder)
        (copy,) = exported.glob("*.npy")
        assert np.array_equal(np.load(copy), ids), f"{pool}: the export holds other ids than {subset}"
        print(f"wheel: pool {pool}, {policy} keeps {len(ids)} of {len(CAPTIONS)}")
    page = folder / "page.html"
    run(curate, "look", folder / "photos", "--no-open", "--into", page, cwd=folder)
    assert "clip_score" in page.read_text(encoding="utf-8"), f"{page} shows no clip_score"
    extra = [curate, "score", "complexity_action", captions, "--out", folder / "scored.csv"]
    refused = subprocess.run([str(word) for word in extra], cwd=folder, capture_output=True, text=True)
    assert refused.returncode == 1, f"without its extra: {refused}"
    assert "curation_assets[texts]" in refused.stderr, f"without its extra: {refused}"


def draw_photos(tar: Path) -> None:
    """One JPEG of coloured shapes per caption, as img2dataset lays them down."""
    tar.parent.mkdir()
    with tarfile.open(tar, "w") as archive:
        for number, caption in enumerate(CAPTIONS):
            image = Image.new("RGB", (256, 224), "white")
            draw = ImageDraw.Draw(image)
            for shape in range(number % 4 + 1):
                left = 20 + 55 * shape
                box = (left, 40 + 9 * number, left + 45, 85 + 9 * number)
                (draw.rectangle if number % 2 else draw.ellipse)(box, fill=COLOURS[(number + shape) % len(COLOURS)])
            jpeg = io.BytesIO()
            image.save(jpeg, "JPEG", quality=90)
            for suffix, content in (("jpg", jpeg.getvalue()), ("txt", caption.encode())):
                entry = tarfile.TarInfo(f"{number:09d}.{suffix}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of a command that must succeed; nothing of this checkout is in its environment."""
    dropped = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "DAGSTER_HOME")  # bytecode: it starts ten times
    kept = {k: v for k, v in os.environ.items() if k not in dropped}
    environment = {k: v for k, v in kept.items() if not k.startswith("CURATION_")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed in {cwd} ({done.returncode}):\n{done.stdout}\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()

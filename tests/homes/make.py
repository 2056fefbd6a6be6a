"""Make a small home with the `curate` of any version and pack it: one per format on disk, when a format comes.

    PATH=/that/version/.venv/bin:$PATH python tests/homes/make.py format_1

40 drawn scenes and 20 drawn pictures of two tars, both run; a release, an export, one sample taken down. Only commands
are used, so that an older checkout makes the home as its users did. The home's own place is in its records, as with a
home that was moved. All are in one archive, since they have most of their bytes in common.
"""

import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

from tests.support.tars import encoded, tar_of

SCENES = """name: scenes
kind: world
source: ''
columns: {caption: caption, url: url, uid: uid}
options: {size: 40, seed: 5, distil: false, downstream: false}
download: {timeout_seconds: 2.0, threads: 16}
shard_size: 20
profile: embedded
"""
LEFT_OUT = ("dagster", "logs", "tmp")  # records of runs: not the format
PACKED = Path(__file__).with_name("homes.tar.xz")
NOT_MADE = "downstream"  # stage whose tables are left out, as of a run without it: the reports are most of the bytes


def picture(number: int) -> bytes:
    """A drawn shape as PNG; every number another one."""
    image = Image.new("RGB", (48, 48), "white")
    colour = ("red", "green", "blue")[number % 3]
    ImageDraw.Draw(image).ellipse((4, 4, 14 + number, 14 + number), fill=colour)
    return encoded(image, "PNG")


def write_tar(path: Path, numbers: range) -> None:
    """Pictures with captions in webdataset's layout."""
    members = {}
    for number in numbers:
        colour = ("red", "green", "blue")[number % 3]
        meta = json.dumps({"url": f"http://pictures.example/{number}.png"}).encode()
        members[f"{number:04d}.png"] = picture(number)
        members[f"{number:04d}.txt"] = f"a {colour} ball, picture {number}".encode()
        members[f"{number:04d}.json"] = meta
    tar_of(path, members)


def make(home: Path, curate: list[str]) -> None:
    """A home as its users' commands make it."""

    def run(*words: str) -> None:
        subprocess.run([*curate, *words, "--home", str(home)], check=True)

    write_tar(home / "pictures" / "a.tar", range(10))
    write_tar(home / "pictures" / "b.tar", range(10, 20))
    (home / "pools").mkdir()
    (home / "pools" / "scenes.yaml").write_text(SCENES)
    run("pool", "add", "pictures", str(home / "pictures"), "--profile", "embedded")
    run("run", "scenes")
    run("run", "pictures")
    run("release", "create", "icc", "first", "--pool", "pictures")
    run("export", "webdataset", "icc", "--pool", "pictures", "--out", str(home / "exported"))
    run("takedown", "add", "--url", "http://pictures.example/3.png")
    run("takedown", "apply")


def pack(home: Path, name: str) -> None:
    """Adds the home to the archive as `name`, without the records of runs and the stage of reports."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as tar:
        if PACKED.is_file():
            with tarfile.open(PACKED) as before:
                for member in before:
                    if member.name.split("/")[0] != name:
                        tar.addfile(member, before.extractfile(member) if member.isfile() else None)
        for path in sorted(home.rglob("*")):
            parts = path.relative_to(home).parts
            if (path.is_file() or path.is_symlink()) and parts[0] not in LEFT_OUT and NOT_MADE not in parts:
                tar.add(path, f"{name}/{'/'.join(parts)}", recursive=False)
    PACKED.write_bytes(packed.getvalue())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        home.mkdir()
        make(home, sys.argv[2:] or ["curate"])
        pack(home, sys.argv[1])
    print(f"{PACKED}: {PACKED.stat().st_size:,} bytes")

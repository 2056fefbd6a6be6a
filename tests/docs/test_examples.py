"""The scripts of examples/ run whole, one after the other, and print what they say."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_blocks import pictures
from tests.support.paths import REPOSITORY, SHARED_DATA

EXAMPLES = REPOSITORY / "examples"


def printed(name: str, *arguments: object) -> str:
    """What an example prints on standard output."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout


def stated(name: str) -> str:
    output: str = runpy.run_path(str(EXAMPLES / name), run_name="example")["PRINTED"]
    return output


@pytest.mark.slow
def test_photographs_become_a_training_set_and_one_is_taken_down(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, (image, caption) in enumerate(pictures(24)):
        image.convert("RGB").save(photos / f"{number:03d}.jpg", quality=90)
        (photos / f"{number:03d}.txt").write_text(caption, encoding="utf-8")
    work = tmp_path / "work"
    first = printed("photographs_to_training_set.py", photos, work)
    second = printed("answer_a_takedown.py", photos / "003.jpg", work / "home", "mine")
    assert second == stated("answer_a_takedown.py")
    expected = stated("photographs_to_training_set.py")
    if (SHARED_DATA / "photos" / "captions.parquet").is_file():
        assert first == expected
    else:  # of drawn scenes the values are others
        assert first.count("\n") == expected.count("\n")


def test_examples_are_of_a_length_that_people_read() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert lengths
    assert all(30 <= length <= 80 for length in lengths.values()), lengths
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert [name for name in lengths if name not in readme] == []

"""The scripts of examples/ run whole and print what they say."""

import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import polars as pl
import pytest

from curation_assets.world.pool import plant_pool
from tests.docs.test_blocks import pictures
from tests.support.dagster_projects import environment_of_projects
from tests.support.paths import REPOSITORY, SHARED_DATA
from tests.support.scene_tars import write_pairs, write_scenes

EXAMPLES = REPOSITORY / "examples"


def printed(name: str, *arguments: object, environment: Mapping[str, str] | None = None) -> str:
    """What an example prints on standard output."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, arguments)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def stated(name: str) -> str:
    output: str = runpy.run_path(str(EXAMPLES / name), run_name="example")["PRINTED"]
    return output


def check_of_photographs(name: str, found: str) -> None:
    """Where photographs are not at hand, drawn scenes stand in for them, whose values are others."""
    expected = stated(name)
    if (SHARED_DATA / "photos" / "captions.parquet").is_file():
        assert found == expected
    else:
        assert found.count("\n") == expected.count("\n")


def photographs(folder: Path, count: int) -> Path:
    """KEY.jpg with KEY.txt."""
    folder.mkdir(parents=True)
    for number, (image, caption) in enumerate(pictures(count)):
        image.convert("RGB").save(folder / f"{number:03d}.jpg", quality=90)
        (folder / f"{number:03d}.txt").write_text(caption, encoding="utf-8")
    return folder


@pytest.mark.slow
def test_photographs_become_a_training_set_and_one_is_taken_down(tmp_path: Path) -> None:
    photos, work = photographs(tmp_path / "photos", 24), tmp_path / "work"
    first = printed("photographs_to_training_set.py", photos, work)
    second = printed("answer_a_takedown.py", photos / "003.jpg", work / "home", "mine")
    assert second == stated("answer_a_takedown.py")
    check_of_photographs("photographs_to_training_set.py", first)


#: What the server's owner forbids, by path; besides, robots.txt forbids all of /private/.
FORBIDDING = {"/002.jpg": ("X-Robots-Tag", "noai"), "/003.jpg": ("Content-Usage", "train-ai=n")}


class Site(SimpleHTTPRequestHandler):
    def end_headers(self) -> None:
        if self.path in FORBIDDING:
            self.send_header(*FORBIDDING[self.path])
        super().end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Address of a server of the files in `folder`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_a_table_of_addresses_becomes_a_release_without_those_who_opted_out(tmp_path: Path) -> None:
    site = photographs(tmp_path / "site", 24)
    (site / "private").mkdir()
    for number in (0, 1):
        (site / f"{number:03d}.jpg").rename(site / "private" / f"{number:03d}.jpg")
    (site / "004.jpg").unlink()
    (site / "robots.txt").write_text("User-agent: *\nDisallow: /private/\n")
    paths = [f"{'private/' if number < 2 else ''}{number:03d}.jpg" for number in range(24)]
    captions = [(site / f"{number:03d}.txt").read_text(encoding="utf-8") for number in range(24)]
    with served(site) as address:
        table = tmp_path / "urls.parquet"
        pl.DataFrame({"url": [f"{address}/{path}" for path in paths], "caption": captions}).write_parquet(table)
        found = printed("url_table_to_release.py", table, tmp_path / "work", "127.0.0.1")
    assert found == stated("url_table_to_release.py")


@pytest.mark.infra
@pytest.mark.timeout(1200)
def test_a_pool_in_a_project_of_ones_own_grows_by_a_tar(tmp_path: Path) -> None:
    tars = [tmp_path / f"{number:05d}.tar" for number in range(2)]
    for number, tar in enumerate(tars):
        write_pairs(tar, pictures(24)[12 * number : 12 * number + 12], 12 * number)
    environment = environment_of_projects(tmp_path / "site")
    found = printed("growing_pool_in_dagster.py", tmp_path / "work", *tars, environment=environment)
    check_of_photographs("growing_pool_in_dagster.py", found)


def test_what_the_example_lacks_is_named_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    main = runpy.run_path(str(EXAMPLES / "growing_pool_in_dagster.py"), run_name="example")["main"]
    with pytest.raises(
        SystemExit, match=r"no command create-dagster or dg .* pip install create-dagster dagster-dg-cli"
    ):
        main(tmp_path / "work", [tmp_path / "0.tar"])
    assert not (tmp_path / "work").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_policies_are_compared_by_what_a_model_learns_of_their_subsets(tmp_path: Path) -> None:
    """Numbers may move a little from processor to processor; order and readings do not."""
    write_scenes(tmp_path / "pool" / "00000.tar", plant_pool(600, seed=5))
    trusted = [scene for scene in plant_pool(400, seed=6) if scene.kind == "clean"][:60]
    write_scenes(tmp_path / "trusted" / "test" / "00000.tar", trusted)
    folders = (tmp_path / name for name in ("pool", "trusted", "work"))
    found = printed("compare_policies_by_training.py", *folders, "embedded")
    number = re.compile(r"(?<=[ (−])0?\.\d+")
    expected = stated("compare_policies_by_training.py")
    assert number.sub("N", found) == number.sub("N", expected)
    means = [[float(mean) for mean in re.findall(r"pairs: (\S+)", text)] for text in (found, expected)]
    assert means[0] == pytest.approx(means[1], abs=0.1)


def test_examples_are_of_a_length_that_people_read() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert lengths
    assert all(30 <= length <= 80 for length in lengths.values()), lengths
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert [name for name in lengths if name not in readme] == []

"""What the README and the pages say can be done."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import polars as pl
import pytest
import typer
import yaml
from PIL import Image
from typer.testing import CliRunner

from curation_assets.cli import app
from curation_assets.stores.catalog import rebuild_catalog
from curation_assets.world.pool import PlantedSample, plant_pool, render
from tests.conftest import TINY_OPTIONS, FinishedPool
from tests.support.paths import REPOSITORY, SHARED_DATA
from tests.support.photos import read_photos
from tests.support.scene_tars import write_pairs

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PAGES = [
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
    *sorted(path for path in (REPOSITORY / "docs").rglob("*.md") if path.name != "tutorial.md"),
]
MAX_WORDS, MAX_WIDTH = 900, 100


def command_lines(text: str) -> list[str]:
    """Every `curate …` of a page: lines of code blocks without their comments, and what stands between backticks."""
    blocks = re.findall(r"```(?:bash)?\n(.*?)```", text, flags=re.DOTALL)
    lines = [line for block in blocks for line in re.findall(r"^curate ([^#\n]+)", block, flags=re.MULTILINE)]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return lines + re.findall(r"`curate ([^`]+)`", prose)


LINES = sorted({" ".join(line.split()) for page in PAGES for line in command_lines(page.read_text(encoding="utf-8"))})


def test_both_commands_are_named_and_ci_calls_the_test_command() -> None:
    assert "make demo" in README
    assert "make test" in README
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()


def test_the_readme_is_short_and_fits_a_screen() -> None:
    assert len(README.split()) < MAX_WORDS
    assert [line for line in README.splitlines() if len(line) > MAX_WIDTH] == []


def test_every_make_target_in_the_readme_exists() -> None:
    named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", README, flags=re.MULTILINE))
    assert {"demo", "test"} <= named
    for target in named:
        dry = subprocess.run(["make", "-n", target], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, (target, dry.stderr)


@pytest.mark.parametrize("line", LINES)
def test_every_curate_line_of_the_pages_parses(line: str) -> None:
    words = re.split(r" (?=-|\.\.\.)", line)[0].split()
    group = typer.main.get_command(app)
    command: list[str] = []
    while words and words[0] in getattr(group, "commands", {}):
        group = group.commands[words[0]]  # type: ignore[attr-defined]
        command.append(words.pop(0))
    assert command, f"no command in {line!r}"
    shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, line
    for option in re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", line):
        assert option in shown.output, (option, line)


def test_every_query_in_the_readme_runs(finished_pool: FinishedPool) -> None:
    queries = re.findall(r"```sql\n(.*?)```", README, flags=re.DOTALL)
    assert queries
    catalog = rebuild_catalog(finished_pool.settings.home)
    with duckdb.connect(str(catalog), read_only=True) as connection:
        for query in queries:
            for statement in filter(str.strip, query.replace("scenes.", "tiny.").split(";")):
                assert connection.sql(statement).fetchall() is not None


# -- every block, in order, on a fresh home


def pictures(count: int) -> list[tuple[Image.Image, str]]:
    """Photographs with their captions where they are at hand, else drawn scenes."""
    if (SHARED_DATA / "photos" / "captions.parquet").is_file():
        captions = dict(
            pl.read_parquet(SHARED_DATA / "photos" / "captions.parquet").select("key", "caption").iter_rows()
        )
        return [(photo, captions[key]) for key, photo in read_photos(count).items()]
    scenes: list[PlantedSample] = [scene for scene in plant_pool(4 * count, seed=3) if scene.kind == "clean"]
    return [(render(scene), scene.caption) for scene in scenes[:count]]


class Reader:
    """Who types what the page says, in an empty folder, with small data where the page names data."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "data"
        self.environment = {
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": str(REPOSITORY),
            "CURATION_HOME": str(self.home),
            "BROWSER": "true",
        }
        samples = pictures(2 * 18)  # the page runs shards 3 to 17
        for shard in range(18):
            write_pairs(folder / "my_folder" / f"{shard:05d}.tar", samples[2 * shard : 2 * shard + 2], 2 * shard)
        write_pairs(folder / "00000.tar", samples[:4])
        write_pairs(folder / "two_tars" / "00000.tar", samples[:8])
        write_pairs(folder / "two_tars" / "00001.tar", samples[8:16], 8)
        captions = [caption for _, caption in samples[:20]]
        pl.DataFrame({"caption": captions}).write_csv(folder / "captions.csv")
        pl.DataFrame({"caption": captions, "url": [f"http://host.example/{n}.jpg" for n in range(20)]}).write_parquet(
            folder / "urls.parquet"
        )
        (folder / "captions.txt").write_text("\n".join(captions) + "\n", encoding="utf-8")
        pl.DataFrame({"caption": captions, "rating": [n % 4 for n in range(20)]}).write_csv(
            folder / "rated.tsv", separator="\t"
        )
        samples[0][0].save(folder / "dog.jpg")
        # A checkout brings this declaration, of 2,000 scenes.
        shipped = yaml.safe_load((REPOSITORY / "data" / "pools" / "scenes.yaml").read_text(encoding="utf-8"))
        shipped["options"] |= {"size": 120, **TINY_OPTIONS}
        (self.home / "pools").mkdir(parents=True)
        (self.home / "pools" / "scenes.yaml").write_text(yaml.safe_dump(shipped), encoding="utf-8")

    def words(self, line: str) -> list[str]:
        """The words of a line, with what the page leaves to the reader filled in."""
        sample = next(iter(self.samples()["sample_id"]), "") if "ID" in line else ""
        filled = {"DIR": "out", "ID": sample, "URL": "http://host.example/1.jpg", "POOL": "scenes"}
        words = [filled.get(word, word) for word in shlex.split(line, comments=True)]
        return [word.replace("/data/", f"{self.folder}/") for word in words]

    def samples(self) -> pl.DataFrame:
        return pl.read_parquet(self.home / "work" / "scenes" / "raw" / "samples" / "*" / "*.parquet")

    def bash(self, block: str) -> list[str]:
        """Run the lines, and the commands that their comments name; what failed."""
        failed = []
        for line in block.splitlines():
            for command in [line, *re.findall(r"(?<=: )curate [a-z ]+$", line)]:
                words = self.words(command)
                if words == ["make", "test"]:  # which runs this
                    continue
                if words[0] == "make":
                    words = ["make", "-C", str(REPOSITORY), "-o", ".venv/.installed", *words[1:]]
                status, said = self.explore(words) if words[1] == "explore" else self.run(words)
                if status != 0:
                    failed.append(f"{command}\n  status {status}: {said[-600:]}")
        return failed

    def run(self, words: list[str]) -> tuple[int, str]:
        done = subprocess.run(words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def explore(self, words: list[str]) -> tuple[int, str]:
        """A command that serves until Ctrl+C: pressed when it has printed its address."""

        def listen() -> None:  # a test that was started in the background hands on that Ctrl+C is ignored
            signal.signal(signal.SIGINT, signal.SIG_DFL)

        with subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            preexec_fn=listen,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            said = ""
            timer = threading.Timer(600, process.kill)  # whatever happens, it ends
            timer.start()
            for line in process.stdout:
                said += line
                if line.startswith("http://127.0.0.1:"):
                    process.send_signal(signal.SIGINT)
            timer.cancel()
            return process.wait(), said

    def python(self, block: str) -> list[str]:
        """Run a block of Python, another way of doing the same, in a home of its own."""
        text = block.replace("/data/my_folder", f"{self.folder}/two_tars").replace('home="data"', 'home="from_python"')
        chosen = "sample_id = pool.table('raw/samples')['sample_id'][0]\n"
        before, mark, after = text.partition("pool.why(sample_id)")
        status, said = self.run([sys.executable, "-c", before + chosen + mark + after if mark else text])
        return [f"{block}\n  status {status}: {said[-600:]}"] if status else []

    def sql(self, block: str) -> list[str]:
        with duckdb.connect(str(self.home / "catalog.duckdb"), read_only=True) as connection:
            return [] if connection.sql(block).fetchall() else [f"{block}\n  gives no row"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_block_of_the_readme_runs_in_order_on_a_fresh_home(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    blocks = re.findall(r"```(\w*)\n(.*?)```", README, flags=re.DOTALL)
    assert {language for language, _ in blocks} == {"bash", "python", "sql"}
    failed = [line for language, block in blocks for line in getattr(reader, language)(block)]
    assert not failed, "\n".join(failed)

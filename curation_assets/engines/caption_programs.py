"""The Java programs of caption evaluation that pycocoevalcap brings: Penn Treebank tokeniser, METEOR 1.5, SPICE 1.0.

They are called here and not by that package's classes, which write their temporary files beside the package, wait
without a limit, and load METEOR anew for every system. Results are equal (tests). Java is found on the PATH.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from curation_assets.core.errors import ProgramUnavailableError
from curation_assets.core.roles import Texts
from curation_assets.numeric.metrics.captioning import DROPPED_TOKENS, check_captions

OLDEST_JAVA = 8
#: Java 15 removed the JavaScript engine by which SPICE writes its results.
FIRST_JAVA_WITHOUT_JAVASCRIPT = 15
#: SPICE's cache of parses reads private fields of these; Java 9 to 15 warn, later ones refuse unless they are opened.
_OPENED = ("java.lang", "java.math", "java.net", "java.text", "java.util", "java.util.concurrent")
_SPICE_MODELS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
_INSTALL_JAVA = "install a Java runtime (Debian: default-jre-headless) and have `java` on the PATH"
#: What a line break is to the tokeniser, besides the line feed.
_LINE_BREAKS = re.compile("[\n\r\x0b\x0c\u2028\u2029]")

_STARTING_SECONDS = 180.0  # a virtual machine and the tables of its program, on a slow and busy disk
_TOKENISED_PER_SECOND = 500  # texts; measured: 25,000
_METEOR_SECONDS = 0.5  # per image; measured: some 3 ms
_SPICE_SECONDS = 5.0  # per caption; the parser is the slow part


@dataclass(frozen=True)
class Java:
    """A Java runtime."""

    path: str
    version: str  # as it prints it: 1.8.0_292, 17.0.15
    release: int  # 8, 17


def find_java() -> Java:
    """The `java` of the PATH. Raises ProgramUnavailableError where there is none, or none that is new enough."""
    path = shutil.which("java")
    if path is None:
        raise ProgramUnavailableError(f"no Java on the PATH; {_INSTALL_JAVA}")
    java = _java_at(path)
    if java.release < OLDEST_JAVA:
        raise ProgramUnavailableError(
            f"{path} is Java {java.version}, expected {OLDEST_JAVA} or later; {_INSTALL_JAVA}"
        )
    return java


@cache
def _java_at(path: str) -> Java:
    try:
        done = subprocess.run([path, "-version"], capture_output=True, timeout=_STARTING_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProgramUnavailableError(f"{path} does not run ({error}); {_INSTALL_JAVA}") from error
    printed = (done.stderr + done.stdout).decode(errors="replace")
    version = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', printed)
    if done.returncode or version is None:
        raise ProgramUnavailableError(f"{path} does not tell its version: {_last_line(printed)}; {_INSTALL_JAVA}")
    return Java(path, version[1], int(version[2]))


def treebank_tokens(texts: Texts) -> list[str]:
    """Tokens of each text joined by blanks: lower case, punctuation dropped (formulas.md §10.1).

    One process for all. A blank line follows every text, so that its tokens do not depend on the next one.
    Raises ProgramUnavailableError where Java is missing or the tokeniser fails.
    """
    lines = [_LINE_BREAKS.sub(" ", text).strip() for text in texts]
    distinct = [line for line in dict.fromkeys(lines) if line]
    if not distinct:
        return [""] * len(lines)
    java, jar = find_java(), _package_file("tokenizer", "stanford-corenlp-3.4.1.jar")
    with tempfile.TemporaryDirectory(prefix="curate-ptb-") as folder:
        source = Path(folder) / "captions.txt"
        source.write_text("".join(f"{line}\n\n" for line in distinct), encoding="utf-8", errors="replace")
        printed = _run(
            "the Penn Treebank tokeniser",
            [
                java.path,
                "-Xmx1G",
                "-Dfile.encoding=UTF-8",
                "-cp",
                str(jar),
                "edu.stanford.nlp.process.PTBTokenizer",
                "-preserveLines",
                "-lowerCase",
                "-encoding",
                "UTF-8",
                source.name,
            ],
            Path(folder),
            _STARTING_SECONDS + len(distinct) / _TOKENISED_PER_SECOND,
        )
    rows = printed.split("\n")[: 2 * len(distinct) : 2]
    if len(rows) != len(distinct):
        raise ProgramUnavailableError(
            f"the Penn Treebank tokeniser wrote {len(rows)} lines for {len(distinct)} texts; one of them holds a "
            "character that it takes for a line break"
        )
    tokens = {
        line: " ".join(token for token in row.rstrip().split(" ") if token not in DROPPED_TOKENS)
        for line, row in zip(distinct, rows, strict=True)
    }
    return [tokens.get(line, "") for line in lines]


class Meteor:
    """METEOR 1.5 as one running process; it loads for some seconds, then scores any number of systems."""

    def __init__(self, process: "subprocess.Popen[str]", errors: Any) -> None:
        self.process = process
        self.errors = errors  # the file that its error stream goes to

    def score(self, references: Sequence[Sequence[str]], candidates: Texts) -> tuple[float, np.ndarray]:
        """The score of the set, and (N,) per image, in [0, 1]. References and candidates are tokenised.

        `|||` parts METEOR's fields and is taken out of the texts. An empty candidate scores 0.
        Raises ProgramUnavailableError where METEOR ends or exceeds its time, ValueError for unequal or empty input.
        """
        check_captions(references, candidates)
        questions = [
            " ||| ".join(["SCORE", *map(_without_bars, texts), _without_bars(candidate)])
            for texts, candidate in zip(references, candidates, strict=True)
        ]
        seconds = _STARTING_SECONDS + _METEOR_SECONDS * len(questions)
        watchdog = threading.Timer(seconds, self.process.kill)
        watchdog.start()
        try:
            statistics = [self._answer(question) for question in questions]
            values = [float(self._answer(" ||| ".join(["EVAL", *statistics])))]
            values += [float(self._answer(None)) for _ in candidates]
        except (OSError, ValueError) as error:
            raise ProgramUnavailableError(f"METEOR ended early ({self._why(seconds)})") from error
        finally:
            watchdog.cancel()
        return values[-1], np.array(values[:-1])  # one value per image, then that of the set

    def _answer(self, question: str | None) -> str:
        """The next line that METEOR writes, after `question` if there is one. Raises ValueError at its end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if question is not None:
            self.process.stdin.write(f"{question}\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise ValueError("no further line")
        return line.strip()

    def _why(self, seconds: float) -> str:
        self.process.kill()
        self.process.wait()
        self.errors.seek(0)
        return _last_line(self.errors.read().decode(errors="replace"), f"no answer within {seconds:.0f} s")


@contextmanager
def running_meteor() -> Iterator[Meteor]:
    """METEOR 1.5 with the options of COCO's evaluation; its process ends with the block.

    Raises ProgramUnavailableError where Java is missing.
    """
    java, jar = find_java(), _package_file("meteor", "meteor-1.5.jar")
    with tempfile.TemporaryDirectory(prefix="curate-meteor-") as folder, tempfile.TemporaryFile(dir=folder) as errors:
        process = subprocess.Popen(
            [java.path, "-Xmx2G", "-Dfile.encoding=UTF-8", "-jar", str(jar), "-", "-", "-stdio", "-l", "en", "-norm"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            errors="replace",
        )
        try:
            yield Meteor(process, errors)
        finally:
            process.kill()
            process.communicate()


def spice(
    references: Sequence[Sequence[str]], systems: Mapping[str, Sequence[str]]
) -> dict[str, tuple[float, np.ndarray]]:
    """SPICE F of each system: of the set (the mean) and per image (N,), NaN where it is undefined.

    Of tokenised texts. The references are parsed once for all systems. Raises ProgramUnavailableError, before anything
    is started, where Java, the parser's models or Java's JavaScript engine are missing.
    """
    for candidates in systems.values():
        check_captions(references, candidates)
    java, jars = find_java(), _spice_jars()
    _check_spice(java)
    captions = sum(map(len, references))
    opened = [] if java.release < 9 else [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED]
    scores = {}
    with tempfile.TemporaryDirectory(prefix="curate-spice-") as name:
        folder = Path(name)
        (folder / "cache").mkdir()  # of parses, which later systems read
        for system, candidates in systems.items():
            rows = [
                {"image_id": i, "test": candidate, "refs": list(texts)}
                for i, (texts, candidate) in enumerate(zip(references, candidates, strict=True))
            ]
            (folder / "input.json").write_text(json.dumps(rows), encoding="utf-8")
            _run(
                "SPICE",
                [
                    java.path,
                    "-Xmx8G",
                    "-Dfile.encoding=UTF-8",
                    *opened,
                    "-cp",
                    os.pathsep.join(map(str, jars)),
                    "edu.anu.spice.SpiceScorer",
                    "input.json",
                    "-cache",
                    "cache",
                    "-out",
                    "output.json",
                    "-silent",
                ],
                folder,
                _STARTING_SECONDS + _SPICE_SECONDS * (captions + len(rows)),
            )
            values = _spice_values(folder / "output.json", len(rows))
            scores[system] = (float(values.mean()), values)
    return scores


def _check_spice(java: Java) -> None:
    library = _package_file("spice", "lib")
    lacks = []
    missing = [name for name in _SPICE_MODELS if not (library / name).is_file()]
    if missing:
        lacks.append(
            f"SPICE needs {' and '.join(missing)} in {library}; with a connection, python -c 'from "
            "pycocoevalcap.spice.get_stanford_models import get_stanford_models; get_stanford_models()' fetches them, "
            "or copy them there from stanford-corenlp-full-2015-12-09.zip"
        )
    if java.release >= FIRST_JAVA_WITHOUT_JAVASCRIPT and not list(library.glob("nashorn-core-*.jar")):
        lacks.append(
            f"SPICE writes its results with the JavaScript engine that Java 15 removed, and {java.path} is Java "
            f"{java.version}; put Java 8 to 14 first on the PATH, or nashorn-core and its asm jars in {library}"
        )
    if lacks:
        raise ProgramUnavailableError(". ".join(lacks))


def _spice_jars() -> list[Path]:
    """SPICE, whose manifest names the jars of its folder lib, and a JavaScript engine that somebody added to them."""
    library = _package_file("spice", "lib")
    added = sorted((*library.glob("nashorn-core-*.jar"), *library.glob("asm-*.jar")))
    return [_package_file("spice", "spice-1.0.jar"), *added]


def _spice_values(path: Path, count: int) -> np.ndarray:
    """F over all tuples of images 0 … count − 1 from SPICE's output; null, where it is undefined, is NaN. (count,)."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        of_image = {int(row["image_id"]): row["scores"]["All"]["f"] for row in rows}
        return np.array([of_image[i] for i in range(count)], dtype=np.float64)  # None → NaN
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ProgramUnavailableError(f"SPICE left no readable result ({error!r})") from error


def _package_file(*names: str) -> Path:
    """A file of the installed package pycocoevalcap. Raises ProgramUnavailableError where it is not there."""
    spec = find_spec("pycocoevalcap")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    for folder in folders:
        path = Path(folder, *names)
        if path.exists():
            return path
    raise ProgramUnavailableError(f"the package pycocoevalcap brings no {'/'.join(names)}; install pycocoevalcap 1.2")


def _run(program: str, command: list[str], folder: Path, seconds: float) -> str:
    """Standard output of a program that runs in `folder`. Raises ProgramUnavailableError where it fails."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise ProgramUnavailableError(f"{program} gave no result within {seconds:.0f} s") from error
    except OSError as error:
        raise ProgramUnavailableError(f"{program} cannot be started: {error}") from error
    if done.returncode:
        why = _last_line(done.stderr.decode(errors="replace"))
        raise ProgramUnavailableError(f"{program} failed with exit status {done.returncode}: {why}")
    return done.stdout.decode(errors="replace")


def _without_bars(text: str) -> str:
    return text.replace("|||", "").replace("  ", " ")


def _last_line(text: str, default: str = "it printed nothing") -> str:
    """The line that names the error: that of Java's exception where there is one, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "Exception" in line or "Error" in line]
    return (named or lines or [default])[-1][:300]

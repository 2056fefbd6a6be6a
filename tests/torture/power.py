"""A command whose writes a power cut undoes, one whose n-th file operation fails, and one that meets a damaged file;
each then run again.

What must come out is what comes out where nothing happens, or a sentence, and a home that `curate verify --repair`
heals.
"""

import ctypes
import errno
import os
import re
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import typer

from curation_assets.core.disk import refused_write
from curation_assets.core.errors import EXPECTED_ERRORS
from curation_assets.stores.temporary import TEMPORARY
from tests.support.disk_record import WHOLE_CUTS, Disk, File, State, recorded
from tests.support.paths import REPOSITORY
from tests.torture.faults.kills import begun
from tests.torture.faults.takedowns import denied
from tests.torture.homes import COMMANDS, ENVIRONMENT, SECONDS, TARS, Prepared, Undisturbed, call, differences
from tests.torture.points import name_of

#: Command → the state of a home that it begins from.
BEGINS = {"run": "declared", "take_down": "finished_denied", "release": "finished", "refit": "finished"}
#: The same where a file of theirs is damaged: what a disk leaves that reports as flushed what it has not.
MEETS = BEGINS | {"run": "released"}
DAMAGES = {
    "cut": lambda data: data[: len(data) // 2], "empty": lambda data: b"", "zeros": lambda data: bytes(len(data)),
}  # fmt: skip
#: Without a hash, since people or Dagster change them; or with nothing that another process would read.
UNHASHED = re.compile(r"^(dagster|pools|tars)/|/costs/|\.(lease|lock|writing)$")
SHIM = REPOSITORY / "tests" / "support" / "failing_io.c"
ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE)


@cache
def why_not() -> str | None:
    """Why power cuts and failing operations cannot be tried here; None where they can."""
    missing = [name for name in ("strace", "cc") if shutil.which(name) is None]
    if missing or sys.platform != "linux":
        return f"needs Linux, strace and a C compiler; missing: {', '.join(missing) or 'Linux'}"
    works = subprocess.run(["strace", "-f", "--seccomp-bpf", "true"], capture_output=True, check=False).returncode == 0
    return None if works else "strace may not trace here"


def built_shim(folder: Path) -> Path:
    """failing_io.c as a library for LD_PRELOAD. Of a process that forks (forking.py), before its first fork."""
    shim = folder / "failing_io.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(SHIM), "-ldl"], check=True)
    return shim


def undisturbed(home: Prepared, name: str) -> Undisturbed:
    """The command where nothing happens; makes the state that it begins from."""
    if name == "take_down":
        return denied(home)
    return begun(home, name, BEGINS[name])


# -- power cuts -------------------------------------------------------------------------------------------------------


def aside(home: Prepared) -> Callable[[str], bool]:
    """What another library flushes by itself: Dagster's SQLite."""
    return lambda path: path.startswith(f"{home.home}/dagster/")


def record(home: Prepared, name: str) -> Path:
    """Run the command once under strace; returns the log. The home is what it left."""
    home.restore(BEGINS[name])
    log = home.base / f"{name}.strace"
    program = f"from tests.torture.homes import COMMANDS; COMMANDS[{name!r}]({str(home.home)!r}, {TARS!r})"
    path = os.pathsep.join([str(REPOSITORY), *sys.path])
    environment = {**ENVIRONMENT, "PYTHONPATH": path, "LD_PRELOAD": "", "CURATION_DURABILITY": "full"}
    ended = recorded(program, log, environment)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return log


def disk(home: Prepared, name: str) -> Disk:
    """The disk before the command."""
    return Disk(home.home, home.base / BEGINS[name], aside(home))


def prefixes(disk: Disk, log: Path) -> Iterator[int]:
    """Replay a log; yields the number of every step of ours, once it is made."""
    number = 0
    for step in disk.replay(log):
        if not all(disk.aside(path) for path in step.split(" ")[1:]):
            number += 1
            yield number


def distinct(home: Prepared, name: str, log: Path, seed: int) -> dict[str, tuple[bool, int, int]]:
    """Signature → whether only a part of what was unflushed is there, prefix and number of the cut, of all states that
    the disk may hold after a cut at any prefix.

    Raises AssertionError where one of them holds a part of a file under its final name.
    """
    found: dict[str, tuple[bool, int, int]] = {}
    replayed = disk(home, name)
    for prefix in prefixes(replayed, log):
        for number, (kind, state) in enumerate(replayed.cuts(seed)):
            parts = torn(replayed, state)
            assert not parts, f"{kind} after step {prefix}, {replayed.last}: a part of {parts}"
            signature, which = replayed.signature(state), (kind not in WHOLE_CUTS, prefix, number)
            found[signature] = min(which, found.get(signature, which))
    return found


def missed(home: Prepared, replayed: Disk) -> list[str]:
    """What of the home the replayed record does not hold byte for byte: nothing escaped the recorder if it is empty."""
    replayed_state = replayed.state(lambda change: True, lambda file: 1)
    real = {str(path.relative_to(home.home)): path for path in home.home.rglob("*") if path.suffix != ".db-shm"}
    names = {one for one in replayed_state if not one.endswith(".db-shm")}  # SQLite's shared memory
    other = [
        one for one in names & real.keys()
        if real[one].is_file() and not real[one].is_symlink() and real[one].read_bytes() != replayed_state[one][1]
    ]  # fmt: skip
    return sorted([*names ^ real.keys(), *other])


def unflushed(replayed: Disk) -> list[str]:
    """Files of ours that a power cut would change or take now; without logs of costs, which may lag."""
    now = replayed.state(lambda change: True, lambda file: 1)
    kept = replayed.state(lambda change: False, lambda file: 0)
    names = {one for one in now | kept if not replayed.aside(f"{replayed.home}/{one}") and "costs/" not in one}
    return sorted(one for one in names if one not in now or one not in kept or now[one][1] != kept[one][1])


def torn(replayed: Disk, state: State) -> list[str]:
    """Files under their final names that a power cut left in part; without logs of costs, whose last line may be, and
    names of holders in locks."""
    return [
        path for path, (node, data) in state.items()
        if isinstance(node, File) and data != node.data and not re.search(r"costs/|\.tmp-|\.(lease|writing)$", path)
        and not replayed.aside(f"{replayed.home}/{path}")
    ]  # fmt: skip


# -- what comes of a try ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Came:
    """What came of a try: recovered, refused (with a sentence, not healed), healed by repair, or a fault of ours."""

    outcome: str
    words: str = ""


def attempt(home: str, pool: str, name: str, fault: list[int] | None, list_into: str = "") -> dict[str, Any]:
    """In a child: a command, of which the n-th operation fails with an error, for ever or not (`fault`); a file may
    list them."""
    counted = None
    if fault is not None:
        counted = ctypes.CDLL(None)
        counted.io_count.restype = ctypes.c_long
        if list_into:
            counted.list_io(os.open(list_into, os.O_CREAT | os.O_TRUNC | os.O_WRONLY))
        number, error, for_ever = fault
        counted.fail_io(home.encode(), f"{home}/dagster".encode(), ctypes.c_long(number), error, for_ever)
    words, is_sentence = None, True
    try:
        COMMANDS[name](home, pool)
    except (typer.Exit, SystemExit) as ended:
        code = getattr(ended, "exit_code", getattr(ended, "code", 1))
        words = f"ended with {code}" if code else None
    except BaseException as failed:  # judged as cli/common.py does
        traceback.print_exc()
        words = refused_write(failed, Path(home)) or f"{type(failed).__name__}: {failed}"
        is_sentence = isinstance(failed, EXPECTED_ERRORS) or not words.startswith(type(failed).__name__)
    count = 0
    if counted is not None:
        count = counted.io_count()
        counted.fail_io(b"", b"", ctypes.c_long(0), 0, 0)
    return {"words": words, "is_sentence": is_sentence, "count": count}


def began(home: Prepared, name: str, fault: list[int] | None = None, list_into: str = "") -> dict[str, Any]:
    given = {"home": str(home.home), "pool": home.pool, "name": name, "fault": fault, "list_into": list_into}
    ended = call(f"{__name__}:attempt", given, home.base, seconds=SECONDS)
    if ended.result is None:
        return {"words": f"died with {ended.status}: {ended.log[-2000:]}", "is_sentence": False, "count": 0}
    return {**ended.result, "log": ended.log}


def _wrong(home: Prepared, name: str, expected: Undisturbed) -> list[str]:
    """What of the home is not as where nothing happens."""
    try:
        found = differences(expected.facts, home.facts())
    except AssertionError as error:
        return [str(error)[-2000:]]
    if name == "take_down":
        found += [f"left of the canary: {one}" for one in home.traces()]
    return found


def _again(home: Prepared, name: str, expected: Undisturbed) -> Came:
    """The same command, to its end; where it refuses, `curate verify --repair` before it."""
    first = began(home, name)
    if first["words"] is None:
        wrong = _wrong(home, name, expected)
        return Came("wrong success", "; ".join(wrong)) if wrong else Came("recovered")
    if not first["is_sentence"]:
        return Came("no sentence", first["words"])
    repaired = began(home, "repair")
    second = began(home, name)
    wrong = _wrong(home, name, expected) if second["words"] is None else [second["words"]]
    words = f"{first['words']} | repair: {repaired['words']}"
    return Came("refused", f"{words} | {'; '.join(wrong)}") if wrong else Came("healed by repair", words)


def after_power_cut(home: Prepared, name: str, replayed: Disk, state: State, expected: Undisturbed) -> Came:
    """The home as the disk holds it, and the command again; numbers of processes are others' after a reboot."""
    home.restore(BEGINS[name])
    replayed.put(state)
    for path in sorted(home.home.rglob(".*"), reverse=True):  # what lies in a folder before the folder
        if not TEMPORARY.fullmatch(path.name):
            continue
        path.rename(path.with_name(re.sub(r"(\.tmp-[^-]+-)\d+-", r"\g<1>1-", path.name)))
    return _again(home, name, expected)


def operations(home: Prepared, name: str, error: int) -> list[str]:
    """What an error may fail in a command, in order: the name of the call, and the file without numbers and hashes."""
    home.restore(BEGINS[name])
    listed = home.base / f"{name}.operations"
    ended = began(home, name, [1 << 40, error, 0], str(listed))
    assert ended["words"] is None, ended
    lines = listed.read_text(encoding="utf-8").splitlines()
    assert len(lines) == ended["count"]
    return [re.sub(r"\d+|[0-9a-f]{8,}", "N", name_of(home.home / line, home.home)) for line in lines]


def after_failure(home: Prepared, name: str, fault: list[int], expected: Undisturbed) -> Came:
    """The command with a fault, then without. A success in spite of the fault must be a whole one."""
    home.restore(BEGINS[name])
    first = began(home, name, fault)
    if first["count"] < fault[0]:
        return Came("not reached", str(first["words"]))
    if first["words"] is None:
        wrong = _wrong(home, name, expected)
        return Came("wrong success", "; ".join(wrong)) if wrong else Came("did without it")
    came = _again(home, name, expected)
    return came if came.outcome != "recovered" else Came("recovered", first["words"])


# -- damaged files ----------------------------------------------------------------------------------------------------


def met(home: Prepared, name: str) -> Undisturbed:
    """What a home must be after the command; makes the state in which files are damaged."""
    return undisturbed(home, "release" if name == "run" else name)  # another run changes nothing


def damages(home: Prepared, name: str) -> list[tuple[str, str]]:
    """File of the home that a command meets, and how it is damaged: each in each way that changes it."""
    begin = home.base / MEETS[name]
    files = sorted(path for path in begin.rglob("*") if path.is_file() and not path.is_symlink())
    names = [(str(path.relative_to(begin)), path.read_bytes()) for path in files]
    return [
        (one, kind) for one, data in names if not UNHASHED.search(one)
        for kind, damaged in DAMAGES.items() if damaged(data) != data
    ]  # fmt: skip


def after_damage(home: Prepared, name: str, path: str, kind: str, expected: Undisturbed) -> Came:
    """A command where a file is damaged, and `curate verify`; then, unless both end well, `verify --repair` and again.

    A refusal names the file; so must `verify` where the command did not read it.
    """
    home.restore(MEETS[name])
    damaged = home.home / path
    damaged.write_bytes(DAMAGES[kind](damaged.read_bytes()))
    first, looked = began(home, name), began(home, "verify")
    unclear = [one["words"] for one in (first, looked) if one["words"] and not one["is_sentence"]]
    if unclear:
        return Came("no sentence", unclear[0])
    if looked["words"] is None and first["words"] is None:
        wrong = _wrong(home, name, expected)
        return Came("wrong success", "; ".join(wrong)) if wrong else Came("recovered")
    if damaged.name not in f"{first['words']} {looked['log']}":
        return Came("no sentence", f"nothing names {path}: {first['words']} | {looked['log'][-1000:]}")
    if looked["words"] is None:  # a file that another program gave
        return Came("refused", first["words"])
    repaired, again, last = began(home, "repair"), began(home, name), began(home, "verify")
    words = f"{first['words']} | repair: {repaired['words']} | then: {again['words']}"
    left = [again["words"]] if again["words"] else _wrong(home, name, expected)
    if not left and last["words"] is None:
        return Came("healed by repair", words)
    said = f"{repaired['words']} {repaired['log']}"
    if again["words"] is None and last["words"] is None:
        return Came("wrong success", f"{words} | {'; '.join(left)}")
    return Came("refused" if damaged.name in said else "no sentence", f"{words} | {said[-1000:]}")

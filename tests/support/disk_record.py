"""What a command writes, in order, as the kernel saw it (strace); and what a disk may hold after a power cut.

Modelled on ALICE (Pillai et al. 2014) and CrashMonkey (Mohan et al. 2018), stricter than ext4: bytes are on the disk
once their file was flushed (fsync), a name once its folder was; until then each may be there or not, a file's bytes in
part, and names of one folder in any order.
"""

import hashlib
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from curation_assets.stores.temporary import TEMPORARY
from tests.support.paths import REPOSITORY

CALLS = (
    "openat,open,creat,close,write,pwrite64,writev,pwritev,lseek,ftruncate,truncate,fallocate,fsync,fdatasync,rename,"
    "renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir,dup,dup2,dup3,fcntl,clone,"
    "clone3,fork,vfork,copy_file_range,sendfile"
)
_LINE = re.compile(r"^(\d+) +(.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\) += (-?\d+)")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FD = re.compile(r"^(-?\d+|AT_FDCWD)(?:<((?:\\x[0-9a-f]{2})*)[^>]*>)?")
#: Ways in which the power may go that leave all that was written, or only what was flushed.
WHOLE_CUTS = ("all written", "nothing unflushed")
_PROCESS = re.compile(r"(?<=costs/attempts)-[^/]+(?=\.jsonl$)")


@dataclass(eq=False)
class File:
    """Bytes, those of them that are on the disk, and for a link its target."""

    data: bytes = b""
    durable: bytes = b""
    link: str | None = None
    is_untouched: bool = False  # since before the command

    def kept(self, share: float) -> bytes:
        """What a power cut leaves: 0: what is flushed, 1: everything, between: that share of the bytes since."""
        if share in (0, 1) or self.data == self.durable:
            return self.data if share == 1 else self.durable
        start = len(self.durable) if self.data.startswith(self.durable) else 0
        return self.data[: start + int((len(self.data) - start) * share)]


@dataclass(eq=False)
class Folder:
    """Names, and those that are on the disk."""

    names: dict[str, "File | Folder"] = field(default_factory=dict)
    durable: dict[str, "File | Folder"] = field(default_factory=dict)


Node: TypeAlias = File | Folder
#: One step of a file system: (folder, name, what it is a name of from then on; None: of nothing), all or none of them.
Change: TypeAlias = tuple[tuple[Folder, str, Node | None], ...]
#: Path from the home → what is there.
State: TypeAlias = dict[str, tuple[Node, bytes]]


@dataclass
class _Open:
    """An open file: shared by its duplicates."""

    node: Node | None  # None: none of the home's
    place: int
    appends: bool
    path: str


class Disk:
    """A home as its programs see it and as its disk holds it. `aside`: paths that are on the disk at once."""

    def __init__(self, home: Path, begin: Path, aside: Callable[[str], bool]) -> None:
        """`begin`: the content of the home before the first step."""
        self.home, self.aside = home, aside
        self.root = Folder()
        self.pending: list[Change] = []
        self.last = ""  # the latest step, in words
        self._tables: dict[int, dict[int, _Open]] = {}
        self._unborn: list[tuple[int, bool]] = []
        self._load(self.root, begin)

    def _load(self, folder: Folder, path: Path) -> None:
        for one in sorted(path.iterdir()):
            if one.is_symlink():
                node: Node = File(link=str(one.readlink()), is_untouched=True)
            elif one.is_dir():
                node = Folder()
                self._load(node, one)
            else:
                data = one.read_bytes()
                node = File(data, data, is_untouched=True)
            folder.names[one.name] = folder.durable[one.name] = node

    # -- steps --------------------------------------------------------------------------------------------------------

    def _find(self, path: str) -> tuple[Folder, str] | None:
        """The folder, and the name in it; None for a path outside the home."""
        home = str(self.home)
        if not path.startswith(f"{home}/"):
            return None
        *above, name = os.path.normpath(path)[len(home) + 1 :].split("/")
        folder = self.root
        for at, part in enumerate(above):
            node = folder.names[part]
            if isinstance(node, File):
                assert node.link is not None, path
                return self._find(os.path.join(home, *above[:at], node.link, *above[at + 1 :], name))
            folder = node
        return folder, name

    def node(self, path: str) -> Node | None:
        """What a path names, links followed."""
        if os.path.normpath(path) == str(self.home):
            return self.root
        found = self._find(path)
        node = None if found is None else found[0].names.get(found[1])
        if isinstance(node, File) and node.link is not None:
            return self.node(os.path.join(os.path.dirname(path), node.link))
        return node

    def change(self, *changes: tuple[str, Node | None]) -> None:
        """Names get another meaning, all of them or none."""
        made = []
        for path, node in changes:
            found = self._find(path)
            if found is not None:
                made.append((*found, node))
                found[0].names.pop(found[1], None) if node is None else found[0].names.update({found[1]: node})
        self.pending.append(tuple(made))
        if all(self.aside(path) for path, _ in changes):
            self._settle(lambda change: change is self.pending[-1])

    def write(self, node: File, data: bytes, path: str) -> None:
        """Bytes of a file become others."""
        node.data, node.is_untouched = data, False
        if self.aside(path):
            node.durable = data

    def flush(self, node: Node) -> None:
        """Fsync."""
        if isinstance(node, File):
            node.durable = node.data
        else:
            self._settle(lambda change: any(folder is node for folder, _, _ in change))

    def _settle(self, settles: Callable[[Change], bool]) -> None:
        settled = [change for change in self.pending if settles(change)]
        self.pending = [change for change in self.pending if not settles(change)]
        for change in settled:
            _apply(change, lambda folder: folder.durable)
        over = {(id(folder), name) for change in settled for folder, name, _ in change}
        kept = []  # an older name of the same place cannot come back
        for change in self.pending:
            left = tuple(one for one in change if (id(one[0]), one[1]) not in over)
            kept += [left] if left else []
        self.pending = kept

    # -- what strace wrote --------------------------------------------------------------------------------------------

    def replay(self, log: Path) -> Iterator[str]:
        """Make every step of a log; yields after each that the home sees, its words."""
        begun: dict[int, str] = {}
        for line in log.open(encoding="ascii"):
            matched = _LINE.match(line)
            if matched is None:
                continue
            thread, text = int(matched[1]), matched[2]
            if text.endswith("<unfinished ...>"):
                begun[thread] = text.removesuffix("<unfinished ...>").rstrip()
                if text.startswith(("clone", "fork", "vfork")):
                    self._unborn.append((thread, "CLONE_FILES" in text))
                continue
            if text.startswith("<... "):
                text = begun.pop(thread) + text.partition("resumed>")[2]
            call = _CALL.match(text)
            if call is None or int(call[3]) < 0:
                continue
            self.last = ""
            self._make(thread, call[1], call[2], int(call[3]), text)
            if self.last:
                yield self.last

    def _table(self, thread: int) -> dict[int, _Open]:
        if thread not in self._tables:
            parent, shares = self._unborn.pop(0) if self._unborn else (thread, True)
            table = self._tables.setdefault(parent, {})
            self._tables[thread] = table if shares else dict(table)
        return self._tables[thread]

    def _make(self, thread: int, name: str, arguments: str, result: int, text: str) -> None:
        table = self._table(thread)
        if name in ("clone", "clone3", "fork", "vfork"):
            if result not in self._tables:
                self._unborn = [one for one in self._unborn if one[0] != thread]
                self._tables[result] = table if "CLONE_FILES" in arguments else dict(table)
            return
        strings = [bytes.fromhex(one.replace("\\x", "")) for one in _STRING.findall(arguments)]
        paths = _paths(name, arguments, strings)
        if paths is not None:
            self._named(name, paths, arguments, result, table)
            return
        fd = _FD.match(arguments)
        assert fd is not None, text[:200]
        number = int(fd[1])
        numbers = [int(one) for one in re.findall(r", (-?\d+)(?=,|$)", arguments)]
        if name == "close":
            table.pop(number, None)
        elif name in ("dup", "dup2", "dup3") or (name == "fcntl" and "F_DUPFD" in arguments):
            if number in table:
                table[result] = table[number]
        elif name in ("sendfile", "copy_file_range"):
            self._copied(name, arguments, result, table)
        elif number in table and table[number].node is not None and name != "fcntl":
            self._written(name, table[number], b"".join(strings)[:result], numbers, result)

    def _named(self, name: str, paths: list[str], arguments: str, result: int, table: dict[int, _Open]) -> None:
        path = paths[-1]
        inside = any(f"{one}/".startswith(f"{self.home}/") for one in paths)
        if name in ("open", "openat", "creat"):
            if not inside:
                table[result] = _Open(None, 0, False, path)
                return
            if "O_TMPFILE" in arguments:  # a file without a name, which no power cut leaves; `path` is its folder
                table[result] = _Open(File(), 0, False, path)
                return
            node = self.node(path)
            if node is None:
                node = File()
                self.change((path, node))
                self.last = f"create {path}"
            elif "O_TRUNC" in arguments and isinstance(node, File) and node.data:
                self.write(node, b"", path)
                self.last = f"truncate {path}"
            table[result] = _Open(node, 0, "O_APPEND" in arguments, path)
        elif inside:
            self.last = f"{name} {' '.join(paths)}"
            if name.startswith("rename"):
                found = self._find(paths[0])
                assert found is not None, "nothing comes into the home by a rename"
                self.change((paths[0], None), (path, found[0].names[found[1]]))
            elif name.startswith("link"):
                self.change((path, self.node(paths[0])))
            elif name.startswith("symlink"):
                self.change((path, File(link=paths[0])))
            elif name.startswith("mkdir"):
                self.change((path, Folder()))
            elif name == "truncate":
                node = self.node(path)
                assert isinstance(node, File)
                size = int(arguments.rpartition(", ")[2])
                self.write(node, node.data[:size].ljust(size, b"\0"), path)
            else:
                self.change((path, None))

    def _written(self, name: str, file: _Open, data: bytes, numbers: list[int], result: int) -> None:
        node = file.node
        assert node is not None
        if name == "lseek":
            file.place = result
            return
        self.last = f"{name} {file.path}"
        if name in ("fsync", "fdatasync"):
            self.flush(node)
            return
        assert isinstance(node, File)
        if name == "ftruncate":
            self.write(node, node.data[: numbers[0]].ljust(numbers[0], b"\0"), file.path)
        elif name == "fallocate":
            self.write(node, node.data.ljust(sum(numbers[-2:]), b"\0"), file.path)
        else:
            at = numbers[-1] if name.startswith("pw") else len(node.data) if file.appends else file.place
            old = node.data.ljust(at, b"\0")
            self.write(node, old[:at] + data + old[at + len(data) :], file.path)
            file.place = file.place if name.startswith("pw") else at + len(data)

    def _copied(self, name: str, arguments: str, result: int, table: dict[int, _Open]) -> None:
        first, second = [_FD.match(one.lstrip()) for one in _split(arguments) if _FD.match(one.lstrip())][:2]
        assert first is not None
        assert second is not None
        target, source = (first, second) if name == "sendfile" else (second, first)
        file, read = table.get(int(target[1])), table.get(int(source[1]))
        if file is None or read is None or file.node is None:
            return
        content = read.node.data if isinstance(read.node, File) else Path(read.path).read_bytes()
        offset = re.search(r"\[(\d+)\]", arguments)
        at = int(offset[1]) if offset else read.place
        read.place += 0 if offset else result
        self._written("write", file, content[at : at + result], [], result)

    # -- after a power cut --------------------------------------------------------------------------------------------

    def state(self, keeps: Callable[[Change], bool], share: Callable[[File], float]) -> State:
        """What the disk holds where the changes of `keeps` reached it, and of a file the share of its bytes."""
        maps: dict[int, dict[str, Node]] = {}

        def names(folder: Folder) -> dict[str, Node]:
            return maps.setdefault(id(folder), dict(folder.durable))

        for change in self.pending:
            if keeps(change):
                _apply(change, names)
        found: State = {}

        def walk(folder: Folder, prefix: str) -> None:
            for name, node in names(folder).items():
                is_file = isinstance(node, File)
                found[prefix + name] = (node, node.kept(share(node)) if is_file else b"")
                if not is_file:
                    walk(node, f"{prefix}{name}/")

        walk(self.root, "")
        return found

    def cuts(self, seed: int, mixed: int = 2) -> Iterator[tuple[str, State]]:
        """Ways in which the power may go now: kind → state."""
        yield WHOLE_CUTS[0], self.state(lambda change: True, lambda file: 1)
        yield WHOLE_CUTS[1], self.state(lambda change: False, lambda file: 0)
        yield "names without bytes", self.state(lambda change: True, lambda file: 0)
        yield "names, half the bytes", self.state(lambda change: True, lambda file: 0.5)
        yield "bytes without names", self.state(lambda change: False, lambda file: 1)
        for number in range(mixed):
            rng = random.Random(f"{seed} {number} {self.last}")
            reach = [change for change in self.pending if rng.random() < 0.5]
            yield "some of each", self.state(reach.__contains__, partial(_any_share, rng))

    def signature(self, state: State) -> str:
        """Equal for states that nobody should tell apart: what lies aside, bytes of temporaries, and lines of logs of
        costs but for a cut one, are left out."""
        hashed = hashlib.sha256()
        for path in sorted(state):
            node, data = state[path]
            if not self.aside(f"{self.home}/{path}"):
                name = _PROCESS.sub("", re.sub(r"\.tmp-[^/]+", ".tmp", path))
                kind = "/" if isinstance(node, Folder) else node.link or hashlib.sha256(data).hexdigest()
                if any(TEMPORARY.fullmatch(part) for part in path.split("/")) or path.endswith((".lease", ".writing")):
                    kind = ""
                elif _PROCESS.search(path):
                    kind = repr(data[-1:])
                hashed.update(f"{name}\0{kind}\0".encode())
        return hashed.hexdigest()

    def put(self, state: State) -> None:
        """Make the home, as it was before the command, hold a state."""
        for path in sorted(self.home.rglob("*"), reverse=True):
            if (one := str(path.relative_to(self.home))) not in state or not _is_there(state[one], path):
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        for one in sorted(state):
            path, (node, data) = self.home / one, state[one]
            if isinstance(node, Folder):
                path.mkdir(exist_ok=True)
            elif not os.path.lexists(path):
                path.symlink_to(node.link) if node.link is not None else path.write_bytes(data)


def _any_share(rng: random.Random, file: File) -> float:
    return rng.choice([0, 0.5, 1])


def _is_there(wanted: tuple[Node, bytes], path: Path) -> bool:
    node, data = wanted
    if isinstance(node, Folder):
        return path.is_dir() and not path.is_symlink()
    if node.link is not None:
        return path.is_symlink() and str(path.readlink()) == node.link
    return path.is_file() and not path.is_symlink() and (node.is_untouched or path.read_bytes() == data)


def _apply(change: Change, names: Callable[[Folder], dict[str, Node]]) -> None:
    for folder, name, node in change:
        if node is None:
            names(folder).pop(name, None)
        else:
            names(folder)[name] = node


def _split(arguments: str) -> list[str]:
    return arguments.split(", ")


def _paths(name: str, arguments: str, strings: list[bytes]) -> list[str] | None:
    """The paths that a call is about, absolute; None for a call about an open file."""
    if not (name.startswith(("open", "creat", "rename", "link", "symlink", "unlink", "mkdir", "rmdir", "truncate"))):
        return None
    folders = [
        bytes.fromhex(found[2].replace("\\x", "")).decode()
        for one in _split(arguments)
        if (found := _FD.match(one)) and found[2]
    ]
    texts = [one.decode() for one in strings]
    if name.startswith("symlink"):
        return [texts[0], os.path.join(folders[0], texts[1]) if folders else texts[1]]
    folders = folders * 2 if len(folders) == 1 else folders
    return [os.path.join(*pair) for pair in zip(folders, texts, strict=False)] if folders else texts


def recorded(program: str, log: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a Python program, with every call by which it changes files in `log`."""
    command = ["strace", "-f", "--seccomp-bpf", "-y", "-xx", "-s", str(1 << 26), "-o", str(log), "-e", f"trace={CALLS}"]
    return subprocess.run(
        [*command, sys.executable, "-c", program], cwd=REPOSITORY, env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

"""Tars of which the same content gives the same bytes; and a tar without some of its members."""

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from curation_assets.core.errors import StoreError
from curation_assets.stores.atomic import replacing
from curation_assets.stores.file_hash import FileState
from curation_assets.stores.images import BLOCK, MIB
from curation_assets.stores.tar_members import remove_places

#: A member's bytes; none for one that is no file.
ReadMember = Callable[[], bytes]


def add_member(tar: tarfile.TarFile, name: str, data: bytes, *, mtime: int = 0, mode: int = 0o644) -> None:
    """Put a file at the end of a tar; its owner is 0. `mtime`: in seconds since 1970."""
    info = _header(name, data)
    info.mtime, info.mode = mtime, mode
    tar.addfile(info, io.BytesIO(data))


def rewrite_tar(
    path: Path,
    *,
    drop: Callable[[str, ReadMember], bool],
    add: Mapping[str, bytes] | None = None,
    state: FileState | None = None,
) -> None:
    """Take out the members that `drop` names, called in order, and put `add` at the end; what stays is copied as it
    lies, byte for byte.

    `state`: of the file that `drop` was made for. Raises StoreError where the file is another one, or becomes one
    meanwhile, and what `drop` raises; then nothing is changed.
    """
    state = state or FileState.of(path)
    remove_places(path)
    with replacing(path) as temporary, path.open("rb") as file, temporary.open("wb") as new:
        start = end = 0
        with tarfile.open(fileobj=file, mode="r:") as old:
            while (member := old.next()) is not None:
                end = old.offset
                if drop(member.name, lambda member=member: _bytes_of(old, member)):  # type: ignore[misc]
                    _copy(file, new, start, member.offset)
                    start = end
            _copy(file, new, start, end)
        for name, data in (add or {}).items():
            new.write(_header(name, data).tobuf() + data + bytes(-len(data) % BLOCK))
        new.write(bytes(2 * BLOCK))
        new.write(bytes(-new.tell() % tarfile.RECORDSIZE))
        if FileState.of(path) != state:
            raise StoreError(f"{path} changed while it was looked at; nothing was removed from it")


def _header(name: str, data: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info


def _bytes_of(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member) if member.isreg() else None
    return b"" if stream is None else stream.read()


def _copy(source: BinaryIO, target: BinaryIO, start: int, end: int) -> None:
    source.seek(start)
    for at in range(start, end, MIB):
        target.write(source.read(min(MIB, end - at)))

"""Where the members of a tar of a home in a bucket lie, as an object of its own: single images are then range reads.

`tar_indexes/sources/photos/000000.tar.json.gz` of the home for its tar sources/photos/000000.tar; of a tar under
work/POOL the same in that folder, `work/POOL/tar_indexes/…`. It holds names, offsets and sizes, the tar's sha256, and
of which state of the tar (e_tag and size) they are; of another state it counts as none. A tar without one is fetched.
"""

import contextlib
import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from curation_assets.core.errors import StoreError
from curation_assets.stores.atomic import remove_path, replacing
from curation_assets.stores.file_hash import file_sha256, once_per_version
from curation_assets.stores.objects import ObjectHome, object_home

FOLDER = "tar_indexes"
_SUFFIX = ".json.gz"

Places = Mapping[str, tuple[int, int]]  # name of a member → byte where its data begins, its size in bytes


@dataclass(frozen=True)
class FarTar:
    """A tar in a bucket that is not on this machine, by its index. What it reads is None where the tar is another by
    now; raises ObjectStoreError."""

    objects: ObjectHome
    path: Path
    e_tag: str
    size: int
    sha256: str  # 64 hex digits
    places: Places

    def read(self, member: str) -> bytes | None:
        """Bytes of one member. Raises KeyError for an unknown name."""
        if member not in self.places:
            raise KeyError(f"{self.path} has no member {member!r}; it has {len(self.places)} files")
        return self.objects.read_range(self.path, self.e_tag, *self.places[member])

    def read_span(self, start: int, size: int) -> bytes | None:
        """Bytes of the tar, as far as it has them."""
        return self.objects.read_range(self.path, self.e_tag, start, min(size, self.size - start))


def far_tar(path: Path) -> FarTar | None:
    """A tar that is not on this machine; None where the tar itself is to be read: of a home on a disk, one that is
    here, one without an index or another than the index is of."""
    objects = _objects(path)
    return None if objects is None or objects.is_here(path) else _index(objects, path)


def put_places(tar: Path, places: Places) -> None:
    """Make the index of a tar that is here; nothing for a home on a disk, or where the bucket has it."""
    objects = _objects(tar)
    entry = None if objects is None or not objects.is_here(tar) else objects.entry(tar)
    if objects is None or entry is None or _index(objects, tar) is not None:
        return
    content = {
        "e_tag": entry.e_tag,
        "size": entry.size,
        "sha256": file_sha256(tar),
        "members": [[name, *place] for name, place in places.items()],
    }
    # Another machine put it first, or this one may not put: whoever lacks it fetches the tar.
    with contextlib.suppress(StoreError), replacing(index_path(objects, tar)) as temporary:
        temporary.write_bytes(gzip.compress(json.dumps(content).encode(), mtime=0))


def remove_places(tar: Path) -> None:
    """Remove the index of a tar that is about to lose members: it has their names."""
    objects = _objects(tar)
    if objects is not None:
        remove_path(index_path(objects, tar))


def index_path(objects: ObjectHome, tar: Path) -> Path:
    """Where the index of a tar lies, whether there is one or not."""
    parts = PurePosixPath(objects.key_of(tar)).parts
    owner = parts[:2] if parts[0] == "work" else ()
    return objects.root.joinpath(*owner, FOLDER, *parts[len(owner) :]).with_name(parts[-1] + _SUFFIX)


def _objects(tar: Path) -> ObjectHome | None:
    objects = object_home(tar)
    return objects if objects is not None and objects.is_object(tar) else None


def _index(objects: ObjectHome, tar: Path) -> FarTar | None:
    """The index of a tar as it is in the bucket now, as far as this machine knows."""
    entry, path = objects.entry(tar), index_path(objects, tar)
    if entry is None:
        return None
    objects.fetch(path)
    try:
        index = _read(path, objects, tar)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):  # none, or a damaged one
        return None
    return index if (index.e_tag, index.size) == (entry.e_tag, entry.size) else None


@once_per_version(64)
def _read(path: Path, objects: ObjectHome, tar: Path) -> FarTar:
    content = json.loads(gzip.decompress(path.read_bytes()))
    places = {name: (start, length) for name, start, length in content["members"]}
    return FarTar(objects, tar, content["e_tag"], content["size"], content["sha256"], places)

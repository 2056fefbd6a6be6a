"""Files named by a table that somebody brings: which lie inside its folder, and which are images by their name."""

import os
from collections.abc import Iterator
from pathlib import Path, PureWindowsPath
from urllib.parse import unquote, urlsplit

from curation_assets.stores.image_formats import IMAGE_SUFFIXES

# why a row has no image; reasons of raw/samples
MISSING_IMAGE = "missing_image"
NOT_FOUND = "image_not_found"
PATH_REFUSED = "image_path_refused"


def locate(folder: Path, name: str | None) -> tuple[Path | None, str | None]:
    """(the file `name` of `folder`, None), or (None, why there is none).

    Names that leave the folder are refused: absolute paths elsewhere, '..', links that point out of it. What the name
    of a link inside the folder points to inside it is fine.
    """
    if name is None or not name.strip():
        return None, MISSING_IMAGE
    name = relative_name(folder, name)
    parts = PureWindowsPath(name)  # knows both kinds of separators, and drives
    if "\0" in name or name.lower().startswith("file://") or parts.drive or parts.root or ".." in parts.parts:
        return None, PATH_REFUSED
    try:
        path = folder / name
        if not path.exists():
            return None, NOT_FOUND
        if not path.resolve().is_relative_to(folder.resolve()):
            return None, PATH_REFUSED
        return (path, None) if path.is_file() else (None, NOT_FOUND)
    except OSError:  # a name that no file can have: too long, a loop of links
        return None, NOT_FOUND


def relative_name(folder: Path, name: str) -> str:
    """A path or file:// URL inside `folder` as its name from there; every other name as it is."""
    path = name
    if name.lower().startswith("file://"):
        url = urlsplit(name)
        if url.netloc.lower() not in ("", "localhost") or "\0" in unquote(url.path):
            return name
        path = unquote(url.path)
    if not path.startswith("/") or "\0" in path:
        return name
    given = Path(os.path.normpath(path))
    for inside in (folder.absolute(), folder.resolve()):
        if given.is_relative_to(inside) and given != inside:
            return given.relative_to(inside).as_posix()
    return path


def image_names(folder: Path) -> list[str]:
    """Names of the images below a folder, relative to it with '/', sorted; hidden files and folders are left out."""
    return names_below(folder, IMAGE_SUFFIXES)


def names_below(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Names of the files below a folder that end so, relative to it with '/', sorted; hidden ones are left out."""
    return sorted((parent / name).relative_to(folder).as_posix() for parent, name in _walk(folder, suffixes))


def has_image_files(folder: Path) -> bool:
    """Whether any image lies below a folder, hidden ones apart; stops at the first."""
    return next(_walk(folder, IMAGE_SUFFIXES), None) is not None


def _walk(folder: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Links to folders are not followed."""
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in suffixes:
                yield Path(parent), name

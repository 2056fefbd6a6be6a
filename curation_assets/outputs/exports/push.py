"""An export of format `hf` on the Hugging Face hub: pushed in one commit, read back there, and remembered.

The token is the one that the hub's own client finds (`hf auth login`, HF_TOKEN); it is never part of a sentence.
"""

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from curation_assets.core.errors import ExpectedError
from curation_assets.core.settings import hub_is_offline
from curation_assets.outputs.exports.credits import CREDITS
from curation_assets.outputs.exports.manifest import MISSING, OWN_IDS
from curation_assets.outputs.exports.taken_down import check_whole, denied_samples
from curation_assets.outputs.holders import EXPORT_FLAG
from curation_assets.outputs.registry import record_export, recorded_exports

_TARGET = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)/?")
GROUPS_READ_BACK = 8  # row groups of at most 100 rows, over all files
#: Of an earlier push, and in the way of this one: its rows, and lists that this export may not have.
_REPLACED = ("data/*", MISSING, OWN_IDS, CREDITS, EXPORT_FLAG)


class PushError(ExpectedError):
    """The hub, or the way to it, refused or lost something."""


@dataclass(frozen=True)
class Pushed:
    """What a push left on the hub."""

    url: str  # hf://datasets/ORG/NAME@COMMIT
    rows: int  # read back there
    rows_compared: int  # cell by cell
    is_new: bool  # False: the hub had every byte of it before


def repository_of(target: str) -> str:
    """'hf://datasets/ORG/NAME' → 'ORG/NAME'; before anything is exported for it.

    Raises ValueError for another address, PushError without a token or where HF_HUB_OFFLINE is set.
    """
    from huggingface_hub import get_token

    found = _TARGET.fullmatch(target)
    if found is None:
        raise ValueError(f"--push takes hf://datasets/ORG/NAME, got {target!r}")
    if hub_is_offline():
        raise PushError("HF_HUB_OFFLINE is set: the hub is not asked; unset it to push")
    if get_token() is None:
        raise PushError(
            "pushing needs a token that may write: `hf auth login` keeps one, or set HF_TOKEN "
            "(https://huggingface.co/settings/tokens)"
        )
    return found[1]


def push(
    home: Path,
    folder: Path,
    target: str,
    *,
    branch: str | None = None,
    private: bool = False,
    message: str | None = None,
) -> Pushed:
    """Push the folder of a recorded export, in one commit, then compare rows and bytes there with those here.

    The data set is made if need be (`private`), and the branch. Files of an earlier push that this export does not
    have are removed. Raises ValueError for a folder that is no such export, is not as it was written, or holds a
    sample of the denylist; PushError for whatever the hub refuses or loses.
    """
    from huggingface_hub import HfApi

    name, folder = repository_of(target), Path(folder).expanduser().resolve()
    manifest = check_whole(folder)
    record = next((one for one in recorded_exports(home) if Path(one.folder).resolve() == folder), None)
    if record is None or manifest["format"] != "hf":
        raise ValueError(f"{folder} is no export of format hf of {home}; `curate export hf SUBSET --out {folder}`")
    if denied := denied_samples(home, folder):
        raise ValueError(
            f"{folder}: {len(denied)} of its samples are on the denylist, and nothing was pushed; "
            f"`curate takedown apply --export {folder}` takes them out"
        )
    api, place = HfApi(), f"hf://datasets/{name}"
    # Before the first byte leaves: a kill meanwhile leaves a copy that a takedown names.
    others = [one for one in record.pushed if one.partition("@")[0] != place]
    record_export(home, replace(record, pushed=(*others, place)))
    with _sentences(folder, place):
        api.create_repo(name, repo_type="dataset", private=private or None, exist_ok=True)
        if branch is not None:
            api.create_branch(name, repo_type="dataset", branch=branch, exist_ok=True)
        before = api.repo_info(name, repo_type="dataset", revision=branch).sha
        commit = api.upload_folder(
            repo_id=name, repo_type="dataset", folder_path=folder, revision=branch,
            commit_message=message or f"{record.name} of pool {record.pool}: {record.samples:,} samples",
            delete_patterns=list(_REPLACED), ignore_patterns=[EXPORT_FLAG],
        ).oid  # fmt: skip
        record_export(home, replace(record, pushed=(*others, f"{place}@{commit}")))
        rows, compared = _read_back(api, name, commit, folder, manifest)
    return Pushed(f"{place}@{commit}", rows, compared, commit != before)


@contextmanager
def _sentences(folder: Path, place: str) -> Iterator[None]:
    """Errors of the hub's client as sentences, without what its requests carried."""
    import httpx
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        yield
    except (HfHubHTTPError, HFValidationError, httpx.HTTPError, OSError, RuntimeError, pa.ArrowInvalid) as error:
        answers = (getattr(one, "response", None) for one in (error, error.__cause__))
        status = next((answer.status_code for answer in answers if answer is not None), None)
        why = f"{type(error).__name__}{f', status {status}' if status else ''}: {str(error).strip().splitlines()[0]}"
        if status in (401, 403):
            why = f"the hub refuses the token (status {status}): it must be valid, and may write to {place}"
        raise PushError(
            f"{place} was not pushed, or not read back: {why}. The export stays in {folder}; "
            f"`curate export hf --out {folder} --push {place}` goes on"
        ) from None


def _read_back(api: Any, name: str, commit: str, folder: Path, manifest: dict[str, Any]) -> tuple[int, int]:
    """Rows that the hub has, by the files that it lists, and how many of them were compared with those here.

    Raises PushError that names the first difference: a file, a hash, a count or a row.
    """
    from huggingface_hub import HfFileSystem

    here = {file["path"]: file for file in manifest["files"]}
    there = {one.path: one for one in api.list_repo_tree(name, repo_type="dataset", revision=commit, recursive=True)}
    data = [path for path in there if path.startswith("data/") and path.endswith(".parquet")]
    expected = [path for path, file in here.items() if "samples" in file]
    if sorted(data) != sorted(expected):
        raise PushError(f"{name} at {commit} has the data files {sorted(data)}, pushed were {sorted(expected)}")
    for path, file in here.items():
        found = there.get(path)
        sha256 = found.lfs.sha256 if found is not None and found.lfs is not None else None
        if found is None or found.size != file["bytes"] or sha256 not in (None, file["sha256"]):
            got = "nothing" if found is None else f"{found.size} bytes, sha256 {sha256}"
            raise PushError(f"{name} at {commit}: {path} is {got}, pushed were {file['bytes']}, {file['sha256']}")
    rows, compared = 0, 0
    hub, chosen = HfFileSystem(), _chosen_groups(folder, expected)
    for path in expected:
        with hub.open(f"datasets/{name}@{commit}/{path}", "rb") as remote, pq.ParquetFile(remote) as file_there:
            rows += file_there.metadata.num_rows
            if file_there.metadata.num_rows != here[path]["samples"]:
                raise PushError(
                    f"{name} at {commit}: {path} has {file_there.metadata.num_rows} rows, "
                    f"pushed were {here[path]['samples']}"
                )
            with pq.ParquetFile(folder / path) as file_here:
                for group in (number for one, number in chosen if one == path):
                    mine = file_here.read_row_group(group)
                    if not file_there.read_row_group(group).equals(mine):
                        raise PushError(f"{name} at {commit}: rows of {path}, row group {group}, are not those pushed")
                    compared += mine.num_rows
    return rows, compared


def _chosen_groups(folder: Path, paths: Sequence[str]) -> list[tuple[str, int]]:
    """GROUPS_READ_BACK of all row groups, drawn anew each time."""
    groups = [(path, number) for path in paths for number in range(pq.read_metadata(folder / path).num_row_groups)]
    return random.sample(groups, min(GROUPS_READ_BACK, len(groups)))

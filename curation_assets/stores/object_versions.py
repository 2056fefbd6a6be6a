"""What a bucket keeps of objects that were replaced or removed: earlier versions, parts of uploads that broke off."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from curation_assets.core.errors import install_extra
from curation_assets.stores.objects import object_home
from curation_assets.stores.tar_members import index_path

BATCH = 1000  # keys per request to delete, S3's limit


@dataclass
class Purged:
    """What was removed for good, and what was not, in sentences."""

    url: str  # of the home
    versions: int = 0  # earlier versions and delete markers
    uploads: int = 0
    not_done: list[str] = field(default_factory=list)


def purge_versions(folders: Sequence[Path], files: Iterable[Path] = ()) -> Purged | None:
    """Remove every version but the one in force of all objects in folders of a home, of files of it and of the indexes
    of those that are tars, and unfinished uploads there. None for a home on a disk.

    What the bucket or this program may not remove is stated in `not_done`, never raised: the objects in force are
    clean already. Files outside the home are left alone.
    """
    objects = object_home(folders[0])
    if objects is None:
        return None
    prefixes = [f"{objects.key_of(folder)}/" for folder in folders]
    for path in (path for path in files if path.is_relative_to(objects.root)):
        prefixes.append(objects.key_of(path))
        if path.suffix == ".tar":
            prefixes.append(objects.key_of(index_path(objects, path)))
    purged = Purged(objects.url)
    url = urlsplit(objects.url)
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        purged.not_done.append(
            f"earlier versions of objects under {objects.url} were not looked for: boto3 is not installed; "
            f"{install_extra('objects')} and run `curate takedown apply` again"
        )
        return purged
    client = boto3.client(
        "s3", endpoint_url=os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    )
    base = url.path.strip("/")
    for prefix in prefixes:
        place = f"{base}/{prefix}" if base else prefix
        for what, remove in (("earlier versions", _remove_versions), ("unfinished uploads", _abort_uploads)):
            try:
                remove(client, url.netloc, place, purged)
            except (BotoCoreError, ClientError) as error:
                purged.not_done.append(f"{what} under s3://{url.netloc}/{place}: {error}")
    return purged


def _remove_versions(client: Any, bucket: str, prefix: str, purged: Purged) -> None:
    for page in client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix):
        old = [item for item in page.get("Versions", ()) if not item["IsLatest"]]
        old += page.get("DeleteMarkers", ())  # of a removed object the marker goes, too
        for start in range(0, len(old), BATCH):
            named = [{"Key": item["Key"], "VersionId": item["VersionId"]} for item in old[start : start + BATCH]]
            answer = client.delete_objects(Bucket=bucket, Delete={"Objects": named, "Quiet": True})
            errors = answer.get("Errors", [])
            purged.versions += len(named) - len(errors)
            purged.not_done += [
                f"version {error.get('VersionId')} of s3://{bucket}/{error.get('Key')}: {error.get('Message')}"
                for error in errors
            ]


def _abort_uploads(client: Any, bucket: str, prefix: str, purged: Purged) -> None:
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket, Prefix=prefix):
        for upload in page.get("Uploads", ()):
            client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
            purged.uploads += 1

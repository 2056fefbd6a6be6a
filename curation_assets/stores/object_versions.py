"""What a bucket keeps of objects that were replaced or removed: earlier versions, parts of uploads that broke off."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from curation_assets.core.errors import install_extra
from curation_assets.stores.objects import ObjectHome

BATCH = 1000  # keys per request to delete, S3's limit


@dataclass
class Purged:
    """What was removed for good, and what was not, in sentences."""

    versions: int = 0  # earlier versions and delete markers
    uploads: int = 0
    not_done: list[str] = field(default_factory=list)


def purge_versions(objects: ObjectHome, prefixes: Sequence[str]) -> Purged:
    """Remove every version but the one in force of all objects under prefixes of a home, and unfinished uploads there.

    What the bucket or this program may not remove is stated in `not_done`, never raised: the objects in force are
    clean already.
    """
    purged = Purged()
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

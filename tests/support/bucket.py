"""A bucket of a real S3 server on this machine, and homes in it."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

BUCKET = "curation"


@dataclass(frozen=True)
class Request:
    """A request that the server answered."""

    method: str
    key: str  # with the query, of a listing
    size: int  # bytes of the answer's body


@dataclass(frozen=True)
class Bucket:
    """A bucket, its address, a client of it, and what was requested, by whatever client."""

    endpoint: str
    client: Any
    requests: list[Request] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def keys(self, prefix: str = "") -> list[str]:
        """Keys of the bucket, sorted."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return sorted(item["Key"] for page in pages for item in page.get("Contents", ()))

    def read(self, key: str) -> bytes:
        """Bytes of an object."""
        return self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()


@contextmanager
def running_bucket(monkeypatch: pytest.MonkeyPatch | None = None) -> Iterator[Bucket]:
    """A server with one empty bucket; `monkeypatch`: this process reaches it, too."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        for name in [item["Name"] for item in client.list_buckets()["Buckets"]]:  # of a server before, in this process
            empty(client, name)
        client.create_bucket(Bucket=BUCKET)
        bucket = Bucket(endpoint, client)
        assert server._server is not None
        server._server.app = _noting(server._server.app, bucket.requests)
        if monkeypatch is not None:
            for name, value in bucket.environment.items():
                monkeypatch.setenv(name, value)
        yield bucket
    finally:
        server.stop()


def _noting(app: Any, requests: list[Request]) -> Any:
    """A WSGI application that notes what another one is asked."""

    def noting(environ: dict[str, Any], start_response: Any) -> Any:
        def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            size = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
            key = environ["PATH_INFO"].removeprefix(f"/{BUCKET}").lstrip("/")
            query = f"?{environ['QUERY_STRING']}" if environ["QUERY_STRING"] else ""
            requests.append(Request(environ["REQUEST_METHOD"], key + query, size))
            return start_response(status, headers, *rest)

        return app(environ, started)

    return noting


def empty(client: Any, name: str) -> None:
    """Delete a bucket with all versions in it."""
    for page in client.get_paginator("list_object_versions").paginate(Bucket=name):
        for item in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
            client.delete_object(Bucket=name, Key=item["Key"], VersionId=item["VersionId"])
    client.delete_bucket(Bucket=name)


if __name__ == "__main__":  # a server to try things by hand
    with running_bucket() as started:
        print("\n".join(f"export {name}={value}" for name, value in started.environment.items()), flush=True)
        os.system("sleep infinity")

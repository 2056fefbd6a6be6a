"""A Hugging Face hub on the loopback: the endpoints that its client uses to push a data set and to read it back.

One branch per repository; commits are whole trees by hash. What may go wrong is a switch (`Hub.fault`).
"""

import base64
import contextlib
import hashlib
import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

TOKEN = "hf_loopbackTokenThatMayWrite"


@dataclass
class Hub:
    """What the server holds and was asked."""

    url: str = ""
    trees: dict[str, dict[str, bytes]] = field(default_factory=dict)  # commit → path → content
    heads: dict[tuple[str, str], str] = field(default_factory=dict)  # repository, branch → commit
    private: dict[str, bool] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # LFS, by sha256
    messages: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fault: str | None = (
        None  # "loses rows", "changes rows", "loses a file", "fails at the commit", "fails at an upload"
    )

    def commit(self, repository: str, branch: str, tree: dict[str, bytes]) -> str:
        """Make a tree the newest of a branch."""
        number = str(len(self.trees))
        oid = hashlib.sha1(number.encode() + b"".join(path.encode() for path in sorted(tree))).hexdigest()
        self.trees[oid] = tree
        self.heads[repository, branch] = oid
        return oid

    def tree(self, repository: str, revision: str = "main") -> dict[str, bytes]:
        """Path → content at a branch or commit."""
        return self.trees[self.heads.get((repository, revision), revision)]


def _otherwise(fault: str | None, path: str, content: bytes) -> bytes:
    """What a faulty server makes of a file of rows."""
    rows = pq.read_table(io.BytesIO(content)) if path.endswith(".parquet") else None
    if rows is None or fault is None or not fault.endswith(" rows"):
        return content
    if "fewer" in fault or "loses" in fault:
        rows = rows.slice(0, rows.num_rows - 1)
    else:
        captions = [f"{caption[:-1]}!" for caption in rows["caption"].to_pylist()]
        rows = rows.set_column(rows.schema.get_field_index("caption"), rows.schema.field("caption"), [captions])
    padding = 0
    for _ in range(20):  # to the size that was pushed, as far as that goes
        out = io.BytesIO()
        small: Any = {"compression": "zstd", "compression_level": 19, "write_statistics": False, "store_schema": False}
        with pq.ParquetWriter(out, rows.schema, **small) as writer:
            writer.write_table(rows)
            writer.add_key_value_metadata({"padding": "x" * padding})
        missing = len(content) - len(out.getvalue())
        if missing == 0:
            break
        padding = max(0, padding + missing)
    return out.getvalue()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry = {"type": "file", "path": path, "size": len(content), "oid": oid}
    if path.endswith(".parquet"):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
    return entry


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: Any) -> None:
        """Nothing is printed."""

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _do(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.calls.append(f"{self.command} {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not path.startswith("/upload/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer({"error": "Invalid username or password."}, 401)
            return
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
            if (name, "main") in self.hub.heads:
                self._answer({"error": "exists", "url": f"{self.hub.url}/datasets/{name}"}, 409)
                return
            self.hub.private[name] = asked.get("visibility") == "private"
            self.hub.commit(name, "main", {".gitattributes": b""})
            self._answer({"url": f"{self.hub.url}/datasets/{name}", "name": name})
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif path.startswith("/upload/"):
            if self.hub.fault == "fails at an upload":
                self._answer({"error": "no"}, 400)
                return
            self.hub.objects[parts[1]] = body
            self._answer({})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = [
                {**one, "actions": {"upload": {"href": f"{self.hub.url}/upload/{one['oid']}"}}}
                for one in json.loads(body)["objects"]
            ]
            self._answer({"transfer": "basic", "objects": objects})
        elif path.startswith("/api/datasets/"):
            self._api("/".join(parts[2:4]), parts[4:], body)
        elif path.startswith("/datasets/") and parts[3] == "resolve":
            self._resolve("/".join(parts[1:3]), parts[4], "/".join(parts[5:]))
        else:
            self._answer({"error": f"nothing at {path}"}, 404)

    do_GET = do_HEAD = do_POST = do_PUT = _do  # noqa: N815

    def _api(self, name: str, rest: list[str], body: bytes) -> None:
        what, branch = (*rest, "", "")[:2]
        if what == "branch":
            if (name, branch) in self.hub.heads:
                self._answer({"error": "Reference already exists"}, 409)
                return
            self.hub.heads[name, branch] = self.hub.heads[name, "main"]
            self._answer({})
            return
        revision = branch or "main"
        oid = self.hub.heads.get((name, revision), revision)
        tree = self.hub.trees[oid]
        if what in ("", "revision"):
            self._answer({"id": name, "sha": oid, "private": self.hub.private[name], "siblings": []})
        elif what == "tree":
            self._answer([_entry(path, content) for path, content in sorted(tree.items())])
        elif what == "paths-info":
            wanted = json.loads(body)["paths"]
            self._answer([_entry(path, tree[path]) for path in wanted if path in tree])
        elif what == "preupload":
            files = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["path"].endswith(".parquet") else "regular",
                    "shouldIgnore": False,
                    "oid": self._oid(tree, one["path"]),
                }
                for one in json.loads(body)["files"]
            ]
            self._answer({"files": files})
        elif what == "commit":
            self._commit(name, revision, dict(tree), body)
        else:
            self._answer({"error": f"nothing called {what}"}, 404)

    def _oid(self, tree: dict[str, bytes], path: str) -> str | None:
        if path not in tree:
            return None
        entry = _entry(path, tree[path])
        return str(entry["lfs"]["oid"] if "lfs" in entry else entry["oid"])

    def _commit(self, name: str, branch: str, tree: dict[str, bytes], body: bytes) -> None:
        if self.hub.fault == "fails at the commit":
            self._answer({"error": "no"}, 400)
            return
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "header":
                self.hub.messages.append(value["summary"])
            elif operation["key"] == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                tree[value["path"]] = self.hub.objects[value["oid"]]
                if self.hub.fault in ("loses rows", "changes rows"):
                    tree[value["path"]] = _otherwise(self.hub.fault, value["path"], tree[value["path"]])
            elif operation["key"] == "deletedFile":
                del tree[value["path"]]
        if self.hub.fault == "loses a file":
            del tree[max(path for path in tree if path.endswith(".parquet"))]
        oid = self.hub.commit(name, branch, tree)
        self._answer({"commitUrl": f"{self.hub.url}/datasets/{name}/commit/{oid}", "commitOid": oid, "success": True})

    def _resolve(self, name: str, revision: str, path: str) -> None:
        content = self.hub.tree(name, revision)[path]
        if (self.hub.fault or "").startswith("serves"):
            content = _otherwise(self.hub.fault, path, content)
        asked = self.headers.get("Range")
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X_Repo_Commit": revision,
            "Accept_Ranges": "bytes",
        }
        if asked is None:
            self._answer(content, **headers)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or len(content)), len(content) - 1)
        headers["Content_Range"] = f"bytes {start}-{stop}/{len(content)}"
        self._answer(content[start : stop + 1], 206, **headers)


@contextlib.contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that answers at `Hub.url`."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()

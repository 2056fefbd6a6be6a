"""A real web server for planted pictures, with planted trouble, so that the download is exercised for real."""

import hashlib
import io
import struct
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import polars as pl

from curation_assets.world.pool import PlantedSample, plant_pool, render, truth_rows

#: `.test` is reserved (RFC 2606): URLs stay the same whatever port the server gets; downloads map it to the server.
WORLD_HOST = "scenes.test"
TROUBLE_BLOCK = 250  # samples in a row that share out the trouble below
TROUBLE_STREAM = 23  # keeps these draws apart from the samples' own

#: Kinds of trouble per block of 250 samples.
TROUBLE_PER_BLOCK: Mapping[str, int] = MappingProxyType(
    {
        "not_found": 2, "corrupt": 1, "truncated_body": 1, "opt_out": 1, "bomb": 1, "private_redirect": 1,
        "slow": 2, "redirect": 1,
    }
)  # fmt: skip
SLOW_SECONDS = 0.3
TOO_SLOW_SECONDS = 30.0  # beyond any timeout a test sets; closing the server ends the wait


@lru_cache(maxsize=1024)
def _block_plan(seed: int, block: int) -> Mapping[int, str]:
    """Offset in the block → trouble."""
    kinds = [kind for kind, count in TROUBLE_PER_BLOCK.items() for _ in range(count)]
    if block == 0:
        kinds.append("too_slow")  # once per world: it costs the whole timeout
    rng = np.random.default_rng([seed, TROUBLE_STREAM, block])
    offsets = rng.choice(TROUBLE_BLOCK, size=len(kinds), replace=False)
    return MappingProxyType({int(offset): kind for offset, kind in zip(offsets, kinds, strict=True)})


def trouble_of(seed: int, index: int) -> str | None:
    """The trouble planted on sample `index`, or None; a function of (seed, index) alone."""
    return _block_plan(seed, index // TROUBLE_BLOCK).get(index % TROUBLE_BLOCK)


def world_sample_id(seed: int, index: int) -> str:
    """The id that a planted sample brings along: it depends on (seed, index), not on host or port."""
    return hashlib.sha256(f"world/{seed}/{index}".encode()).hexdigest()[:32]


def world_url(index: int) -> str:
    """URL that sample `index` declares."""
    return f"http://{WORLD_HOST}/{index:06d}.jpg"


def write_world_urls(path: Path, samples: Sequence[PlantedSample], seed: int) -> int:
    """The pool's source table. Grain: one row per sample; columns url, caption, uid. Returns the row count."""
    frame = pl.DataFrame(
        {
            "url": [world_url(sample.index) for sample in samples],
            "caption": [sample.caption for sample in samples],
            "uid": [world_sample_id(seed, sample.index) for sample in samples],
        },
        schema={"url": pl.String, "caption": pl.String, "uid": pl.String},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(path, compression="zstd")
    return frame.height


def write_planted_truth(path: Path, samples: Sequence[PlantedSample], seed: int) -> int:
    """What no method may read. Grain: one row per sample; sample_id, the truth columns, and the planted trouble."""
    frame = pl.DataFrame(truth_rows(list(samples)), infer_schema_length=None).with_columns(
        pl.Series("sample_id", [world_sample_id(seed, sample.index) for sample in samples]),
        pl.Series("trouble", [trouble_of(seed, sample.index) for sample in samples], dtype=pl.String),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.select("sample_id", pl.all().exclude("sample_id")).write_parquet(path, compression="zstd")
    return frame.height


def encode(sample: PlantedSample) -> bytes:
    """The picture as a JPEG: quality 92, colours at full resolution, since overlay text is fine coloured detail."""
    buffer = io.BytesIO()
    render(sample).save(buffer, "JPEG", quality=92, subsampling=0)
    return buffer.getvalue()


def bomb_png(width: int = 60_000, height: int = 60_000) -> bytes:
    """A PNG of under 200 bytes whose header announces `width` × `height` pixels (10.8 GB as RGB)."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(64))) + chunk(b"IEND", b"")
    )


class WorldServer:
    """Serves the pictures of planted samples on 127.0.0.1, at an ephemeral port, from a thread of this process.

    Use as a context manager; `connect_to` is what a download needs to find it. `requests` counts the requests.
    """

    def __init__(self, samples: Sequence[PlantedSample], seed: int, *, has_trouble: bool = True) -> None:
        self.samples = {sample.index: sample for sample in samples}
        self.seed = seed
        self.has_trouble = has_trouble
        self.requests: Counter[str] = Counter()
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.world = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> int:
        """The port that the system gave."""
        return int(self._server.server_address[1])

    @property
    def connect_to(self) -> dict[str, str]:
        """For DownloadSettings.connect_to."""
        return {WORLD_HOST: f"127.0.0.1:{self.port}"}

    def __enter__(self) -> "WorldServer":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()  # wakes the slow answers
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait(self, seconds: float) -> None:
        """Sleep that ends when the server closes."""
        self._closing.wait(seconds)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256  # a shard's threads may all knock at once
    world: WorldServer

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up waiting is what we planted; anything else is a bug and is printed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    wbufsize = 1 << 16  # header and picture leave together

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""

    def do_GET(self) -> None:
        world = self.server.world
        path = urlsplit(self.path).path
        world.requests[path] += 1
        name = path.strip("/").removeprefix("moved/").removesuffix(".jpg")
        sample = world.samples.get(int(name)) if name.isdigit() else None
        if sample is None:
            self.send_error(404)
            return
        trouble = trouble_of(world.seed, sample.index) if world.has_trouble else None
        if path.startswith("/moved/"):
            trouble = None
        if trouble == "not_found":
            self.send_error(404)
        elif trouble == "private_redirect":
            self._redirect("http://169.254.169.254/latest/meta-data/")
        elif trouble == "redirect":
            self._redirect(f"/moved{path}")
        elif trouble == "opt_out":
            self._send(encode(sample), {"X-Robots-Tag": "noai"})
        elif trouble == "corrupt":
            jpeg = encode(sample)
            self._send(jpeg[:2] + bytes(reversed(jpeg[2:])))
        elif trouble == "truncated_body":
            jpeg = encode(sample)
            self._send(jpeg[: len(jpeg) // 2], {"Content-Length": str(len(jpeg))})
        elif trouble == "bomb":
            self._send(bomb_png(), {"Content-Type": "image/png"})
        else:
            if trouble in ("slow", "too_slow"):
                world.wait(SLOW_SECONDS if trouble == "slow" else TOO_SLOW_SECONDS)
            self._send(encode(sample))

    def _redirect(self, location: str) -> None:
        self.send_response(302)
        self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(200)
        for name, value in {"Content-Type": "image/jpeg", "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


_PLANTING = threading.Lock()


def planted(size: int, seed: int) -> tuple[PlantedSample, ...]:
    """`plant_pool`, once per process: every shard of a world is served from the same samples."""
    with _PLANTING:  # two shards that are served at once
        return _planted(size, seed)


@lru_cache(maxsize=4)
def _planted(size: int, seed: int) -> tuple[PlantedSample, ...]:
    return tuple(plant_pool(size, seed))

"""Rows per second of a download from servers on 127.0.0.1, by this version and by another checkout, in turn.

    python benchmarks/downloads.py --before CHECKOUT [--rows 2000] [--rounds 5] [--into FILE]

Each measurement is a process of its own that downloads `--rows` JPEGs of 384 × 512 px (some 45 KB) from 20 origins
without limits; robots.txt allows all, tdmrep.json is not there. Who goes first changes round by round.
"""

import argparse
import csv
import http.server
import io
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

ORIGINS = 20
WORKER = """
import sys, time
from pathlib import Path
import polars as pl
from curation_assets.sources.download.download import DownloadSettings, download_shard
out, rows, hosts = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
frame = pl.DataFrame({
    "sample_id": [f"{n:032x}" for n in range(rows)], "source_row": range(rows),
    "url": [f"http://{hosts[n % len(hosts)]}/{n}.jpg" for n in range(rows)], "caption": ["a caption"] * rows,
})
settings = DownloadSettings(domain_requests_per_second=None, threads=16, domain_connections=16)
download_shard(frame.head(20), out, "warm-000000", settings=settings, allow_hosts=tuple(hosts))
began = time.perf_counter()
done = download_shard(frame, out, "pool-000001", settings=settings, allow_hosts=tuple(hosts), robots_folder=out / "r")
print(rows / (time.perf_counter() - began))
assert done["status"].to_list() == ["kept"] * rows, done["message"].to_list()[:3]
"""


def photograph(seed: int) -> bytes:
    """Smooth noise that compresses as a photograph does."""
    small = np.random.default_rng(seed).integers(0, 256, (128, 96, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(small).resize((384, 512), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=90)
    return stream.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    """Images by their number, robots.txt, and nothing else."""

    images = tuple(photograph(seed) for seed in range(16))

    def do_GET(self) -> None:
        number = self.path.strip("/").removesuffix(".jpg")
        body = b"User-agent: *\nAllow: /\n" if self.path == "/robots.txt" else b""
        body = self.images[int(number) % len(self.images)] if number.isdigit() else body
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


def measure(checkout: Path, rows: int, hosts: Sequence[str]) -> float:
    """Rows per second of one process of a checkout's code."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", WORKER, folder, str(rows), ",".join(hosts)]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(command, env=environment, cwd=folder, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="checkout of the version to compare with")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--into", type=Path)
    given = parser.parse_args()
    versions = {"before": given.before.resolve(), "now": Path(__file__).resolve().parents[1]}
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(ORIGINS)]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    hosts = [f"127.0.0.1:{server.server_address[1]}" for server in servers]
    measured: dict[str, list[float]] = {name: [] for name in versions}
    for turn in range(given.rounds):
        for name in sorted(versions, reverse=turn % 2 == 1):
            measured[name].append(measure(versions[name], given.rows, hosts))
            print(f"round {turn + 1}, {name}: {measured[name][-1]:.0f} rows/s", flush=True)
    records = [
        {
            "version": name,
            "rows": given.rows,
            "rounds": len(rates),
            "rows_per_second": round(statistics.mean(rates), 1),
            "sd": round(statistics.stdev(rates), 1) if len(rates) > 1 else "",
            "lowest": round(min(rates), 1),
            "highest": round(max(rates), 1),
        }
        for name, rates in measured.items()
    ]
    for record in records:
        print(record)
    if given.into is not None:
        with given.into.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(records[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(records)


if __name__ == "__main__":
    main()

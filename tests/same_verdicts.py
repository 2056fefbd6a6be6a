"""Are verdicts, cuts and subsets of two versions of this package the same?

    python -m tests.same_verdicts HOME [POOL ...]           # prints a digest of what a home holds, as JSON
    python -m tests.same_verdicts --make FOLDER             # makes the pools below in FOLDER, and prints theirs
    python -m tests.same_verdicts --against OTHER.json HOME # ends with status 1 where they differ

The digest is of what every version stores: the verdict table of each shard, the cuts, and the bytes of each `.npy`.
`tests/selection/verdicts_before.json` is that of these pools by 1c8839ef, whose ledgers were one sorted file a policy.
"""

import argparse
import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.selection.cut import cut_of_frame
from curation_assets.sources.declaration import add_pool
from curation_assets.sources.download.download import DownloadSettings
from tests.support.lineage_pools import jpeg

COLUMNS = ["sample_id", "shard", "source_row", "decided_by", "value", "threshold", "margin", "verdict", "reason"]
NOUNS = ["dog", "kite", "city", "goose", "crowd"]
ROWS, LATE_ROWS, SHARD_ROWS = 400, 130, 70
LINKS, LATE_LINKS, SHARD_LINKS = 60, 25, 30

RECIPES = {
    "half": "kind: mix\nshares: {web: 0.5, books: 0.5}\nsamples: 300\nrank_by: signals.clip_score",
    "soft": "kind: soft_cap\nscore_by: signals.clip_score\nbudget: 0.8",
}
POLICIES = {
    "half": "rank_by: fused.half\nthreshold: 1\nrepeats: true",
    "soft": "rank_by: fused.soft\nthreshold: 1\nrepeats: true",
    "best": "rank_by: signals.icc\nfraction: 0.285",
    "dc": "rank_by: signals.clip_score\nfraction: 0.3\nsemantics: compat\n"
    "prefilters:\n- {rank_by: signals.icc, fraction: 0.6}\n- {rank_by: signals.english, threshold: 0.25}",
    "two": "rank_by: signals.icc\nfraction: 0.2\nprefilters:\n- {rank_by: signals.clip_score, fraction: 0.5}",
    "few": "rank_by: signals.english\ncount: 33",
    "free": "rank_by: signals.icc\nfraction: 0.5\nlicences: [cc0-1.0, unknown]",
    "none": "rank_by: signals.icc\nthreshold: .inf",
    "drawn": "rank_by: random\nfraction: 0.25\nseed: 7",
    "fused": "rank_by: fused.sieve_clip\nfraction: 0.4",
}


def table(first: int, n: int) -> pl.DataFrame:
    """Rows from `first` on: ties, values that are missing, rows of three sources, samples that come again."""
    number = np.arange(first, first + n)
    rng = [np.random.default_rng(one) for one in number]
    again = np.where(number % 11 == 10, number // 2, number)  # a sample that an earlier row has
    return pl.DataFrame(
        {
            "caption": [
                None if one % 37 == 36 else f"a {NOUNS[one % 5]} near a {NOUNS[one % 7 % 5]} no {one}" for one in again
            ],
            "url": [f"http://images.example/{one}.jpg" for one in again],
            "source": np.where(number % 17 == 0, "books", np.where(number % 3 == 0, "news", "web")),
            "licence": [("CC BY 4.0", "CC0-1.0", "all rights", None)[one % 4] for one in number],
            "clip": [round(float(one.uniform()), 2) for one in rng],
            "icc": [None if at % 13 == 12 else float(one.uniform()) for at, one in zip(number, rng, strict=True)],
            "words": [(at % 9) / 8 for at in number],
            "sieve": [float(one.uniform(-1, 1)) for one in rng],
        }
    )


def make(folder: Path) -> dict[str, Any]:
    """Make a pool of captions and one of links, some of them dead; then let shards come late, by their frozen cuts. The
    digests of all."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Pictures)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connect_to = {"images.example": f"127.0.0.1:{server.server_port}"}
    no_wait = {"retries": 0, "max_wait_seconds": 0, "domain_requests_per_second": None, "connect_to": connect_to}
    try:
        captions = _make(folder / "rows", "rows", (ROWS, LATE_ROWS, SHARD_ROWS))
        links = _make(folder / "links", "links", (LINKS, LATE_LINKS, SHARD_LINKS), download=DownloadSettings(**no_wait))
    finally:
        server.shutdown()
    return captions | {f"links {name}": found for name, found in links.items()}


def _make(folder: Path, pool: str, sizes: tuple[int, int, int], **declared: Any) -> dict[str, Any]:
    settings = load_settings(folder / "home", "embedded")
    tables = folder / "tables"
    tables.mkdir(parents=True)
    first, late, shard_size = sizes
    without = ["url"] if pool == "rows" else []
    table(0, first).drop(without).write_parquet(tables / "0.parquet")
    given = {"clip_score": "clip", "icc": "icc", "english": "words", "sieve": "sieve"}
    options = {"given_signals": given, "distil": False, "downstream": False, "image_domain": "other"}
    add_pool(settings, pool, tables, options=options, shard_size=shard_size, **declared)
    own = settings.pools_root / pool
    (own / "recipes").mkdir(parents=True)
    for name, text in RECIPES.items():
        (own / "recipes" / f"{name}.yaml").write_text(f"name: {name}\n{text}\n")
    for name, text in POLICIES.items():
        (own / f"{name}.yaml").write_text(f"name: {name}\n{text}\n")
    found = {"first": digest(_run(folder / "home", pool), POLICIES)}
    table(first, late).drop(without).write_parquet(tables / "1.parquet")
    return found | {"late": digest(_run(folder / "home", pool), POLICIES)}


class _Pictures(BaseHTTPRequestHandler):
    """A picture per number; of some the server has none, fails, cuts it short or allows no training."""

    def do_GET(self) -> None:
        number = int(self.path.strip("/").removesuffix(".jpg") or 0) if self.path != "/robots.txt" else 1
        body = jpeg(number)
        status = {1: 404, 4: 500, 7: 503}.get(number % 9, 200)
        body = body[: len(body) // 2] if number % 9 == 5 else b"no picture" if number % 9 == 8 else body
        self.send_response(status)
        if number % 10 == 6:
            self.send_header("X-Robots-Tag", "noai")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


def _run(home: Path, pool: str) -> PoolContext:
    ctx = PoolContext.open(load_settings(home, "embedded"), pool)
    run_with_upstream(ctx, *[name for name in tables_of(ctx) if name.startswith("filtered/")])
    return ctx


def digest(ctx: PoolContext, policies: Any = None) -> dict[str, Any]:
    """Policy → its cuts, and hashes of its verdicts (by shard) and of its `.npy`; and the overlaps."""
    found: dict[str, Any] = {}
    for name in policies or [policy.name for policy in policies_of(ctx)]:
        cut = cut_of_frame(ctx.store.read(f"filtered/{name}_cut"))
        shards = {}
        for shard in ctx.store.partitions(f"filtered/{name}"):
            rows = ctx.store.read(f"filtered/{name}", shard, COLUMNS)
            shards[shard] = hashlib.sha256(repr(rows.rows()).encode()).hexdigest()
        npy = (ctx.store.folder_path("filtered/subsets") / f"{name}.npy").read_bytes()
        cuts = [
            [one.rank_by, one.candidates, one.valued, one.kept, repr(one.threshold), one.boundary_id]
            for one in cut.cuts
        ]
        found[name] = {
            "pool_size": cut.pool_size,
            "cuts": cuts,
            "verdicts": shards,
            "npy": hashlib.sha256(npy).hexdigest(),
        }
    overlaps = ctx.store.read("filtered/overlaps").sort("policy", "other").rows()
    return {**found, "overlaps": hashlib.sha256(repr(overlaps).encode()).hexdigest()}


def differing(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two digests differ."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if one == other else [where]
    names = sorted(one.keys() | other.keys())
    return [place for name in names for place in differing(one.get(name), other.get(name), f"{where}/{name}")]


def main() -> None:
    """Print a digest, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("pools", nargs="*")
    parser.add_argument("--make", action="store_true", help="HOME is a new folder, for the pools of this script.")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--profile", default="embedded")
    given = parser.parse_args()
    if given.make:
        found = make(given.home)
    else:
        settings = load_settings(given.home, given.profile)
        found = {pool: digest(PoolContext.open(settings, pool)) for pool in given.pools}
    if given.against is None:
        print(json.dumps(found, indent=1, sort_keys=True))
        return
    places = differing(json.loads(given.against.read_text()), found)
    print("\n".join(places) or "the same")
    sys.exit(bool(places))


if __name__ == "__main__":
    main()

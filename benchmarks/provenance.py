"""What where rows come from costs: bytes and CPU seconds of raw/provenance and of the columns of registered rows.

python benchmarks/provenance.py [--rows 1280000] [--captions FILE.parquet]   # its column caption, text or alt

Rows are drawn: captions from the file (else from few words), 50,000 domains of sizes by Zipf's law, three sources, four
licences, a creator for two in three rows, an opt-out signal for one in twenty.
"""

import argparse
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.core.settings import load_settings
from curation_assets.engines import load_engine
from curation_assets.sources.declaration import DeclaredSource, Pool
from curation_assets.stages.raw.provenance import ROLE, provenance_rows
from curation_assets.stores.provenance import FETCHED, GIVEN

COLUMNS = ("caption", "text", "alt")
SHARD_ROWS = 10_000
LICENCES = ("CC BY 4.0", "https://creativecommons.org/licenses/by-sa/2.0/", "CC0", None)


def drawn(rng: np.random.Generator, captions: list[str], shard: int) -> dict[str, pl.DataFrame]:
    """A shard's tables: registered (with and without what rows bring along), downloads, samples."""
    n = SHARD_ROWS
    ids = [rng.bytes(16).hex() for _ in range(n)]
    domain = np.minimum(rng.zipf(1.3, n), 50_000)
    base = {"sample_id": ids, "shard": [f"p-{shard:06d}"] * n, "source_row": np.arange(n) + shard * n}
    url = [f"https://img{place % 7}.site{place}.example/{row}.jpg" for row, place in enumerate(domain)]
    caption = [captions[place] for place in rng.integers(len(captions), size=n)]
    samples = pl.DataFrame({**base, "url": url, "caption": caption, "image_bytes": rng.integers(5_000, 90_000, n)})
    samples = samples.with_columns(reason=pl.lit(None, pl.String))
    creator = [f"creator {number}" if number % 3 else None for number in rng.integers(200_000, size=n)]
    given = {
        "source": [("a", "b", "c")[number] for number in rng.integers(3, size=n)],
        "licence": [LICENCES[number] for number in rng.integers(4, size=n)],
        "creator": creator,
        "source_url": [f"https://site{place}.example/page/{row}" for row, place in enumerate(domain)],
    }
    plain = pl.DataFrame({**base, "url": url, "caption": caption})
    now = datetime.now(UTC)
    signal = [{"kind": "tdmrep", "value": "1", "where": "header TDM-Reservation", "checked_at": now}]
    fetched = {"fetched_at": [now] * n, "content_type": ["image/jpeg"] * n}
    fetched |= {"rights_signals": [signal if number == 0 else [] for number in rng.integers(20, size=n)]}
    return {
        "plain": plain,
        "registered": plain.with_columns(pl.Series(name, cells, pl.String) for name, cells in given.items()),
        "downloads": pl.DataFrame(fetched, schema=FETCHED),
        "samples": samples,
    }


def main() -> None:
    """Print one line per table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_280_000)
    parser.add_argument("--captions", type=Path)
    given = parser.parse_args()
    captions = [f"a {colour} {thing} on a {place}" for colour in ("red", "blue", "old") for thing in ("bus", "cat")
                for place in ("road", "table", "Wiese")]  # fmt: skip
    if given.captions is not None:
        table = pl.read_parquet(given.captions)
        captions = table[next(name for name in COLUMNS if name in table.columns)].drop_nulls().to_list()
    sources = (DeclaredSource("a", licence="cc-by-4.0"), DeclaredSource("b"), DeclaredSource("c"))
    pool = Pool("p", "url_table", "rows.parquet", columns=dict.fromkeys(GIVEN), sources=sources)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        identifier = load_engine(ROLE, load_settings(Path(folder) / "home", "embedded").profile)
        seconds, size = 0.0, dict.fromkeys(("plain", "registered", "downloads", "samples", "provenance"), 0)
        for shard in range(given.rows // SHARD_ROWS):
            tables = drawn(rng, captions, shard)
            begin = time.process_time()
            tables["provenance"] = provenance_rows(
                pool, tables["registered"], tables["downloads"], tables["samples"], identifier
            )
            path = Path(folder) / "table.parquet"
            tables["provenance"].write_parquet(path, compression="zstd")
            seconds += time.process_time() - begin
            for name in size:
                tables[name].write_parquet(path, compression="zstd")
                size[name] += path.stat().st_size
    rows = given.rows // SHARD_ROWS * SHARD_ROWS
    print(f"{rows:,} rows: raw/provenance {seconds:.1f} CPU s, {1e6 * seconds / rows:.1f} µs a row")
    for name, total in size.items():
        print(f"{name:12} {total / 2**20:8.1f} MiB, {total / rows:6.1f} bytes a row")


if __name__ == "__main__":
    main()

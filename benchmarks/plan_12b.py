"""What a pool of 12.8 billion pairs (DataComp xlarge) would take, from measured figures and stated assumptions.

    python benchmarks/plan_12b.py [--rows 12800000000] [--rows-per-shard 10000] [--set gpu_hour=2.5 …]

Prints a Markdown table. Measured figures come from benchmarks/results/; what could not be measured here is a line of
ASSUMED, which --set replaces. Nothing runs: it is arithmetic.
"""

import argparse
from pathlib import Path

import polars as pl

RESULTS = Path(__file__).parent / "results"
#: Name → value, what it is.
ASSUMED = {
    "image_bytes": (35_000.0, "bytes per image, 512 px (DataComp states 450 TB for xlarge)"),
    "download_rate": (1_000.0, "downloaded and resized images per second and 16-core machine"),
    "clip_rate": (800.0, "image-text pairs per second and GPU, CLIP ViT-L/14"),
    "caption_rate": (20.0, "images per second and GPU, eight sampled captions each and their similarity (SIEVE)"),
    "sieve_share": (0.3, "share of pairs that reach SIEVE, after the CLIP prefilter"),
    "gpu_hour": (2.0, "USD per GPU-hour"),
    "core_hour": (0.04, "USD per CPU-core-hour"),
    "tb_month": (23.0, "USD per TB and month of object storage"),
    "million_puts": (5.0, "USD per million PUT requests"),
    "million_gets": (0.4, "USD per million GET requests"),
    "shard_tables": (15.0, "tables per shard: raw 3, signals 6, fused 2, verdicts of 4 policies"),
    "reads_per_table": (8.0, "ranged GETs to write one shard table (3 inputs, footer and columns)"),
    "block": (100.0, "shards per Dagster partition where partitions are blocks of shards"),
}
SORTED_BYTES = 95  # a row, while a ledger of three signals is made (decision 0082)
#: GB per million rows (docs/operator/operations.md, ten policies and the default methods, photographs).
GB_PER_MILLION = {"raw, teachers": 0.2, "signals": 0.4, "fused": 0.05, "verdicts, cuts, ledgers, subsets": 0.4}


def measured() -> dict[str, float]:
    """CPU seconds per row or shard, bytes per row; from the CSV files."""
    runs = pl.read_csv(RESULTS / "orchestration.csv")
    growth = pl.concat([pl.read_csv(RESULTS / name) for name in ("growth.csv", "growth_128m.csv")])
    student = pl.read_csv(RESULTS / "icc_throughput.csv")

    def per_shard(way: str, measure: str) -> float:
        rows = runs.filter(pl.col("way") == way, pl.col("measure") == measure)
        largest = rows.filter(pl.col("shards") == pl.col("shards").max())
        return float((largest["value"] / largest["shards"]).median())  # type: ignore[arg-type]

    def largest_of(stage: str, measure: str) -> tuple[int, float]:
        rows = growth.filter(pl.col("stage") == stage, pl.col("measure") == measure).drop_nulls("rows").sort("rows")
        return int(rows["rows"][-1]), float(rows["value"][-1])

    def per_row(stage: str, measure: str) -> float:
        rows, value = largest_of(stage, measure)
        return value / rows

    return {
        "fuse": per_shard("plain", "fused/sieve_clip cpu_seconds"),
        "verdicts": per_shard("plain", "filtered/sieve_clip cpu_seconds"),
        "dagster": (per_shard("batched", "cpu_seconds") - per_shard("plain", "cpu_seconds")) / 3,  # three shard tables
        "event_bytes": 1e6 * per_shard("batched", "events MB") / 3,
        "cut": per_row("fuse_cut_ledger_npy", "cut_cpu_seconds"),
        "ledger": per_row("fuse_cut_ledger_npy", "ledger_cpu_seconds"),
        "lookup": per_row("lookup", "cpu_seconds"),
        "ledger_bytes": largest_of("fuse_cut_ledger_npy", "ledger_bytes_per_row")[1],
        "icc": 1 / float(student.filter(pl.col("scorer") == "icc")["captions_per_second"].max()),  # type: ignore[arg-type]
    }


def plan(rows: float, rows_per_shard: float, a: dict[str, float], m: dict[str, float]) -> list[tuple[str, str, str]]:
    """(what, arithmetic's result, money or remark) per line."""
    shards, policies = rows / rows_per_shard, 4
    hours = 3600.0
    tables = sum(GB_PER_MILLION.values()) * rows / 1e6 / 1e3  # TB
    images = rows * a["image_bytes"] / 1e12  # TB
    puts, gets = 2 * shards * a["shard_tables"], shards * a["shard_tables"] * a["reads_per_table"]
    download = rows / a["download_rate"] / hours
    clip, sieve = rows / a["clip_rate"] / hours, rows * a["sieve_share"] / a["caption_rate"] / hours

    def cores(seconds: float) -> tuple[str, str]:
        return f"{seconds / hours:,.0f} core-hours", f"{seconds / hours * a['core_hour']:,.0f} USD"

    made = shards * a["shard_tables"]
    blocks = made / a["block"]
    events, gigabytes = 2 * made, made * m["event_bytes"] / 1e9  # planned and done
    return [
        ("shards", f"{shards:,.0f} of {rows_per_shard:,.0f} rows", ""),
        ("images", f"{images:,.0f} TB", f"{images * a['tb_month']:,.0f} USD a month"),
        ("tables", f"{tables:,.0f} TB", f"{tables * a['tb_month']:,.0f} USD a month"),
        ("ledger of one policy", f"{rows * m['ledger_bytes'] / 1e12:,.2f} TB", "of the tables"),
        ("PUT requests of tables", f"{puts / 1e6:,.0f} million", f"{puts / 1e6 * a['million_puts']:,.0f} USD"),
        ("GET requests of tables", f"{gets / 1e6:,.0f} million", f"{gets / 1e6 * a['million_gets']:,.0f} USD"),
        ("download", f"{download:,.0f} hours of a 16-core machine", f"{16 * download * a['core_hour']:,.0f} USD"),
        ("CLIP score", f"{clip:,.0f} GPU-hours", f"{clip * a['gpu_hour']:,.0f} USD"),
        ("SIEVE of those that reach it", f"{sieve:,.0f} GPU-hours", f"{sieve * a['gpu_hour']:,.0f} USD"),
        ("ICC student (two cores measured)", *cores(2 * rows * m["icc"])),
        ("fuse", *cores(shards * m["fuse"])),
        (f"verdicts of {policies} policies", *cores(policies * shards * m["verdicts"])),
        (f"cuts of {policies} policies", *cores(policies * rows * m["cut"])),
        (f"ledgers of {policies} policies", *cores(policies * rows * m["ledger"])),
        ("look-up", *cores(rows * m["lookup"])),
        ("disk while a ledger is sorted", f"{rows * SORTED_BYTES / 1e12:,.1f} TB", "of the machine that makes it"),
        ("Dagster, a partition per shard", *cores(made * m["dagster"])),
        ("its events", f"{events / 1e6:,.1f} million", f"{gigabytes:,.0f} GB"),
        (f"Dagster, a partition per {a['block']:.0f} shards", *cores(blocks * m["dagster"])),
        ("its events", f"{2 * blocks / 1e6:,.2f} million", f"{gigabytes / a['block']:,.1f} GB"),
    ]  # fmt: skip


def main() -> None:
    """Print the table, then what was assumed and measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=12.8e9)
    parser.add_argument("--rows-per-shard", type=float, default=10_000)
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help=f"Of: {', '.join(ASSUMED)}.")
    given = parser.parse_args()
    values = {name: value for name, (value, _) in ASSUMED.items()}
    for item in given.set:
        name, _, value = item.partition("=")
        if name not in values:
            parser.error(f"--set {item}: expected one of {', '.join(values)}")
        values[name] = float(value)
    figures = measured()
    print("| what | how much | money or size |\n|---|---|---|")
    for line in plan(given.rows, given.rows_per_shard, values, figures):
        print("| " + " | ".join(line) + " |")
    print("\n| assumed | value | what it is |\n|---|---|---|")
    for name, (_, meaning) in ASSUMED.items():
        print(f"| `{name}` | {values[name]:g} | {meaning} |")
    print("\n| measured | value |\n|---|---|")
    for name, value in figures.items():
        print(f"| {name} | {value:.3g} |")


if __name__ == "__main__":
    main()

"""A table of addresses to a release: download politely, see who opted out, release a subset, check it elsewhere.

    python examples/url_table_to_release.py TABLE WORK [HOST ...]

TABLE has columns url and caption (parquet, csv, tsv); WORK is a new folder for all that is written; HOST names a server
inside your network, since images come from public addresses alone otherwise. What it printed on 24 addresses of a
server that forbids some of them stands at the end of this file.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl

import curation_assets as ca


def curate(*words: object, home: Path) -> str:
    """What a command prints; its notices go to the terminal."""
    command = [sys.executable, "-c", "from curation_assets.cli import main; main()", *map(str, words)]
    done = subprocess.run([*command, "--home", str(home)], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def main(table: Path, work: Path, hosts: Sequence[str] = ()) -> None:
    """Curate the images that `table` names in `work`, and release what policy clip keeps."""
    home = work / "home"
    # Owners of servers read the contact in the header User-Agent; a refusal, of robots.txt, a header or inside the
    # image, is obeyed unless `opt_outs` says otherwise (docs/operator/opt_outs.md).
    download = {"user_agent_contact": "mailto:you@example.org", "domain_requests_per_second": 10}
    pool = ca.add_pool("web", table, home=home, fraction=0.5, download=download, allow_hosts=hosts)
    pool.run()

    # Every row ends kept, dropped or failed, with a reason.
    samples = pool.table("raw/samples")
    for status, reason, count in samples.group_by("status", "reason").len().sort("status", "reason").iter_rows():
        print(f"{count} {status}{f', {reason}' if reason else ''}")

    # Which declaration forbade it, as its owner wrote it.
    refused = samples.filter(pl.col("reason") == "opt_out")["sample_id"]
    downloads = pool.table("raw/downloads").filter(pl.col("sample_id").is_in(refused.implode()))
    for message in downloads["message"].sort():
        print(message.partition(": ")[2])

    # A release never changes: ids, numbers and hashes, no image and no caption.
    curate("release", "create", "clip", "2026-11", "--pool", "web", home=home)
    kept = pool.subset("clip")
    print(f"release 2026-11: {kept.height} of {samples.height} rows")

    # Whoever gets a copy of the folder checks it without the pool.
    copy = shutil.copytree(home / "releases" / "web" / "2026-11", work / "copy" / "2026-11")
    print(curate("release", "verify", copy, home=work / "elsewhere").partition(", sha256")[0])

    # What is trained on names the release, not a policy whose subset may change tomorrow.
    print(f"{len(ca.dataset('release:2026-11', pool='web', home=home))} training samples")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])

PRINTED = """\
1 failed, download_http_404
2 failed, opt_out
2 failed, robots_txt
19 kept
forbidden by content-usage train-ai=n (header)
forbidden by x-robots-tag noai (header)
release 2026-11: 10 of 24 rows
2026-11: 8 files, 10 samples; all as released
10 training samples
"""

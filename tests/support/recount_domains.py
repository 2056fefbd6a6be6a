"""The domains of some sources' kept rows, counted from a release's ledger and the pool's tars. It shares no code with
the package, and runs as a program of its own:

    python recount_domains.py RELEASE_FOLDER TARS_FOLDER SOURCE …

prints {domain: [rows, bytes of images, words of captions]} as JSON. A domain is the last two labels of a host, in the
ASCII form of IDNA: enough for hosts under suffixes of one label.
"""

import json
import sys
import tarfile
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow.parquet as pq


def domain_of(url: str) -> str:
    host = urlsplit(url).hostname or ""
    labels = host.rstrip(".").encode("idna").decode("ascii").lower().split(".")
    return ".".join(labels[-2:])


def samples_of(tar: Path) -> list[dict[str, bytes]]:
    """Ending → content of each sample, in the order of the tar."""
    samples: dict[str, dict[str, bytes]] = {}
    with tarfile.open(tar) as file:
        for member in file:
            key, _, ending = member.name.partition(".")
            content = file.extractfile(member)
            samples.setdefault(key, {})[ending] = content.read() if content else b""
    return list(samples.values())


def main(release: Path, tars: Path, sources: set[str]) -> dict[str, list[int]]:
    table = pq.read_table(release / "ledger", columns=["shard", "source_row", "verdict"]).to_pylist()
    kept = {(str(row["shard"]).rpartition("-")[2], row["source_row"]) for row in table if row["verdict"] == "kept"}
    found: dict[str, list[int]] = {}
    for path in sorted(tars.glob("*.tar")):
        for number, sample in enumerate(samples_of(path)):
            facts = json.loads(sample["json"])
            if (path.stem, number) in kept and facts.get("source") in sources:
                counted = found.setdefault(domain_of(facts["url"]), [0, 0, 0])
                for place, more in enumerate((1, len(sample["jpg"]), len(sample["txt"].split()))):
                    counted[place] += more
    return found


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), set(sys.argv[3:]))))

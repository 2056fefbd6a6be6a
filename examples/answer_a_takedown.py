"""Answer a takedown, and a question about rights: what do you hold of this image, may you, and was it removed?

    python examples/answer_a_takedown.py IMAGE HOME POOL

IMAGE is the file that somebody asks about, HOME the home of a pool that has run and holds it (examples/
photographs_to_training_set.py makes one). What it printed after that example stands at the end of this file.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import curation_assets as ca


def curate(*words: str, home: Path) -> str:
    """What a command prints; its notices go to the terminal."""
    command = [sys.executable, "-c", "from curation_assets.cli import main; main()", *words, "--home", str(home)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main(image: Path, home: Path, pool: str) -> None:
    """Find the samples of `image`, say what is known of their rights, take them down, and show that they went."""
    sha256 = hashlib.sha256(image.read_bytes()).hexdigest()

    # What is held: samples by the bytes of their image, with every policy's verdict.
    held = ca.open_pool(pool, home=home).why(sha256)
    ids = [row["sample_id"] for row in held]
    print(f"{len(ids)} sample of this image")

    # May it be used: licence, creator, and what its owner declares, as the input brought them.
    provenance = ca.open_pool(pool, home=home).table("raw/provenance")
    for row in provenance.filter(provenance["sample_id"].is_in(ids)).iter_rows(named=True):
        print(f"source {row['source']}, licence {row['licence'] or 'unknown'}, creator {row['creator'] or 'unknown'}")

    # From `add` on nothing denied is downloaded or selected; `apply` removes rows, images, logs, and certifies it.
    curate("takedown", "add", "--sha256", sha256, "--reason", "copyright", home=home)
    curate("takedown", "apply", home=home)
    (certificate,) = (home / "takedown" / "certificates").glob(f"{pool}-*.json")
    said = json.loads(certificate.read_text(encoding="utf-8"))
    print(f"certificate: {len(said['samples'])} sample, {len(said['left'])} places left, not done: {said['not_done']}")

    left = ca.open_pool(pool, home=home).table("raw/samples")
    for row in left.filter(left["sample_id"].is_in(ids)).iter_rows(named=True):
        print(f"what stays: a row that is {row['status']}, {row['reason']}, caption {row['caption']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])

PRINTED = """\
1 sample of this image
source mine, licence unknown, creator unknown
certificate: 1 sample, 0 places left, not done: []
what stays: a row that is dropped, takedown, caption None
"""

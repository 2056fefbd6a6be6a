"""A folder of photographs with captions to a training set: declare, run, ask why, compare, read for training.

    python examples/photographs_to_training_set.py PHOTOS WORK

PHOTOS holds KEY.jpg with KEY.txt, images with any csv of their names and captions (columns such as file,caption), or
tars of img2dataset; WORK is a new folder for all that is written. What it printed on 24 photographs of Flickr8k stands
at the end of this file.
"""

import sys
from pathlib import Path

import curation_assets as ca


def main(photos: Path, work: Path) -> None:
    """Curate `photos` in `work`, and read the subset as a trainer would."""
    # A pool is a declaration: YAML in WORK/home/pools, nothing is computed or copied yet.
    pool = ca.add_pool("mine", photos, home=work / "home", fraction=0.5)

    # Scores, verdicts, subsets, report. Stopped, the same line goes on where it was.
    pool.run()

    kept = pool.subset("clip")
    print(f"clip keeps {kept.height} of {pool.table('raw/samples').height} photographs")

    # The audit: which rule decided about a sample, and with which value.
    sample = kept["sample_id"][0]
    for row in pool.why(sample):
        verdict = next(one for one in row["policies"] if one["policy"] == "clip")
        print(f"the first of them: {verdict['verdict']}, {verdict['decided_by']} {verdict['value']:.2f}")

    # What another policy would favour.
    difference = pool.diff("clip", "icc")
    overlap = difference.overlap
    print(f"clip and icc share {overlap.both} of {overlap.left} and {overlap.right}")

    # For torch, read from the original tars or the pool's own: no copy of an image is made.
    loaded = ca.dataset("clip", pool="mine", home=work / "home")
    print(f"{len(loaded)} training samples")
    print(f"report: {(work / 'home' / 'work' / 'mine' / 'downstream' / 'report' / 'report.html').relative_to(work)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

PRINTED = """\
clip keeps 12 of 24 photographs
the first of them: kept, signals.clip_score 0.55
clip and icc share 8 of 12 and 12
12 training samples
report: home/work/mine/downstream/report/report.html
"""

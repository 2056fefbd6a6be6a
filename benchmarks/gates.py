"""What gates that cut by the answer of a model or a pattern cost clean rows: `python -m benchmarks.gates --data DIR`.

Clean are captions that people wrote of photographs (COCO, Flickr8k), the photographs with their captions, web pictures
that a person called photographs (owners of whom nothing was trained on), and sentences of a treebank (EWT, test) that a
gate lets pass by the treebank's own tags. DIR holds captions, photos, web and treebank. Intervals: Wilson, 95 %. Writes
benchmarks/results/gates.csv and the table in docs/user/choosing.md. A quarter of an hour.
"""

import argparse
import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.image_kind import labelled
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import Values, get_method
from curation_assets.numeric.agreement import wilson_interval
from curation_assets.numeric.dependency import Token
from curation_assets.stores.images import decode_image, tar_index
from lab.photo_pairs_read import read_photos

RESULTS = Path(__file__).parent / "results" / "gates.csv"
PAGE = Path(__file__).parents[1] / "docs" / "user" / "choosing.md"
BEGIN, END = "<!-- gates: written by benchmarks/gates.py -->\n", "<!-- end of gates -->"


class Treebank:
    """A parser that reads the trees that people drew."""

    def __init__(self, path: Path) -> None:
        self.trees: dict[str, list[Token]] = {}
        for block in gzip.decompress(path.read_bytes()).decode().split("\n\n"):
            lines = [line for line in block.split("\n") if line]
            text = next((line.removeprefix("# text = ") for line in lines if line.startswith("# text = ")), "")
            rows = [line.split("\t") for line in lines if line.split("\t")[0].isdigit()]
            heads = [int(row[6]) - 1 if row[6] != "0" else place for place, row in enumerate(rows)]
            self.trees[text] = [
                Token(row[1], row[3], row[4], row[7], head) for row, head in zip(rows, heads, strict=True)
            ]

    def parse_texts(self, texts: Sequence[str]) -> list[list[Token]]:
        """(N,) texts of the treebank → their tokens."""
        return [self.trees[text] for text in texts]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    profile = load_profile("photos")
    rows: list[dict[str, Any]] = []

    def add(gate: str, cuts_by: str, margin: str, clean: str, cut: np.ndarray) -> None:
        low, high = wilson_interval(float(cut.mean()), len(cut))
        rows.append({"gate": gate, "cuts_by": cuts_by, "margin": margin, "clean": clean, "n": len(cut),
                     "cut": int(cut.sum()), "low": round(low, 5), "high": round(high, 5)})  # fmt: skip
        print(rows[-1], flush=True)

    def run(name: str, **columns: Any) -> Values:
        method = get_method(name)
        return method.function(**columns, **{role: load_engine(role, profile) for role in method.roles})

    captions = [
        caption
        for name in ("coco_val2017", "flickr8k")
        for caption in pl.read_parquet(data / "captions" / f"{name}_captions.parquet")["caption"].to_list()
    ]
    people = "captions by people"
    add("`english`, `icc`", "likely language", "thresholds, one word left out", people,
        run("english", caption=captions).value == 0)  # fmt: skip
    rules = np.array(run("datacomp_caption", caption=captions).details["rule"])
    papers = "language of `datacomp_*`, `image_based`, `laion_filter`"
    add(papers, "likeliest language", "none: the papers' rule", people, rules == "not_english")
    add("`personal_data`", "patterns, check digits", "–", people, run("personal_data", caption=captions).value == 0)

    treebank = Treebank(data / "treebank" / "en_ewt-test.conllu.gz")
    for name, cuts_by in (("complexity_action", "likeliest parse"), ("conceptual_captions", "likeliest tags")):
        engines = {role: load_engine(role, profile) for role in get_method(name).roles}
        by_people = get_method(name).function(list(treebank.trees), **{**engines, "parser": treebank}).value == 1
        clean = [text for text, passes in zip(treebank.trees, by_people, strict=True) if passes]
        add(f"`{name}`", cuts_by, "none: the paper's rule", "sentences that pass by people's tags",
            get_method(name).function(clean, **engines).value == 0)  # fmt: skip

    photographs = read_photos(data / "photos")
    kinds: Any = load_engine("kind_classifier", profile)
    unsafe: Any = load_engine("safety_classifier", profile)
    shares, safe = [], []
    for start in range(0, len(photographs), 100):
        images = [photograph.load() for photograph in photographs[start : start + 100]]
        shares.append(kinds.kind_probabilities(images)[:, kinds.kinds.index("photo")])
        safe.append(1 - unsafe.unsafe_probabilities(images))
    web = labelled(data / "web").filter("is_held_out")
    pictures = [
        decode_image(tar_index(data / "web" / shard).read(f"{key}.jpg"))
        for shard, key in web.select("shard", "key").iter_rows()
    ]
    of_web, is_photo = (
        kinds.kind_probabilities(pictures)[:, kinds.kinds.index("photo")],
        (web["kind"] == "photo").to_numpy(),
    )
    asked = "probability of a photograph"
    for threshold in (0.5, 0.2):
        gate = f"`image_kind` from {threshold}"
        add(gate, asked, str(threshold), "photographs", np.concatenate(shares) < threshold)
        add(gate, asked, str(threshold), "photographs of web pages", of_web[is_photo] < threshold)
        add(f"{gate}, *not* cut", asked, str(threshold), "other pictures of web pages", of_web[~is_photo] >= threshold)
    for threshold in (0.8, 0.2):
        add(f"`nsfw` from {threshold}", "probability of safe", str(threshold), "photographs",
            np.concatenate(safe) < threshold)  # fmt: skip

    few = photographs[::5]
    spotter: Any = load_engine("text_spotter", profile)
    boxes = [
        [{**vars(box), "polygon": list(box.polygon)} for box in found]
        for start in range(0, len(few), 50)
        for found in spotter.spot_text([photograph.load() for photograph in few[start : start + 50]])
    ]
    add("`watermark`", "words read in the image", "–", "photographs", run("watermark", text_boxes=boxes).value == 0)
    spotted = run("text_spotting", caption=[photograph.captions[0] for photograph in few], text_boxes=boxes)
    add("`text_spotting`", "words read in the image", "confidence .8: the paper's", "photographs with captions",
        spotted.value == 0)  # fmt: skip

    found = pl.DataFrame(rows)
    found.write_csv(RESULTS)
    lines = ["| gate | cuts by | margin | clean rows | wrong | 95 % |\n", "|---|---|---|---|---|---|\n"]
    for row in rows:
        share, low, high = (f"{100 * value:.3g} %" for value in (row["cut"] / row["n"], row["low"], row["high"]))
        lines.append(f"| {row['gate']} | {row['cuts_by']} | {row['margin']} | {row['n']:,} {row['clean']} | "
                     f"{row['cut']:,} ({share}) | {low.removesuffix(' %')}–{high} |\n")  # fmt: skip
    page = PAGE.read_text()
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{''.join(lines)}\n{END}{after}")


if __name__ == "__main__":
    main()

"""The method watermark on marks planted into photographs, and on images of web pages, which are unmarked.

    python benchmarks/watermarks.py --data ../shared/data [--boxes BOXES.jsonl]

Marks of three styles (a text tiled over the image, one in a corner, a dark band with a text as agencies have it), three
opacities; half of the texts are of the word lists. Rules were chosen on photos/000000.tar and on one half of the web
pairs' owners; reported are photos/000005.tar and the other half. Intervals: Wilson's over photographs, owners drawn
with replacement for the web. Precision is what follows where one image of 20, or of 100, is marked.
`--boxes` keeps what the text spotter read, for other rules. Writes benchmarks/results/watermarks.csv; rows of other
versions of the method stay there.
"""

import argparse
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from PIL import Image, ImageDraw, ImageFont

from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods.watermark import METHOD
from curation_assets.numeric.agreement import wilson_interval
from curation_assets.numeric.text_masking import TextBox
from curation_assets.numeric.watermarks import find_watermark
from curation_assets.stores.images import decode_image, tar_index

RESULTS = Path(__file__).parent / "results" / "watermarks.csv"
RESAMPLES = 1000
LISTED = ("shutterstock", "alamy", "getty images", "SAMPLE")
UNLISTED = ("kestrelpix", "Okafor Photo", "Northlight Studio", "lenabrandt")
STYLES, OPACITIES = ("tiled", "corner", "band"), (0.3, 0.5, 0.8)
HALVES = {"choosing": "000000.tar", "reporting": "000005.tar"}
PREVALENCES = (0.05, 0.01)


def marked(image: Image.Image, text: str, style: str, opacity: float) -> Image.Image:
    """An image with a mark, its letters a fourteenth of the longer side high (a twentieth in a corner)."""
    longer, alpha = max(image.size), round(255 * opacity)
    font = ImageFont.load_default(round(longer / (20 if style == "corner" else 14)))
    left, top, right, bottom = font.getbbox(text)
    width, height = round(right - left), round(bottom - top)
    layer = Image.new("RGBA", (2 * longer, 2 * longer))
    draw = ImageDraw.Draw(layer)
    x0, y0 = (2 * longer - image.width) // 2, (2 * longer - image.height) // 2  # of the image in the layer
    if style == "tiled":
        for row, y in enumerate(range(0, 2 * longer, 4 * height)):
            for x in range(-(row % 2) * width, 2 * longer, round(1.6 * width)):
                draw.text((x, y), text, font=font, fill=(255, 255, 255, alpha))
        layer = layer.rotate(20)
    elif style == "corner":
        place = (x0 + image.width - width - 4, y0 + image.height - height - 8)
        draw.text(place, text, font=font, fill=(255, 255, 255, alpha))
    else:
        y = y0 + round(0.8 * image.height)
        draw.rectangle((x0, y, x0 + image.width, y + 2 * height), fill=(0, 0, 0, alpha))
        draw.text((x0 + 6, y + height // 3), text, font=font, fill=(255, 255, 255, max(alpha, 128)))
    layer = layer.crop((x0, y0, x0 + image.width, y0 + image.height))
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


def images_of(tar: Path, count: int | None) -> Iterator[tuple[str, Image.Image]]:
    """(tar:KEY.jpg, image) of a tar's first images."""
    index = tar_index(tar)
    for name in sorted(name for name in index.members if name.endswith(".jpg"))[:count]:
        yield f"{tar.name}:{name}", decode_image(index.read(name))


class Reader:
    """What the text spotter reads, by a name; kept in a file where one is given."""

    def __init__(self, path: Path | None) -> None:
        self.spotter: Any = load_engine("text_spotter", load_profile("photos"))
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.is_file() else []
        self.known = {row["name"]: row["boxes"] for row in map(json.loads, lines)}

    def __call__(self, name: str, image: Image.Image) -> list[TextBox]:
        if name not in self.known:
            self.known[name] = [
                {**vars(box), "polygon": list(box.polygon)} for box in self.spotter.spot_text([image])[0]
            ]
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps({"name": name, "boxes": self.known[name]}) + "\n")
        return [TextBox.of(row) for row in self.known[name]]


def planted(data: Path, count: int, read: Reader) -> list[dict[str, Any]]:
    """A row per photograph, style and opacity: half, style, opacity, is_listed, is_flagged; unmarked: style none."""
    rows = []
    for half, tar in HALVES.items():
        for i, (name, image) in enumerate(images_of(data / "photos" / tar, count)):
            texts = (LISTED, UNLISTED)[i % 2]
            text = texts[i // 2 % len(texts)]
            for style, opacity in [("none", 0.0), *((s, o) for s in STYLES for o in OPACITIES)]:
                shown = image if style == "none" else marked(image, text, style, opacity)
                flag = find_watermark(read(f"{name} {style} {opacity} {text}" if opacity else name, shown)) is not None
                rows.append({"half": half, "style": style, "opacity": opacity, "is_listed": i % 2 == 0, "flag": flag})
    return rows


def unmarked(data: Path, tars: int, read: Reader) -> pl.DataFrame:
    """half, owner, kind, flag of each image of web pages; prints the names of those flagged, to be looked at."""
    pairs = {row["key"]: row for row in pl.read_parquet(data / "web" / "pairs.parquet").iter_rows(named=True)}
    rows = []
    for tar in sorted((data / "web").glob("train-*.tar"))[:tars]:
        for name, image in images_of(tar, None):
            pair = pairs[name.split(":")[1].removesuffix(".jpg")]
            half = ("choosing", "reporting")[zlib.crc32(pair["owner"].encode()) % 2]
            mark = find_watermark(read(name, image))
            rows.append({"half": half, "owner": pair["owner"], "kind": pair["kind_guess"], "flag": mark is not None})
            if mark is not None:
                print(half, name, pair["kind_guess"], mark.rule, repr(mark.text))
    return pl.DataFrame(rows)


def owner_interval(frame: pl.DataFrame) -> tuple[float, float]:
    """95 % interval of the share that is flagged, owners drawn with replacement."""
    sums = frame.group_by("owner").agg(pl.col("flag").sum(), n=pl.len()).sort("owner").select("flag", "n").to_numpy()
    drawn = np.random.default_rng(0).integers(0, len(sums), (RESAMPLES, len(sums)))
    shares = sums[drawn, 0].sum(axis=1) / sums[drawn, 1].sum(axis=1)
    return float(np.quantile(shares, 0.025)), float(np.quantile(shares, 0.975))


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--photos", type=int, default=16, help="photographs of each half")
    parser.add_argument("--tars", type=int, default=2, help="of the web pairs")
    parser.add_argument("--boxes", type=Path)
    given = parser.parse_args()
    read = Reader(given.boxes)
    marks, web = pl.DataFrame(planted(given.data, given.photos, read)), unmarked(given.data, given.tars, read)
    rows: list[dict[str, Any]] = []

    def add(half: str, of: str, n: int, share: float, interval: tuple[float, float]) -> None:
        low, high = (round(number, 4) for number in interval)
        rows.append({"version": METHOD.version, "half": half, "of": of, "n": n, "flagged": round(share, 4),
                     "low": low, "high": high})  # fmt: skip

    for half in HALVES:
        of_half = marks.filter(pl.col("half") == half)
        for style in ("none", *STYLES):
            for opacity in (None, *OPACITIES) if style != "none" else (None,):
                for names, listed in (("", None), (", listed name", True), (", other name", False)):
                    part = of_half.filter(
                        pl.col("style") == style,
                        pl.lit(True) if opacity is None else pl.col("opacity") == opacity,
                        pl.lit(True) if listed is None else pl.col("is_listed") == listed,
                    )
                    share = float(part["flag"].mean())  # type: ignore[arg-type]
                    label = f"photograph, {style}" + (f" {opacity}" if opacity else "") + names
                    if style != "none" or not names:
                        add(half, label, part.height, share, wilson_interval(share, part.height))
        recall = float(of_half.filter(pl.col("style") != "none")["flag"].mean())  # type: ignore[arg-type]
        of_web = web.filter(pl.col("half") == half)
        for kind in ("", *sorted(of_web["kind"].unique())):
            part = of_web.filter(pl.col("kind") == kind) if kind else of_web
            share = float(part["flag"].mean())  # type: ignore[arg-type]
            add(half, f"web {kind}".strip(), part.height, share, owner_interval(part))
        false = float(of_web["flag"].mean())  # type: ignore[arg-type]
        low, high = owner_interval(of_web)
        for share in PREVALENCES:
            precision = [
                share * recall / max(1e-12, share * recall + (1 - share) * rate) for rate in (false, high, low)
            ]
            add(half, f"precision where {share:.0%} are marked", of_web.height, precision[0],
                (precision[1], precision[2]))  # fmt: skip
    written = pl.DataFrame(rows)
    if RESULTS.is_file():
        kept = pl.read_csv(RESULTS, schema_overrides={"version": pl.String})
        written = pl.concat([kept.filter(pl.col("version") != METHOD.version), written])
    written.write_csv(RESULTS)
    with pl.Config(tbl_rows=-1, fmt_str_lengths=60):
        print(pl.DataFrame(rows))


if __name__ == "__main__":
    main()

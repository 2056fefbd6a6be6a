"""What mixtures of two sources are worth to models of photographs: noisy photographs and pictures of the web.

    python benchmarks/mixtures.py --pools 3

Each pool has photographs of two shards with planted noise (one draw a pool) and as many pairs of the web (another draw
a pool), sources `photographs` and `web`. Every policy takes a quarter; models on frozen features of the profile's
encoder are measured on 500 photographs that nothing was trained or chosen on. Recipes have the settings of the page;
none is chosen here. Writes benchmarks/results/mixtures.csv.gz and prints the comparison and CPU seconds per 1,000 rows.
"""

import argparse
import io
import json
import random
import tarfile
import time
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from training_sets import ALT_TEXTS, HELD_OUT, RESULTS, SHARED, metrics_of_pool, tables_of_results, with_options

from curation_assets.core.settings import Settings, load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.sources.declaration import add_pool, list_pools
from curation_assets.sources.noisy_photos import write_noisy_photos
from curation_assets.world.web_texts import noise_texts

PHOTOGRAPHS, TARGET = ("000002", "000003"), "000004"
WEB, PHOTOS = "web", "photographs"
CLIP = "signals.clip_score"
RECIPES: dict[str, dict[str, Any]] = {
    "equal": {"kind": "mix", "alpha": 0.0, "fraction": 0.25, "rank_by": CLIP},
    "to_photographs": {"kind": "mix", "shares": {PHOTOS: 0.8, WEB: 0.2}, "fraction": 0.25, "rank_by": CLIP},
    "either": {"kind": "any_of", "shares": {CLIP: 0.15, "signals.icc": 0.15}},
    "for_photographs": {
        "kind": "concept_coverage", "bins_by": "signals.neg_clip_loss", "bin_weights": [0, 0.01, 0.99],
    },
}  # fmt: skip
POLICIES = {
    "random": "rank_by: random\nfraction: 0.25",
    "clip": f"rank_by: {CLIP}\nfraction: 0.25",
    "icc_after_clip": f"rank_by: signals.icc\nfraction: 0.25\nprefilters: [{{rank_by: {CLIP}, fraction: 0.5}}]",
    "concept_coverage": "rank_by: fused.concept_coverage\nfraction: 0.25",
    "for_photographs": "rank_by: fused.for_photographs\nfraction: 0.25",
    "either": "rank_by: fused.either\nthreshold: 1",
    **{name: f"rank_by: fused.{name}\nthreshold: 1\nrepeats: true" for name in ("equal", "to_photographs")},
}


def write_source(folder: Path, number: int, given: argparse.Namespace) -> None:
    """Tars of both sources, each sample's json with its source."""
    texts = noise_texts(pl.read_parquet(given.shared / ALT_TEXTS)["text"].to_list())
    tars = [given.shared / "photos" / f"{shard}.tar" for shard in PHOTOGRAPHS]
    write_noisy_photos(tars, folder / "noisy", seed=number, texts=texts, size=given.size)
    copy_with_source(sorted((folder / "noisy").glob("*.tar")), folder / "pool" / "photographs.tar", PHOTOS, None, 0)
    web = sorted((given.shared / "web").glob("train-*.tar"))
    copy_with_source(web, folder / "pool" / "web.tar", WEB, given.size, number)


def copy_with_source(tars: list[Path], into: Path, source: str, size: int | None, seed: int) -> None:
    """All samples of tars, or so many drawn, in one tar."""
    samples: dict[str, dict[str, bytes]] = {}
    for path in tars:
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                if file is not None:
                    key, _, extension = member.name.partition(".")
                    samples.setdefault(key, {})[extension] = file.read()
    keys = sorted(samples)
    if size is not None:
        keys = sorted(random.Random(seed).sample(keys, size))
    into.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(into, "w") as tar:
        for key in keys:
            parts = samples[key]
            parts["json"] = json.dumps({**json.loads(parts.get("json", b"{}")), "source": source}).encode()
            for extension, data in sorted(parts.items()):
                info = tarfile.TarInfo(f"{key}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def declare(settings: Settings, number: int, given: argparse.Namespace) -> str:
    """A pool of both sources; returns its name."""
    name, photos = f"mixtures_{number}", given.shared / "photos"
    folder = settings.home / "mixtures" / name
    if not (folder / "pool" / "web.tar").is_file():
        write_source(folder, number, given)
        captions = pl.read_parquet(photos / "captions.parquet").filter(pl.col("shard") == TARGET).select("caption")
        captions.write_csv(folder / "target.csv")
    options = {
        "methods": ["neg_clip_loss"],
        "recipes": {"concept_coverage": {}},
        "distil": False,
        "downstream": True,
        "downstream_sizes": [],
        "downstream_seeds": list(range(given.seeds)),
        "downstream_controls": ["all"],
        "evaluation_set": str(photos / f"{HELD_OUT}.tar"),
        "downstream_trainers": ["captioning", "retrieval"],
        "caption_metrics": ["bleu", "meteor", "rouge_l", "cider"],
        "policies": list(POLICIES),
    }
    if name not in list_pools(settings):
        add_pool(settings, name, folder / "pool", options=options)
    own = settings.pools_root / name
    (own / "recipes").mkdir(parents=True, exist_ok=True)
    for recipe, content in RECIPES.items():
        target = {"target": str(folder / "target.csv")} if recipe == "for_photographs" else {}
        text = json.dumps({"name": recipe, **content, **target})  # JSON is YAML
        (own / "recipes" / f"{recipe}.yaml").write_text(text)
    for policy, text in POLICIES.items():
        (own / f"{policy}.yaml").write_text(f"name: {policy}\n{text}\n")
    return with_options(settings, name, options)


def costs(settings: Settings, name: str) -> dict[str, float]:
    """CPU seconds per 1,000 rows of each recipe's fit and score, with what they read made before."""
    ctx = PoolContext.open(settings, name)
    run_with_upstream(ctx, CLIP.replace(".", "/"), "signals/icc", "signals/neg_clip_loss", "raw/provenance")
    rows = ctx.store.scan("raw/samples").collect().height
    spent = {}
    for recipe in RECIPES:
        began = time.process_time()
        run_with_upstream(ctx, f"fused/{recipe}")
        spent[recipe] = round(1000 * (time.process_time() - began) / rows, 2)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Path("data/benchmarks"))
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with photos, web pairs and captions")
    parser.add_argument("--pools", type=int, default=3, help="draws of noise and of web pairs")
    parser.add_argument("--size", type=int, default=700, help="rows of each source")
    parser.add_argument("--seeds", type=int, default=1, help="training seeds")
    given = parser.parse_args()
    console, settings = Console(), load_settings(given.home, "photos")
    parts = []
    for number in range(given.pools):
        name = declare(settings, number, given)
        console.print(name, costs(settings, name), highlight=False)
        parts.append(metrics_of_pool(settings, name, console))
    results = pl.concat(parts).with_columns(pl.col("value").round(5))
    results = results.select("pool", "trainer", *results.columns[:8])
    order = ("pool", "trainer", "metric", "policy", "seed")
    results.sort(order).write_csv(RESULTS / "mixtures.csv.gz", compression="gzip")
    print("\n\n".join(tables_of_results("mixtures", results)))


if __name__ == "__main__":
    main()

"""What are subsets worth to models trained on them? Policies and controls at two sizes, over several pools and seeds.

    make bench-downstream             (or: python benchmarks/training_sets.py scenes --pools 4 --seeds 2)
    python benchmarks/training_sets.py photos --pools 2 --seeds 1
    python benchmarks/training_sets.py scenes --set-choices --sizes 0.25 --pools 2 --seeds 1
    python benchmarks/training_sets.py photos --set-choices --sizes 0.25 --pools 3 --seeds 1 --from-scratch 0
    python benchmarks/training_sets.py --into benchmarks/results/training_sets.md  # the tables from the results alone

`scenes`: pools of drawn scenes with planted noise, measured on held-out scenes. `photos`: photographs with planted
noise (sources/noisy_photos.py), one draw of the noise per pool, measured on the photographs of one shard that
nothing was trained or chosen on; models on frozen features of the profile's encoder, and models from scratch.
--set-choices: policies that look at the whole set, beside random, CLIP, SIEVE and ICC; the targets of norm_sim are
photographs of a shard that the pool then has not, or scenes of a stream of their own. They need Debian's wordnet-base.
Writes benchmarks/results/training_sets_{scenes,photos}[_set_choices].csv.gz (a row per pool, training set, size, seed
and metric) and prints the comparison. What is finished is reused.
"""

import argparse
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from methods import markdown, with_methods
from rich.console import Console

from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import Settings, load_settings
from curation_assets.evaluation.comparison import compare_training_sets
from curation_assets.evaluation.subset_training import trainers_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.sources.declaration import add_pool, add_world_pool, list_pools, load_pool, save_pool
from curation_assets.sources.noisy_photos import TRUTH, write_noisy_photos
from curation_assets.stores.documents import save_text
from curation_assets.world.web_texts import noise_texts

RESULTS = Path(__file__).parent / "results"
SHARED = Path(__file__).parents[2] / "shared/data"
WORD_RATINGS, ALT_TEXTS = "words/concreteness_ratings_half.tsv", "captions/alt_texts.parquet"
TRAINED_ON, HELD_OUT = ("000000", "000002", "000003", "000004"), "000005"
POLICIES = (
    "random", "clip", "icc", "icc_after_clip", "sieve", "sieve_clip", "tmars", "complexity_action", "reward",
)  # fmt: skip
METHODS = ["tmars", "complexity_action", "reward", "concreteness_lexicon"]
SET_CHOICES = (
    "random", "clip", "icc", "icc_after_clip", "sieve", "neg_clip_loss", "neg_clip_loss_norm_sim",
    "clip_concept_balance", "concept_coverage", "ecodatum",
)  # fmt: skip
SET_METHODS = [
    "neg_clip_loss", "norm_sim", "image_blur", "image_dark", "image_light", "image_entropy", "image_aspect", "english",
    "flipped_clip_score", "object_count",
]  # fmt: skip
SET_RECIPES = ("concept_balance", "concept_coverage", "ecodatum")
TARGET = "000004"  # with --set-choices
SIZES = (0.1, 0.25)
#: Trainers from scratch on images of 64 px; their budgets are a sixth and a quarter of the defaults.
FROM_SCRATCH = {
    "captioning_pixels": {"samples_seen": 2_400, "batch_size": 48},
    "retrieval_pixels": {"samples_seen": 4_800, "batch_size": 96},
}
FIRST_SEED = 9_310_001  # of pools
SHOWN = ("bleu_4", "cider", "text_to_image_recall@1", "image_to_text_recall@1", "mean_recall@5")
BEGIN, END = "<!-- training sets -->", "<!-- /training sets -->"


def settings_of(home: Path, profile: str, shared: Path) -> Settings:
    """Settings with the word ratings of the control `lexicon`, where they are at hand."""
    settings = load_settings(home, profile)
    ratings = shared / WORD_RATINGS
    return with_methods(settings, {"concreteness_lexicon": {"path": str(ratings)}} if ratings.is_file() else {})


def options_of(given: argparse.Namespace, shared: Path) -> dict[str, Any]:
    """What all pools of a run have in common."""
    methods = METHODS if (shared / WORD_RATINGS).is_file() else METHODS[:-1]
    own: dict[str, Any] = {"methods": methods, "policies": list(POLICIES)}
    if given.set_choices:
        own = {
            "methods": SET_METHODS,
            "policies": list(SET_CHOICES),
            "recipes": {name: {} for name in SET_RECIPES},
            "downstream_controls": ["oracle", "all"],
        }
    return {
        **own,
        "downstream": True,
        "downstream_sizes": list(given.sizes),
        "downstream_seeds": list(range(given.seeds)),
        "caption_metrics": ["bleu", "meteor", "rouge_l", "cider"],
    }


def declare_scenes(settings: Settings, number: int, given: argparse.Namespace) -> str:
    """A pool of drawn scenes; returns its name."""
    name = f"scenes_{'choices_' * given.set_choices}{number}"
    options = {"distillation_size": 700, "distil": True, **options_of(given, given.shared)}
    if name not in list_pools(settings):
        add_world_pool(settings, name, size=given.size, seed=FIRST_SEED + number, shard_size=1000, options=options)
    return with_options(settings, name, options)


def declare_photos(settings: Settings, number: int, given: argparse.Namespace) -> str:
    """Photographs with the noise of one draw; returns the pool's name."""
    name = f"photos_{'choices_' * given.set_choices}{number}"
    folder = settings.home / "photographs" / name
    photos = given.shared / "photos"
    shards = [shard for shard in TRAINED_ON if not (given.set_choices and shard == TARGET)]
    if not folder.is_dir():
        texts = noise_texts(pl.read_parquet(given.shared / ALT_TEXTS)["text"].to_list())
        write_noisy_photos([photos / f"{shard}.tar" for shard in shards], folder, seed=number, texts=texts)
    options = {
        **options_of(given, given.shared),
        "truth": str(folder / TRUTH),
        "distil": False,
        "evaluation_set": str(photos / f"{HELD_OUT}.tar"),
        "downstream_trainers": ["captioning", "retrieval", *(FROM_SCRATCH if number < given.from_scratch else ())],
        "downstream_budget": FROM_SCRATCH,
    }
    for option in ("policies", "methods"):  # no reward model for photographs
        options[option] = [name for name in options[option] if name != "reward"]
    if given.set_choices:
        options["reference_images"] = str(photos / f"{TARGET}.tar")
    if name not in list_pools(settings):
        add_pool(settings, name, folder, options=options)
    return with_options(settings, name, options)


def with_options(settings: Settings, name: str, options: dict[str, Any]) -> str:
    """Declare these options for a pool that may have been declared with others, and return its name."""
    pool = load_pool(settings, name)
    tupled = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    save_pool(settings, replace(pool, options=replace(pool.options, **tupled)))
    return name


def metrics_of_pool(settings: Settings, name: str, console: Console) -> pl.DataFrame:
    """Train what is missing; all metrics of a pool."""
    ctx = PoolContext.open(settings, name, progress=reporter_for(console))
    parts = []
    for trainer in trainers_of(ctx):
        run_with_upstream(ctx, f"downstream/{trainer}")
        parts.append(ctx.store.read(f"downstream/{trainer}").with_columns(pl.lit(trainer).alias("trainer")))
    return pl.concat(parts).with_columns(pl.lit(name).alias("pool"))


def page() -> str:
    """Tables of all that was measured so far, as Markdown."""
    parts = []
    for kind in ("scenes", "photos", "scenes_set_choices", "photos_set_choices"):
        path = RESULTS / f"training_sets_{kind}.csv.gz"
        if path.is_file():
            parts += tables_of_results(kind, pl.read_csv(path, schema_overrides={"reason": pl.String}))
    return "\n\n".join(parts)


def tables_of_results(kind: str, metrics: pl.DataFrame) -> list[str]:
    """One table per trainer and size: mean and 95 % interval of the shown metrics, clear differences marked."""
    compared = compare_training_sets(metrics)
    pools, seeds = metrics["pool"].n_unique(), metrics["seed"].n_unique()
    counted = f"{pools} pool{'s' * (pools > 1)}, {seeds} training seed{'s' * (seeds > 1)}"
    title = kind.capitalize().replace("_set_choices", ", choices over the whole set")
    parts = [f"### {title}: {counted}"]
    for (trainer, size), part in compared.group_by("trainer", "size", maintain_order=True):
        shown = [metric for metric in SHOWN if metric in set(part["metric"])]
        cells = part.filter(pl.col("metric").is_in(shown)).with_columns(
            cell=pl.struct("mean", "low", "high", "difference", "is_clear").map_elements(_cell, pl.String)
        )
        order = part.filter(pl.col("metric") == shown[-1]).sort("mean", descending=True)["policy"].to_list()
        wide = cells.pivot(on="metric", index=["policy", "kind", "n"], values="cell", maintain_order=True)
        position = {policy: number for number, policy in enumerate(order)}
        wide = wide.sort(pl.col("policy").replace_strict(position, default=len(position), return_dtype=pl.Int64))
        share = "each set's own size" if size is None else f"{100 * float(size):.4g} % of the pool"  # type: ignore[arg-type]
        parts += [f"**{trainer}, {share}**", markdown(wide)]
    return parts


def _cell(row: dict[str, Any]) -> str:
    if row["mean"] is None:
        return "–"
    interval = "" if row["low"] is None else f" ({row['low']:.3f}–{row['high']:.3f})"
    sign = "" if not row["is_clear"] else " ↑" if row["difference"] > 0 else " ↓"
    return f"{row['mean']:.3f}{interval}{sign}"


def write_page(path: Path) -> None:
    """Put the tables between the markers of a Markdown file. Raises ValueError where these are not there once each."""
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{path}: expected {BEGIN} and {END}, once each, to mark the place of the tables")
    tables = f"{BEGIN}\n{page()}\n{END}"
    save_text(path, re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: tables, text, flags=re.DOTALL))


def bench(given: argparse.Namespace, console: Console) -> None:
    """All pools, then the comparison."""
    profile = "embedded" if given.kind == "scenes" else "photos"
    settings = settings_of(given.home, profile, given.shared)
    kind = f"{given.kind}_set_choices" if given.set_choices else given.kind
    declare = declare_scenes if given.kind == "scenes" else declare_photos
    parts: list[pl.DataFrame] = []
    for number in range(given.pools):
        start = time.perf_counter()
        parts.append(metrics_of_pool(settings, declare(settings, number, given), console))
        console.print(f"pool {number + 1} of {given.pools}: {time.perf_counter() - start:.0f} s", highlight=False)
    results = pl.concat(parts).with_columns(pl.col("value").round(5))
    RESULTS.mkdir(exist_ok=True)
    order: Sequence[str] = ("pool", "trainer", "metric", "policy", "size", "seed")
    results = results.select("pool", "trainer", *results.columns[:8]).sort(order)
    results.write_csv(RESULTS / f"training_sets_{kind}.csv.gz", compression="gzip")
    print("\n\n".join(tables_of_results(kind, results)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=("scenes", "photos"), default="scenes")
    parser.add_argument("--home", type=Path, default=Path("data/benchmarks"))
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with photos, captions and words")
    parser.add_argument("--pools", type=int, default=4, help="pools of scenes, or draws of the noise")
    parser.add_argument("--size", type=int, default=4000, help="samples of a pool of scenes")
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="shares of the pool to train on")
    parser.add_argument("--seeds", type=int, default=2, help="training seeds")
    parser.add_argument("--from-scratch", type=int, default=1, help="pools of photos whose models are trained so, too")
    parser.add_argument("--set-choices", action="store_true", help="the policies that look at the whole set")
    parser.add_argument("--into", type=Path, help="put the tables of all results into this page, and measure nothing")
    given = parser.parse_args()
    if given.into is not None:
        write_page(given.into)
        return
    bench(given, Console())


if __name__ == "__main__":
    main()

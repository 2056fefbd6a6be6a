"""Methods and recipes that look at the whole set: what they separate, and what their policies keep.

    python benchmarks/set_choices.py scenes --size 1200
    python benchmarks/set_choices.py photos ../shared/data

On planted scenes (profile embedded), or on noise planted among the photographs of a shard that no training reads
(profile photos). AUC of clean rows against each kind, the share of clean rows that a policy keeps at a quarter of the
pool, and CPU seconds per thousand samples; written to benchmarks/results/set_choices_*.csv. No setting is chosen there.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
from noisy_photos import ALT_TEXTS, HELD_OUT, PHOTOS, REFERENCE

from curation_assets.core.settings import load_settings
from curation_assets.evaluation.tables import with_truth
from curation_assets.flow.context import PoolContext
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.separation import auc_interval, roc_auc
from curation_assets.selection.judging import judge_pool
from curation_assets.selection.policy import Policy, Prefilter
from curation_assets.selection.rows import Pool
from curation_assets.sources.declaration import add_pool, add_world_pool
from curation_assets.sources.noisy_photos import TRUTH, write_noisy_photos
from curation_assets.world.web_texts import noise_texts

RESULTS = Path(__file__).parent / "results"
METHODS = ["clip_score", "icc", "neg_clip_loss", "norm_sim", "vas"]
RECIPES = ["concept_balance", "concept_coverage", "ecodatum", "density", "clip_soft_cap", "vas_d"]
IMAGE_CHECKS = ["image_blur", "image_dark", "image_light", "image_entropy", "image_aspect", "english"]
VOTERS = [*IMAGE_CHECKS, "flipped_clip_score", "object_count"]  # what ecodatum reads besides CLIP and ICC
QUARTER = 0.25
POLICIES = [
    Policy(name="random", rank_by="random", fraction=QUARTER),
    Policy(name="clip", rank_by="signals.clip_score", fraction=QUARTER),
    Policy(name="icc", rank_by="signals.icc", fraction=QUARTER),
    Policy(
        name="icc_after_clip", rank_by="signals.icc", fraction=QUARTER,
        prefilters=(Prefilter("signals.clip_score", fraction=0.5),),
    ),
    Policy(name="neg_clip_loss", rank_by="signals.neg_clip_loss", fraction=QUARTER),
    Policy(
        name="neg_clip_loss_norm_sim", rank_by="signals.norm_sim", fraction=QUARTER,
        prefilters=(Prefilter("signals.neg_clip_loss", fraction=0.375),),
    ),
    Policy(
        name="clip_concept_balance", rank_by="fused.concept_balance", fraction=QUARTER,
        prefilters=(Prefilter("signals.clip_score", fraction=0.5),),
    ),
    Policy(name="concept_coverage", rank_by="fused.concept_coverage", fraction=QUARTER),
    Policy(name="ecodatum", rank_by="fused.ecodatum", fraction=QUARTER),
]  # fmt: skip


def options(**more: Any) -> dict[str, Any]:
    """What the user of such a pool would set."""
    recipes: dict[str, Any] = {name: {} for name in RECIPES}
    return {"methods": [*METHODS, *VOTERS], "recipes": recipes, "downstream": False, "distil": False, **more}


def measure(ctx: PoolContext, name: str) -> None:
    """Print and save what the pool's tables separate and its policies keep."""
    ctx.engines(("wordnet",))  # where it is not installed, it says so before minutes of work
    run_with_upstream(ctx, "raw/samples")
    tables = [*(f"signals/{one}" for one in METHODS), *(f"fused/{one}" for one in RECIPES)]
    seconds = {}
    for table in [*tables[: len(METHODS)], *(f"signals/{one}" for one in VOTERS), *tables[len(METHODS) :]]:
        began = time.process_time()
        run_with_upstream(ctx, table)
        seconds[table] = time.process_time() - began  # with what it is the first to need
    n = ctx.store.scan("raw/samples").collect().height
    spent = {table: round(1000 * cpu / n, 2) for table, cpu in seconds.items()}
    columns = {"pool": name, "table": list(spent), "cpu_seconds_per_1000": list(spent.values())}
    pl.DataFrame(columns).write_csv(RESULTS / f"set_choices_{name}_seconds.csv")
    rows = []
    for table in tables:
        frame = with_truth(ctx, table, "value" if table.startswith("signals") else "quality")
        for (kind,), part in frame.filter(pl.col("kind") != "clean").group_by("kind"):
            both = pl.concat([frame.filter(pl.col("kind") == "clean"), part])
            auc = roc_auc(both["value"].to_numpy(), (both["kind"] == "clean").to_numpy())
            low, high = auc_interval(auc, both.height - part.height, part.height)
            rows.append({"pool": name, "table": table, "kind": kind, "auc": auc, "low": low, "high": high})
    table_of = pl.DataFrame(rows).with_columns(pl.col(pl.Float64).round(4)).sort("table", "kind")
    table_of.write_csv(RESULTS / f"set_choices_{name}.csv")
    pool = Pool(ctx.store)
    truth = dict(with_truth(ctx, "signals/clip_score", "value").select("sample_id", "kind").iter_rows())
    kept = []
    for policy in POLICIES:
        judged = pl.concat(judge_pool(policy, pool))
        kinds = [truth.get(one) for one in judged.filter(pl.col("verdict") == "kept")["sample_id"]]
        known = [kind for kind in kinds if kind is not None]
        kept.append(
            {"pool": name, "policy": policy.name, "kept": len(kinds), "clean": known.count("clean") / len(known)}
        )
    shares = pl.DataFrame(kept).with_columns(pl.col("clean").round(4))
    shares.write_csv(RESULTS / f"set_choices_{name}_policies.csv")
    with pl.Config(tbl_rows=200, tbl_cols=20, tbl_width_chars=200):
        print(table_of.pivot(on="kind", index="table", values="auc"))
        print(shares)
        print(spent, "CPU s per 1,000 samples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("scenes", "photos"))
    parser.add_argument("shared", nargs="?", type=Path, default=Path("../shared/data"))
    parser.add_argument("--size", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=404)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        settings = load_settings(Path(home), "embedded" if given.what == "scenes" else "photos")
        settings = replace(settings, workers=1)  # CPU seconds are those of this process
        if given.what == "scenes":
            add_world_pool(settings, "kinds", size=given.size, seed=given.seed, shard_size=600, options=options())
            measure(PoolContext.open(settings, "kinds"), "scenes")
            return
        folder = Path(home) / "noisy"
        texts = noise_texts(pl.read_parquet(given.shared / ALT_TEXTS)["text"].to_list())
        write_noisy_photos([given.shared / PHOTOS / HELD_OUT], folder, seed=0, texts=texts)
        reference = str(given.shared / PHOTOS / REFERENCE)
        add_pool(settings, "noisy", folder, options=options(truth=str(folder / TRUTH), reference_images=reference))
        measure(PoolContext.open(settings, "noisy"), "photos")


if __name__ == "__main__":
    main()

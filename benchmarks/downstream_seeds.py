"""Is a subset chosen by ICC worth more than a random one? Several training seeds, the same budget for every subset.

    make bench-downstream            (or: python benchmarks/downstream_seeds.py --help)

Writes benchmarks/results/downstream_seeds.csv (policy, seed, metric, value) and prints means, spreads and whether the
difference to random exceeds the spread of the seeds. Finished (policy, seed) runs are reused.
"""

import argparse
import time
from pathlib import Path

import polars as pl
from rich.console import Console

from curation_assets.core.progress import reporter_for
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.stores.pools.declaration import add_world_pool
from curation_assets.training.trainers import all_trainers

SHOWN = ("bleu_4", "rouge_l", "cider", "text_to_image_recall@1", "image_to_text_recall@1", "mean_recall@10")


def main() -> None:
    """Parse, run, write, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Path("data/benchmarks"))
    parser.add_argument("--size", type=int, default=6000, help="samples of the pool")
    parser.add_argument("--seeds", type=int, default=4, help="training seeds")
    parser.add_argument("--policies", nargs="+", default=["random", "icc"])
    parser.add_argument("--captioner-steps", type=int, default=500)
    parser.add_argument("--dual-encoder-steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/downstream_seeds.csv"))
    chosen = parser.parse_args()
    console = Console()
    start = time.perf_counter()
    settings = load_settings(chosen.home, "embedded")
    add_world_pool(
        settings,
        f"downstream_{chosen.size}",
        size=chosen.size,
        seed=9_200_001,
        shard_size=1000,
        options={
            "distillation_size": 700,
            "policies": chosen.policies,
            "downstream_seeds": list(range(chosen.seeds)),
            "evaluation_scenes": 400,
            "downstream_budget": {
                "captioner_steps": chosen.captioner_steps,
                "captioner_batch": 48,
                "dual_encoder_steps": chosen.dual_encoder_steps,
                "dual_encoder_batch": 96,
            },
        },
    )
    ctx = PoolContext.open(settings, f"downstream_{chosen.size}", progress=reporter_for(console))
    tables = [f"downstream/{name}" for name in all_trainers()]
    run_with_upstream(ctx, *tables)
    results = pl.concat([ctx.store.read(name) for name in tables])
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    results.sort("metric", "policy", "seed").write_csv(chosen.out)
    compare(results, console)
    console.print(f"{time.perf_counter() - start:.0f} s; written to {chosen.out}", highlight=False)


def compare(results: pl.DataFrame, console: Console) -> None:
    """Print mean ± sd over seeds per policy, and whether the worst seed of a policy beats the best random one."""
    for metric in SHOWN:
        rows = results.filter(pl.col("metric") == metric)
        random = rows.filter(pl.col("policy") == "random")["value"]
        console.print(f"[bold]{metric}[/]", highlight=False)
        for (policy,), group in rows.group_by("policy", maintain_order=True):
            values = group["value"]
            line = f"  {policy:<16} {values.mean():.4f} ± {values.std():.4f}  [{values.min():.4f}, {values.max():.4f}]"
            if policy != "random" and len(random):
                clear = values.min() > random.max()  # type: ignore[operator]
                line += "  every seed above every random seed" if clear else "  overlaps with random"
            console.print(line, highlight=False)


if __name__ == "__main__":
    main()

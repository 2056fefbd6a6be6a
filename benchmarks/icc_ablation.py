"""What of ICC earns its keep? Teachers, similarities, standardisation, fusion and student against ratings, one table.

    python benchmarks/icc_ablation.py                       # scene world: planted ratings, 400 captions held out
    python benchmarks/icc_ablation.py --caption-benchmark MY.tsv --word-benchmark brysbaert.txt

Writes benchmarks/results/icc_ablation.csv and .png: the pool's own table distilled/agreement. With files of yours (tsv
or csv with caption and rating; a Brysbaert-format list) the rows "caption benchmark" and "word benchmark" are on them.
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
from curation_assets.outputs.report.pictures import agreement_figure
from curation_assets.sources.declaration import add_world_pool
from curation_assets.world.pool import plant_labelled_captions

HELD_OUT_SEED = 9_300_001  # no other script plants captions with it


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=Path("data/benchmarks"))
    parser.add_argument("--captions", type=int, default=700, help="captions that the teachers score")
    parser.add_argument("--held-out", type=int, default=400, help="planted captions of the benchmark")
    parser.add_argument("--caption-benchmark", type=Path, help="rated captions of yours instead of planted ones")
    parser.add_argument("--word-benchmark", type=Path, help="a Brysbaert-format list")
    parser.add_argument("--methods", nargs="*", default=["clip_stroop"], help="further methods that read captions")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/icc_ablation.csv"))
    chosen = parser.parse_args()
    console, start = Console(), time.perf_counter()
    settings = load_settings(chosen.home, "embedded")
    benchmark = chosen.caption_benchmark
    if benchmark is None:
        benchmark = chosen.home / "held_out_captions.tsv"
        benchmark.parent.mkdir(parents=True, exist_ok=True)
        planted = pl.DataFrame(plant_labelled_captions(chosen.held_out, HELD_OUT_SEED), orient="row")
        planted.rename(dict(zip(planted.columns, ("caption", "rating"), strict=True))).write_csv(
            benchmark, separator="\t", quote_style="never"
        )
    options = {
        "distillation_size": chosen.captions,
        "caption_benchmark": str(benchmark.absolute()),
        "agreement_similarities": ["text_similarity", "edit_similarity"],
        "agreement_methods": chosen.methods,
    }
    if chosen.word_benchmark is not None:
        options["word_benchmark"] = str(chosen.word_benchmark.absolute())
    size = {"size": 2 * chosen.captions, "shard_size": chosen.captions}
    add_world_pool(settings, "ablation", **size, seed=9_300_000, options=options)
    ctx = PoolContext.open(settings, "ablation", progress=reporter_for(console))
    for table in ("standardised/length_evidence", "distilled/agreement"):
        run_with_upstream(ctx, table)
    found = ctx.store.read("distilled/agreement")
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    found.drop("reason").write_csv(chosen.out, float_precision=4)
    agreement_figure(found).savefig(chosen.out.with_suffix(".png"), bbox_inches="tight")
    for row in found.iter_rows(named=True):
        name = f"{row['benchmark']:<18} {row['scorer']:<16} {row['similarity'] or '':<16} "
        name += "standardised" if row["standardised"] else " " * 12
        values = (row[key] for key in ("pearson", "spearman", "kendall"))
        numbers = " / ".join("  –  " if value is None else f"{value:.3f}" for value in values)
        console.print(f"{name}  {numbers}  n {row['n']}", highlight=False)
    console.print(f"{time.perf_counter() - start:.0f} s; written to {chosen.out}", highlight=False)


if __name__ == "__main__":
    main()

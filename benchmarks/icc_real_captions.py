"""ICC's teachers on real captions, without GPU and hub: agreement with people, and the fusion weights that ship.

    python benchmarks/icc_real_captions.py --data ../shared/data [--captions 2000] [--write-weights]

A pool of real alt-texts (CC3M validation, raw web) is the reference of the length statistics; the teachers of profile
photos score it and the 300 captions of LAION that people rated (icc/calibration_300.tsv). Printed and written to
benchmarks/results/icc_real_captions.csv: Pearson, Spearman and Kendall of each teacher raw and per length, of both
fused out of fold (10 times 5 folds), of the shipped student and of the number of words; 95 % intervals by drawing
captions. The shipped student has seen these ratings. --write-weights writes the weights, fitted on all 300, with their
intervals to stages/distilled/shipped_fusion.yaml.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

import curation_assets as ca
from curation_assets.core.settings import load_profile, load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import teacher_names
from curation_assets.flow.graph import tables_of
from curation_assets.methods import get_method
from curation_assets.numeric.agreement import agreement
from curation_assets.numeric.fusion import fit_logistic_fusion, held_out_fusion
from curation_assets.stages.distilled.tables import SHIPPED
from curation_assets.stages.standardised.tables import standardised_labels

RESULTS = Path(__file__).parent / "results" / "icc_real_captions.csv"
REPEATS, FOLDS, RESAMPLES = 10, 5, 1000
CORRELATIONS = ("pearson", "spearman", "kendall")


def row(scorer: str, values: np.ndarray, ratings: np.ndarray) -> dict[str, Any]:
    found = agreement(values, ratings, np.random.default_rng(0), resamples=RESAMPLES)
    cells: dict[str, Any] = {"scorer": scorer, "n": found.n}
    for name in CORRELATIONS:
        low, high = found.intervals[name]
        cells |= {name: round(getattr(found, name), 4), f"{name}_low": round(low, 4), f"{name}_high": round(high, 4)}
    print(cells, flush=True)
    return cells


def fitted(scores: np.ndarray, ratings: np.ndarray, teachers: list[str]) -> dict[str, Any]:
    """Weights on all captions, and the 95 % interval of each over drawn captions."""
    weights = fit_logistic_fusion(scores, ratings, names=teachers)
    rng, drawn = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        chosen = rng.integers(len(ratings), size=len(ratings))
        once = fit_logistic_fusion(scores[chosen], ratings[chosen], names=teachers)
        drawn.append([*once.weights, once.intercept])
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    content = weights.to_dict()
    profile = load_profile("photos")
    roles = {role for teacher in teachers for role in get_method(teacher).roles}
    names = [*teachers, "intercept"]
    return {
        "models": {role: profile.address(role) for role in sorted(roles)},
        "weights": {name: round(weight, 4) for name, weight in zip(teachers, weights.weights, strict=True)},
        "interval_95": {name: [round(float(low[k]), 2), round(float(high[k]), 2)] for k, name in enumerate(names)},
        "fit": {
            name: round(value, 4) if isinstance(value := content[name], float) else value
            for name in ("intercept", "n_used", "n_positive", "n_ties", "n_incomplete", "median")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--captions", type=int, default=2000)
    parser.add_argument("--write-weights", action="store_true")
    given = parser.parse_args()
    texts = (
        pl.read_parquet(given.data / "captions" / "alt_texts.parquet")
        .select(caption="text")
        .unique(maintain_order=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        source, rated = Path(folder) / "captions.parquet", Path(folder) / "rated.tsv"
        texts.sample(min(given.captions, texts.height), seed=0).write_parquet(source)
        table = pl.read_csv(given.data / "icc" / "calibration_300.tsv", separator="\t", quote_char=None)
        table.select("caption", rating="concreteness").write_csv(rated, separator="\t", quote_style="never")
        options: dict[str, Any] = {"distil": True, "labels": str(rated), "distillation_size": given.captions}
        home = Path(folder) / "home"
        pool = ca.add_pool("captions", source, home=home, profile="photos", **options)
        ctx = PoolContext.open(load_settings(home), "captions")
        made = [name for name in tables_of(ctx) if name.split("/")[0] in ("raw", "teachers", "standardised")]
        pool.run(tables=made)
        labelled = ctx.store.read("teachers/labelled_captions")
        ratings = labelled["rating"].to_numpy()
        teachers = list(teacher_names(ctx))
        scaled = standardised_labels(ctx, labelled)
        scores = scaled.select(teachers).to_numpy()
        rows = [row(f"{name}, raw", labelled[name].to_numpy(), ratings) for name in teachers]
        rows += [row(f"{name}, per length", scaled[name].to_numpy(), ratings) for name in teachers]
        folds = [held_out_fusion(scores, ratings, np.random.default_rng(seed), folds=FOLDS) for seed in range(REPEATS)]
        rows.append(row("both fused, out of fold", np.mean(folds, axis=0), ratings))
        rows.append(row("words", labelled["caption"].str.split(" ").list.len().to_numpy().astype(float), ratings))
        shipped = ca.score_captions("icc", labelled["caption"].to_list())
        rows.append(row("shipped student, fitted on them", shipped["value"].to_numpy(), ratings))
        pl.DataFrame(rows).write_csv(RESULTS)
        weights = fitted(scores, ratings, teachers)
        print(yaml.safe_dump(weights, sort_keys=False))
        if given.write_weights:
            head = f"# By `python benchmarks/icc_real_captions.py --write-weights`, {given.captions:,} captions.\n"
            SHIPPED.write_text(head + yaml.safe_dump([weights], sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    main()

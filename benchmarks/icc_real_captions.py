"""ICC's teachers on real captions, without GPU and hub: agreement with people, and the fusion weights that ship.

    python benchmarks/icc_real_captions.py --data ../shared/data [--captions 2000] [--scenes 500] [--write-weights]

Two pools of the same real alt-texts (CC3M validation, raw web), the reference of the length statistics: `photos`, with
the teachers of profile photos, and `scenes`, with those of profile embedded, which stood there before. Both score the
300 captions of LAION that people rated (icc/calibration_300.tsv). What `curate tables photos scenes` shows of them,
tables icc3 to icc5, is written to benchmarks/results/icc_real_captions.csv: agreement of every part, of the teachers
fused out of fold, and paired differences. The shipped student has seen these ratings. --write-weights writes the
weights, fitted on all 300, with their intervals to stages/distilled/shipped_fusion.yaml.
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
from curation_assets.core.table_names import LABELLED_CAPTIONS
from curation_assets.evaluation.paper_tables import HERE, PaperTable, Sources, paper_table
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import teacher_names
from curation_assets.flow.graph import tables_of
from curation_assets.methods import get_method
from curation_assets.numeric.fusion import fit_logistic_fusion
from curation_assets.stages.distilled.human_agreement import CORRELATIONS
from curation_assets.stages.distilled.tables import SHIPPED
from curation_assets.stages.standardised.tables import standardised_labels

RESULTS = Path(__file__).parent / "results" / "icc_real_captions.csv"
RESAMPLES = 1000
STAGES = ("raw", "teachers", "standardised", "distilled")


def pool_of(home: Path, data: Path, name: str, profile: str, captions: int) -> PoolContext:
    """A pool of alt-texts with its teachers and students, compared with the rated captions."""
    source, rated = home / f"{name}.parquet", home / "rated.tsv"
    texts = pl.read_parquet(data / "captions" / "alt_texts.parquet").select(caption="text").unique(maintain_order=True)
    texts.sample(min(captions, texts.height), seed=0).write_parquet(source)
    table = pl.read_csv(data / "icc" / "calibration_300.tsv", separator="\t", quote_char=None)
    table.select("caption", rating="concreteness").write_csv(rated, separator="\t", quote_style="never")
    options: dict[str, Any] = {"distil": True, "labels": str(rated), "distillation_size": captions}
    pool = ca.add_pool(name, source, home=home, profile=profile, **options)
    ctx = PoolContext.open(load_settings(home), name)
    pool.run(tables=[table for table in tables_of(ctx) if table.split("/")[0] in STAGES])
    return ctx


def rows_of(table: PaperTable) -> list[dict[str, Any]]:
    """Our own rows of a table, a column per label and number."""
    rows = []
    for row in table.rows:
        numbers = {
            f"{name}{end}": None if value is None else round(value, 4)
            for name, cell in row.cells.items()
            for end, value in (("", cell.value), ("_low", cell.low), ("_high", cell.high))
        }
        rows += [{"table": table.name, **row.labels, **numbers}] if row.origin == HERE else []
    return rows


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
    parser.add_argument("--scenes", type=int, default=500, help="captions of the pool of before")
    parser.add_argument("--write-weights", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photos = pool_of(Path(folder), given.data, "photos", "photos", given.captions)
        scenes = pool_of(Path(folder), given.data, "scenes", "embedded", given.scenes)
        tables = [paper_table(name, Sources([photos, scenes])) for name in ("icc3", "icc4", "icc5")]
        found = pl.DataFrame([row for table in tables for row in rows_of(table)], infer_schema_length=None)
        found.write_csv(RESULTS)
        with pl.Config(tbl_rows=-1, fmt_str_lengths=60):
            print(found.select("table", "pool", "scorer", "per_length", "n", *CORRELATIONS))
        if given.write_weights:
            labelled, teachers = photos.store.read(LABELLED_CAPTIONS), list(teacher_names(photos))
            scores = standardised_labels(photos, labelled).select(teachers).to_numpy()
            weights = fitted(scores, labelled["rating"].to_numpy(), teachers)
            head = f"# By `python benchmarks/icc_real_captions.py --write-weights`, {given.captions:,} captions.\n"
            SHIPPED.write_text(head + yaml.safe_dump([weights], sort_keys=False), encoding="utf-8")


if __name__ == "__main__":
    main()

"""ICC's teachers on real captions, without GPU and hub: agreement with people, and the fusion weights that ship.

    python benchmarks/icc_real_captions.py --data ../shared/data [--captions 2000] [--scenes 500] [--write-weights]

Two pools of the same real alt-texts (CC3M validation, raw web), the reference of the length statistics: `photos`, with
the teachers of profile photos, and `scenes`, with those of profile embedded, which stood there before. Both score the
300 captions of LAION that people rated (icc/calibration_300.tsv). What `python -m benchmarks.papers tables photos
scenes` shows of them, tables icc3 to icc5, is written to benchmarks/results/icc_real_captions.csv: agreement of every
part, of the teachers fused out of fold, and paired differences. The shipped student has seen these ratings.
--write-weights writes the weights, fitted on all 300, with their intervals to stages/distilled/shipped_fusion.yaml.

The same teachers, their fusion, the student distilled from them and the shipped student on what nothing of them was
fitted on is written to results/icc_web_and_nouns.csv: labelled alt-texts of web pages (AUC of descriptive against other
ones, intervals over owners, differences to the number of words) and 1,000 rated nouns (intervals over nouns,
differences to the shipped student, as the number of words is the same for all). --scenes 0 measures these alone.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

import curation_assets as ca
from benchmarks.icc_student import drawn_nouns, rated_nouns
from benchmarks.papers.tables import HERE, PaperTable, Sources, paper_table
from curation_assets.core.settings import load_profile, load_settings
from curation_assets.core.table_names import LABELLED_CAPTIONS
from curation_assets.engines import load_engine
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import read_weights, teacher_names
from curation_assets.flow.graph import tables_of
from curation_assets.methods import get_method
from curation_assets.numeric.agreement import agreement, agreement_difference
from curation_assets.numeric.fusion import fit_logistic_fusion, fuse
from curation_assets.numeric.standardise import caption_length
from curation_assets.stages.distilled.human_agreement import CORRELATIONS, OWN_STUDENT, SHIPPED_STUDENT
from curation_assets.stages.distilled.tables import SHIPPED
from curation_assets.stages.standardised.tables import standardised_labels
from curation_assets.stages.teachers.tables import score_in_parts
from lab.descriptive import REPEATS, held_out_by_owner, labelled_alt_texts, owner_draws, owner_folds

RESULTS = Path(__file__).parent / "results" / "icc_real_captions.csv"
BESIDE_RATINGS = RESULTS.with_name("icc_web_and_nouns.csv")
SHIPPED_NAME, WORDS = "icc, the shipped student", "number of words"
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


def scores_of(ctx: PoolContext, captions: list[str]) -> dict[str, np.ndarray]:
    """Scorer → (N,) values of captions: teachers raw and per length, fused by the pool's weights, both students."""
    scored = score_in_parts(ctx, pl.DataFrame({"caption": captions, "rating": [0.0] * len(captions)}))
    scaled = standardised_labels(ctx, scored)
    teachers = list(teacher_names(ctx))
    values = {name: scored[name].to_numpy() for name in teachers}
    values |= {f"{name}, per length": scaled[name].to_numpy() for name in teachers}
    values["fused, weights of the 300"] = fuse(scaled.select(teachers).to_numpy(), read_weights(ctx))
    for name, address in (("icc, distilled by this pool", OWN_STUDENT), (SHIPPED_NAME, SHIPPED_STUDENT)):
        student: Any = load_engine("student", ctx.profile.with_roles(student=address), pool_models=ctx.pool_models)
        values[name] = student.score_captions(captions)
    return values


def web_rows(ctx: PoolContext, shared: Path) -> list[dict[str, Any]]:
    """AUC of descriptive against other English alt-texts, and its difference to that of the number of words."""
    labelled = labelled_alt_texts(shared, only_open=False)
    captions, is_descriptive = labelled["alt"].to_list(), labelled["is_descriptive"].to_numpy()
    values = scores_of(ctx, captions)
    values["descriptive"] = held_out_by_owner(labelled)
    fused, inputs = np.zeros((REPEATS, len(captions))), [f"{name}, per length" for name in teacher_names(ctx)]
    teachers = np.stack([values[name] for name in inputs], axis=1)
    for repeat in range(REPEATS):
        for known, test in owner_folds(labelled, repeat):
            model = LogisticRegression(C=np.inf).fit(teachers[known], is_descriptive[known])
            fused[repeat, test] = model.predict_proba(teachers[test])[:, 1]
    values["fused, weights of other owners' labels"] = fused.mean(axis=0)
    values[WORDS] = caption_length(captions).astype(float)
    draws = owner_draws(labelled["owner"].to_numpy())
    drawn = {name: np.array([roc_auc_score(is_descriptive[d], v[d]) for d in draws]) for name, v in values.items()}
    auc = {name: roc_auc_score(is_descriptive, v) for name, v in values.items()}
    return [
        {
            "set": "web labels",
            "scorer": name,
            "n": len(captions),
            "measure": "auc",
            **with_interval("value", auc[name], np.quantile(drawn[name], [0.025, 0.975])),
            "against": WORDS,
            **with_interval(
                "difference", auc[name] - auc[WORDS], np.quantile(drawn[name] - drawn[WORDS], [0.025, 0.975])
            ),
        }
        for name in values
    ]


def noun_rows(ctx: PoolContext, shared: Path) -> list[dict[str, Any]]:
    """Agreement with people's ratings of nouns, and its difference to the shipped student's."""
    nouns = rated_nouns(shared)[1]
    nouns = nouns[drawn_nouns(nouns.height, np.random.default_rng(0))]
    values, ratings = scores_of(ctx, nouns["word"].to_list()), nouns["conc_mean"].to_numpy()
    rows = []
    for name, scores in values.items():
        found = agreement(scores, ratings, np.random.default_rng(0))
        against = agreement_difference(scores, values[SHIPPED_NAME], ratings, np.random.default_rng(0))
        rows += [
            {
                "set": "nouns",
                "scorer": name,
                "n": found.n,
                "measure": measure,
                **with_interval("value", getattr(found, measure), found.intervals[measure]),
                "against": SHIPPED_NAME,
                **with_interval("difference", getattr(against, measure), against.intervals[measure]),
            }
            for measure in CORRELATIONS
        ]
    return rows


def with_interval(name: str, value: float, interval: Any) -> dict[str, float]:
    """A number and its 95 % interval as columns."""
    columns = (name, f"{name}_low", f"{name}_high")
    return {column: round(float(one), 4) for column, one in zip(columns, (value, *interval), strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--captions", type=int, default=2000)
    parser.add_argument("--scenes", type=int, default=500, help="captions of the pool of before; 0: none")
    parser.add_argument("--write-weights", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photos = pool_of(Path(folder), given.data, "photos", "photos", given.captions)
        beside = pl.DataFrame(web_rows(photos, given.data.parent) + noun_rows(photos, given.data.parent))
        beside.write_csv(BESIDE_RATINGS)
        with pl.Config(tbl_rows=-1, tbl_cols=-1, fmt_str_lengths=60):
            print(beside)
        if given.scenes:
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

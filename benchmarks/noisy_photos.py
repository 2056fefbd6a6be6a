"""Real photographs with planted noise: what every policy keeps of each kind, and what every method separates.

    python benchmarks/noisy_photos.py --profile embedded --draws 3
    python benchmarks/noisy_photos.py --profile embedded --draws 1 --whole
    python benchmarks/noisy_photos.py --into benchmarks/results/noisy_photos.md   # the page from the results alone
    python benchmarks/noisy_photos.py --publish                    # what commands and pages show beside a value

A draw plants noise anew among the same photographs (`sources/noisy_photos.py`), and the tables of `curate run`
are made on it up to subsets, ledgers and the report. Without --whole the photographs are those of one shard that no
training reads; with it all shards, most of which models for photographs may have been trained on: such rows are marked.

Writes noisy_photos_policies.csv, noisy_photos_methods.csv and noisy_photos_seconds.csv to benchmarks/results/, in place
of earlier rows of the same photographs and profile.
"""

import argparse
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from methods import markdown, things_of, with_methods
from scipy.stats import binomtest

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.settings import Profile, Settings, load_settings
from curation_assets.core.table_names import NEAR_DUPLICATES
from curation_assets.engines import identify_engine, load_engine
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import missing_signals, policies_of, shown_name
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.flow.sql import recipes
from curation_assets.flow.worth import MEASURED, engines_of
from curation_assets.methods import Method, all_methods
from curation_assets.numeric.metrics.separation import in_order
from curation_assets.numeric.separation import auc_interval, roc_auc
from curation_assets.scoring.prepared import profile_without_pool, roles_needed
from curation_assets.selection.policy import load_policies
from curation_assets.sources.declaration import add_pool, list_pools, save_pool
from curation_assets.sources.kinds.webdataset import read_tar_rows
from curation_assets.sources.noisy_photos import TRUTH, read_planted_truth, write_noisy_photos
from curation_assets.stores.documents import save_text
from curation_assets.world.web_texts import noise_texts

RESULTS = Path(__file__).parent / "results"
SHARED = Path(__file__).parents[2] / "shared/data"
PHOTOS, ALT_TEXTS, WORD_RATINGS = "photos", "captions/alt_texts.parquet", "words/concreteness_ratings_half.tsv"
HELD_OUT_PHOTOS = "held-out shard 000005"
HELD_OUT, REFERENCE = "000005.tar", "000004.tar"  # read by no training; what image_based and relatedness compare with
FRACTION = 0.25  # of the pool: what every policy that ranks keeps
MIN_SIDE_PX = 100  # the photographs are at most 256 px wide: limits for originals of the web would drop nearly all
RARE_MENTIONS = 5  # of a concept: the paper's 100 are of millions of candidates
LAION_SHARE = 0.5  # of all samples pass laion_filter's cosine here: .28 belongs to OpenAI's ViT-B/32 (formulas.md §4)
TOO_SLOW = {"ave_clip": "five drawings a caption"}
BEGIN, END = "<!-- noisy photos -->", "<!-- /noisy photos -->"
DUPLICATES = "near-duplicates"


# --- what runs


def missing(method: Method, profile: Profile) -> str | None:
    """Why the profile cannot run a method; None where it can."""
    for role in roles_needed(method, ()):
        if role not in profile.roles:
            return f"profile {profile.name} fills no role {role}"
        try:
            identify_engine(role, profile)
        except ModelUnavailableError as error:
            return str(error)
    return None


def chosen_methods(settings: Settings, shared: Path, skip: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """(methods that run, those that cannot and why)."""
    profile = profile_without_pool(settings.profile)
    without = dict.fromkeys(skip, "left out by --skip") | TOO_SLOW
    for name, method in all_methods().items():
        if method.stage != "signals" or name in without:
            continue
        why = missing(method, profile)
        if why is not None:
            without[name] = why
        elif name == "concreteness_lexicon" and not (shared / WORD_RATINGS).is_file():
            without[name] = f"no word ratings at {WORD_RATINGS}"
    named = [name for name, method in all_methods().items() if method.stage == "signals" and name not in without]
    return named, dict(sorted(without.items()))


def method_settings(settings: Settings, shared: Path, named: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the user of such a pool would set. None of it reads the planted truth."""
    given: dict[str, dict[str, Any]] = {
        "datacomp_basic": {"min_side_px": MIN_SIDE_PX},
        "conceptual_captions_image": {"min_side_px": MIN_SIDE_PX},
        "conceptual_captions": {"limits": {"first_word_capitalised": False}},  # as CC12M: many captions have none
        "concreteness_lexicon": {"path": str(shared / WORD_RATINGS)},
    }
    if "datacomp_text" in named:
        ids = settings.home / "wordnet_ids.txt"
        wordnet: Any = load_engine("wordnet", settings.profile)
        ids.write_text("\n".join(f"n{offset:08d}" for offset in things_of(wordnet)))
        given["datacomp_text"] = {"wordnet_ids": str(ids)}
    return {name: one for name, one in given.items() if name in named}


def run_draw(settings: Settings, seed: int, sources: Sequence[Path], named: list[str], shared: Path) -> PoolContext:
    """Plant the noise of one draw and make every table of the pool, from raw to the report."""
    name, folder = f"noisy_{seed}", settings.home / "photographs" / f"noisy_{seed}"
    if not folder.is_dir():
        texts = noise_texts(pl.read_parquet(shared / ALT_TEXTS)["text"].to_list())
        write_noisy_photos(sources, folder, seed=seed, texts=texts)
    reference = shared / PHOTOS / REFERENCE
    options: dict[str, Any] = {
        "methods": named, "duplicates": True, "fraction": FRACTION, "truth": str(folder / TRUTH), "distil": False,
        "downstream": False, "recipes": {"conceptual_captions": {"rare_mentions": RARE_MENTIONS}},
    }  # fmt: skip
    if "image_based" in named:
        options["reference_images"] = str(reference)
    if "relatedness" in named:
        targets = settings.home / "target_captions.txt"
        targets.write_text("\n".join(read_tar_rows(reference)["caption"].drop_nulls().to_list()))
        options["related_to"] = str(targets)
    if name not in list_pools(settings):
        pool = add_pool(settings, name, folder, options=options)
        # those too that a pool of one's own leaves out because their signals mean nothing on photographs
        ctx = PoolContext.open(settings, name)
        runs = [one.name for one in load_policies().values() if not missing_signals(ctx, one.references)]
        save_pool(settings, replace(pool, options=replace(pool.options, policies=tuple(runs))))
    given = method_settings(settings, shared, named)
    if "laion_filter" in named:
        ctx = PoolContext.open(settings, name)
        run_with_upstream(ctx, "signals/clip_score")
        cosines = ctx.store.scan("signals/clip_score").select("value").collect()["value"].drop_nulls()
        given["laion_filter"] = {"threshold": float(np.quantile(cosines.to_numpy(), 1 - LAION_SHARE))}
    ctx = PoolContext.open(with_methods(settings, given), name)
    run_with_upstream(ctx, *tables_of(ctx))
    return ctx


# --- what is measured


def kept_of(ctx: PoolContext, draw: int) -> pl.DataFrame:
    """One row per policy and sample that raw kept: policy, cuts_by, kind, photo, is_kept."""
    truth = read_planted_truth(Path(str(ctx.options.truth))).select("sample_id", "kind", "photo")
    parts = []
    for policy in policies_of(ctx):
        verdicts = ctx.store.scan(f"filtered/{policy.name}").select("sample_id", "verdict").collect()
        joined = verdicts.join(truth, on="sample_id", how="inner", validate="1:1")
        parts.append(
            joined.select(
                pl.lit(policy.name).alias("policy"),
                pl.lit("rule" if policy.threshold is not None else "rank").alias("cuts_by"),
                "kind",
                pl.coalesce("photo", "sample_id").alias("photo"),
                (pl.col("verdict") == "kept").alias("is_kept"),
                pl.lit(draw).alias("draw"),
            )
        )
    return pl.concat(parts)


def policy_table(rows: pl.DataFrame) -> pl.DataFrame:
    """Per policy and kind: share kept over all draws, Wilson's 95 % interval, lowest and highest draw.

    A photograph that several draws show under one kind counts once for the interval, which makes it wider than the
    rows alone would.
    """
    results = []
    sizes = rows.group_by("policy").agg(pl.col("is_kept").mean().alias("subset_share"), pl.col("is_kept").sum())
    of_policy = {row["policy"]: row for row in sizes.to_dicts()}
    for (policy, cuts_by, kind), part in rows.group_by("policy", "cuts_by", "kind", maintain_order=True):
        share, photos = float(part["is_kept"].mean()), part["photo"].n_unique()  # type: ignore[arg-type]
        interval = binomtest(round(share * photos), photos).proportion_ci(method="wilson")
        of_draws = part.group_by("draw").agg(pl.col("is_kept").mean())["is_kept"]
        kept = int(part["is_kept"].sum())
        results.append(
            {
                "policy": policy, "cuts_by": cuts_by, "kind": kind, "kept": kept, "n": part.height, "photos": photos,
                "share": share, "low": interval.low, "high": interval.high, "lowest_draw": of_draws.min(),
                "highest_draw": of_draws.max(), "share_of_subset": kept / max(1, of_policy[policy]["is_kept"]),
                "subset_share": of_policy[policy]["subset_share"],
            }
        )  # fmt: skip
    return pl.DataFrame(results)


def separation_of(ctx: PoolContext, draw: int) -> pl.DataFrame:
    """downstream/separation of a draw, and the near-duplicates as one more method."""
    table = ctx.store.read("downstream/separation").select(
        "method", "kind", "auc", "n", "n_clean", "without_value", "is_made_for"
    )
    truth = read_planted_truth(Path(str(ctx.options.truth))).select("sample_id", "kind")
    found = ctx.store.read(NEAR_DUPLICATES).select("sample_id", "quality").drop_nulls().join(truth, on="sample_id")
    clean = found.filter(pl.col("kind") == "clean")["quality"].to_numpy()
    rows = []
    for (kind,), part in found.filter(pl.col("kind") != "clean").group_by("kind"):
        values = np.concatenate([clean, part["quality"].to_numpy()])
        rows.append(
            {
                "method": DUPLICATES, "kind": kind, "auc": roc_auc(values, np.arange(len(values)) < len(clean)),
                "n": part.height, "n_clean": len(clean), "without_value": 0, "is_made_for": kind == "duplicate",
            }
        )  # fmt: skip
    return pl.concat([table, pl.DataFrame(rows, schema=table.schema)]).with_columns(pl.lit(draw).alias("draw"))


def method_table(rows: pl.DataFrame, photos: pl.DataFrame) -> pl.DataFrame:
    """Per method and kind: mean AUC over the draws, with the interval of one AUC of so many distinct photographs."""
    results = []
    distinct = dict(photos.group_by("kind").agg(pl.col("photo").n_unique()).iter_rows())
    for (method, kind), part in rows.group_by("method", "kind", maintain_order=True):
        valued = part.drop_nulls("auc")
        row: dict[str, Any] = {"method": method, "kind": kind, "auc": None, "low": None, "high": None}
        row |= {"lowest_draw": valued["auc"].min(), "highest_draw": valued["auc"].max()}
        row |= {"n": part["n"].sum(), "n_clean": part["n_clean"].sum(), "photos": distinct[kind]}
        row |= {"without_value": part["without_value"].sum(), "is_made_for": part["is_made_for"][0], "note": None}
        if valued.height:
            row["auc"] = auc = float(valued["auc"].mean())  # type: ignore[arg-type]
            sizes = min(distinct["clean"], row["n_clean"]), min(distinct[kind], row["n"])
            row["low"], row["high"] = auc_interval(auc, *sizes)
        results.append(row)
    numbers = dict.fromkeys(("auc", "low", "high", "lowest_draw", "highest_draw"), pl.Float64)
    return pl.DataFrame(results, schema_overrides={**numbers, "note": pl.String})


def seconds_of(ctx: PoolContext) -> pl.DataFrame:
    """Wall time of every table, from its manifests."""
    rows = []
    for name in tables_of(ctx):
        manifests = [ctx.store.manifest(name, key) for key in ctx.store.partitions(name)] or [ctx.store.manifest(name)]
        made = [one for one in manifests if one is not None]
        if made:
            total = sum(one.row_count for one in made)
            rows.append({"table": name, "rows": total, "seconds": sum(one.seconds for one in made)})
    return pl.DataFrame(rows)


# --- what is written


def save(table: pl.DataFrame, name: str, photographs: str, profile: str, draws: int) -> None:
    """Put rows into a table of results in place of those of the same photographs and profile."""
    facts = {"photographs": photographs, "profile": profile, "draws": draws}
    marked = table.select(*(pl.lit(fact).alias(column) for column, fact in facts.items()), pl.all())
    marked = marked.with_columns(pl.col(pl.Float64).round(4))
    path = RESULTS / name
    RESULTS.mkdir(exist_ok=True)
    if path.is_file():
        before = pl.read_csv(path, schema_overrides=marked.schema)
        is_same = (pl.col("photographs") == photographs) & (pl.col("profile") == profile)
        marked = pl.concat([before.filter(~is_same), marked], how="diagonal_relaxed")
    marked.write_csv(path)


def page() -> str:
    """The tables of all that was measured so far, as Markdown."""
    policies = pl.read_csv(RESULTS / "noisy_photos_policies.csv")
    methods = pl.read_csv(RESULTS / "noisy_photos_methods.csv", schema_overrides={"note": pl.String, "auc": pl.Float64})
    parts = []
    for photographs, profile in policies.select("photographs", "profile").unique(maintain_order=True).iter_rows():
        is_this = (pl.col("photographs") == photographs) & (pl.col("profile") == profile)
        parts += [*_policy_part(policies.filter(is_this), photographs, profile), *_method_part(methods.filter(is_this))]
    return "\n\n".join(parts)


def _policy_part(table: pl.DataFrame, photographs: str, profile: str) -> list[str]:
    counts = dict(table.group_by("kind").agg(pl.col("n").max()).iter_rows())
    kinds = ["clean", *(kind for kind in in_order(counts) if kind != "clean")]
    shown = table.with_columns(
        cell=pl.struct("share", "low", "high").map_elements(_share, pl.String),
        keeps=pl.col("subset_share").map_elements(lambda share: f"{100 * share:.0f} %", pl.String),
    )
    purity = dict(table.filter(pl.col("kind") == "clean").select("policy", "share_of_subset").iter_rows())
    wide = shown.pivot(on="kind", index=["policy", "cuts_by", "keeps"], values="cell", maintain_order=True)
    wide = wide.with_columns(
        pl.col("policy").replace_strict(purity, return_dtype=pl.Float64).alias("clean in subset"),
    ).sort("cuts_by", "clean in subset", descending=[False, True])
    wide = wide.with_columns(pl.col("clean in subset").map_elements(lambda share: f"{100 * share:.0f} %", pl.String))
    total = sum(counts.values())
    return [
        f"### Policies: {photographs}, profile `{profile}`",
        f"{table['draws'][0]} draws, {total:,} rows: " + ", ".join(f"{counts[kind]:,} {kind}" for kind in kinds) + ". "
        "Per cent kept of each kind, with 95 % intervals. Policies that rank keep a quarter of the pool; a rule keeps "
        "what passes, and `random` at that size would keep the share in *keeps* of every kind.",
        markdown(wide.select("policy", "cuts_by", "keeps", "clean in subset", *kinds)),
    ]


def _method_part(table: pl.DataFrame) -> list[str]:
    run = table.drop_nulls("kind")
    kinds = in_order(run["kind"].to_list())
    shown = run.with_columns(cell=pl.struct("auc", "low", "high", "is_made_for").map_elements(_auc, pl.String))
    wide = shown.pivot(on="kind", index="method", values="cell", maintain_order=True)
    not_run = table.filter(pl.col("kind").is_null()).select("method", "note")
    lines = [f"- not run: `{method}`: {note}" for method, note in not_run.iter_rows()]
    parts = [
        "AUC of clean rows against each kind (.5 is chance), with 95 % intervals; bold: made for the kind.",
        markdown(wide.select("method", *kinds)),
    ]
    return [*parts, "\n".join(lines)] if lines else parts


def _share(row: dict[str, float]) -> str:
    return f"{100 * row['share']:.0f} ({100 * row['low']:.0f}–{100 * row['high']:.0f})"


def _auc(row: dict[str, Any]) -> str:
    if row["auc"] is None:
        return "no value"
    text = f"{row['auc']:.2f} ({row['low']:.2f}–{row['high']:.2f})"
    return f"**{text}**" if row["is_made_for"] else text


def write_page(path: Path) -> None:
    """Put the tables between the markers of a Markdown file. Raises ValueError where these are not there once each."""
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{path}: expected {BEGIN} and then {END}, once each, to mark the place of the tables")
    tables = f"{BEGIN}\n{page()}\n{END}"
    between = f"{re.escape(BEGIN)}.*{re.escape(END)}"
    save_text(path, re.sub(between, lambda _: tables, text, flags=re.DOTALL))


def publish(path: Path) -> None:
    """Write what signals are worth with the models of shipped profiles, from the results on held-out photographs.

    Only kinds that a signal is made for: what commands and pages show beside its values (flow/worth.py).
    """
    results = pl.read_csv(RESULTS / "noisy_photos_methods.csv", schema_overrides={"note": pl.String})
    recipe_of = {shown_name(recipe): key for key, recipe in recipes().items()}
    rows = []
    for row in results.filter(pl.col("photographs") == HELD_OUT_PHOTOS, "is_made_for").drop_nulls("auc").to_dicts():
        reference = recipe_of.get(row["method"], f"signals.{row['method']}")
        profile = profile_without_pool(load_settings(None, row["profile"]).profile)
        engines = engines_of(reference, profile)
        if row["method"] != DUPLICATES:
            numbers = {name: row[name] for name in ("auc", "low", "high")} | {
                "n": row["photos"],
                "n_clean": row["n_clean"],
            }
            rows.append({"reference": reference, "engines": engines, "kind": row["kind"], **numbers})
    table = pl.DataFrame(rows).unique(["reference", "engines", "kind"], keep="first", maintain_order=True)
    table.sort("reference", "engines", "kind").write_csv(path)


def bench(home: Path, given: argparse.Namespace) -> None:
    """All draws, their tables, and what they took."""
    settings = load_settings(home, given.profile)
    settings = replace(settings, profile=profile_without_pool(settings.profile))
    photos, name = given.shared / PHOTOS, settings.profile.name
    sources = [photos] if given.whole else [photos / HELD_OUT]
    photographs = "all shards, partly seen in training" if given.whole else HELD_OUT_PHOTOS
    named, without = chosen_methods(settings, given.shared, given.skip)
    kept, separated, seconds = [], [], []
    for draw in range(given.draws):
        ctx = run_draw(settings, given.seed + draw, sources, named, given.shared)
        kept.append(kept_of(ctx, draw))
        separated.append(separation_of(ctx, draw))
        seconds.append(seconds_of(ctx))
        print(f"draw {draw + 1} of {given.draws}: {seconds[-1]['seconds'].sum():.0f} s", flush=True)
    rows = pl.concat(kept)
    save(policy_table(rows), "noisy_photos_policies.csv", photographs, name, given.draws)
    methods = method_table(pl.concat(separated), rows)
    not_run = pl.DataFrame(
        [{"method": method, "note": f"{why}"} for method, why in without.items()],
        schema={"method": pl.String, "note": pl.String},
    )
    methods = pl.concat([methods, not_run], how="diagonal_relaxed")
    save(methods, "noisy_photos_methods.csv", photographs, name, given.draws)
    took = pl.concat(seconds).group_by("table", maintain_order=True).agg(pl.col("rows", "seconds").sum())
    took = took.with_columns(ms_per_row=1000 * pl.col("seconds") / pl.col("rows").clip(1))
    save(took, "noisy_photos_seconds.csv", photographs, name, given.draws)
    stages = took.group_by(pl.col("table").str.split("/").list.first().alias("stage"), maintain_order=True)
    print(page() + "\n\n" + markdown(stages.agg(pl.col("seconds").sum())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="embedded", help="name of a shipped profile, or path of a .yaml")
    parser.add_argument("--shared", type=Path, default=SHARED, help="folder with photos, captions and words")
    parser.add_argument("--whole", action="store_true", help="all shards, and not the held-out one alone")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the first draw")
    parser.add_argument("--skip", action="append", default=[], help="a method to leave out (repeat)")
    parser.add_argument("--home", type=Path, help="keep the pools here (default: a temporary folder)")
    parser.add_argument("--into", type=Path, help="put the tables of all results into this page, and measure nothing")
    parser.add_argument(
        "--publish", action="store_true", help="write flow/worth_on_photographs.csv, and measure nothing"
    )
    given = parser.parse_args()
    if given.publish:
        publish(MEASURED)
        return
    if given.into is not None:
        write_page(given.into)
        return
    with tempfile.TemporaryDirectory() as temporary:
        home = given.home or Path(temporary)
        home.mkdir(parents=True, exist_ok=True)
        bench(home, given)


if __name__ == "__main__":
    main()

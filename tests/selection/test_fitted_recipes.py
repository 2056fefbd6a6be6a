"""Fitted recipes in a pool: verdicts in words, ledgers that replay, multiplicities; a late shard moves nobody."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.audit.ledger import recorded_ledger
from curation_assets.audit.why import explain, sentence
from curation_assets.core.settings import Settings, load_settings
from curation_assets.flow.conservation import violations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import fitted_recipes, policies_of
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.methods import all_methods
from curation_assets.operations.takedown import begin_takedown, finish_takedown
from curation_assets.outputs.exports.formats import FORMATS
from curation_assets.outputs.exports.subset import find_subset
from curation_assets.selection.fitted import load_recipe, load_recipes
from curation_assets.sources.declaration import add_pool
from curation_assets.stages.fused.fitted import rows_of
from curation_assets.stores.denylist import add_to_denylist
from curation_assets.world.pool import plant_pool, render
from tests.support.id_lists import read_subset
from tests.support.ledgers import replay
from tests.support.scene_tars import write_pairs, write_scenes
from tests.support.tiny_wordnet import write_wordnet

SCENES = plant_pool(150, 77)
POLICIES = ["concept_balance", "clip_concept_balance", "concept_coverage", "eyes", "density", "clip_soft_cap", "mix"]
POLICIES += ["vas_d"]
VOTES = """name: eyes
kind: votes
voters:
  - {signal: signals.clip_score, keep_from: 0.5, drop_below: 0.3}
  - {signal: signals.image_entropy, keep_from: 0.5, drop_below: 0.4}
  - {signal: signals.image_light, keep_from: 0.2, drop_below: 0.1}
"""
MIX = """name: mix
kind: linear_mix
mix: [signals.clip_score, signals.image_entropy]
ratings: {ratings}
"""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(tmp_path_factory.mktemp("home"), "embedded")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_scenes(folder / "00000.tar", SCENES[:60])
    write_scenes(folder / "00001.tar", SCENES[60:110], 60)
    return folder


@pytest.fixture(scope="module")
def pool(settings: Settings, source: Path, tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    """Two shards of scenes; the user's own recipes lie beside the pool's declaration."""
    wordnet = tmp_path_factory.mktemp("wordnet")
    write_wordnet(wordnet)
    options = {
        "image_domain": "scenes",
        "recipes": {
            "concept_balance": {"ngram_min_count": 3, "limit": 2},
            "density": {"clusters": 4, "fraction": 0.5},
            "clip_soft_cap": {"budget": 1.5, "draws": 30},
            "concept_coverage": {"bins": 4, "least": 2},
            "vas_d": {"start_fraction": 0.8, "fraction": 0.5, "steps": 7},
        },
        "methods": ["image_entropy", "image_light"],
    }
    own = settings.pools_root / "scenes"
    (own / "recipes").mkdir(parents=True)
    (own / "recipes" / "eyes.yaml").write_text(VOTES)
    ratings = settings.home / "ratings.csv"
    (own / "recipes" / "mix.yaml").write_text(MIX.format(ratings=ratings))
    for name in ("eyes", "mix"):
        (own / f"{name}.yaml").write_text(f"name: {name}\nrank_by: fused.{name}\nfraction: 0.4\n")
    add_pool(settings, "scenes", source, options=options, roles={"wordnet": f"path:{wordnet}"})
    ctx = PoolContext.open(settings, "scenes")
    run_with_upstream(ctx, "signals/clip_score")
    values = ctx.store.scan("signals/clip_score").select("sample_id", rating="value").collect()
    values.drop_nulls().write_csv(ratings)  # somebody whose ratings follow the cosine
    return run(settings)


def run(settings: Settings) -> PoolContext:
    ctx = PoolContext.open(settings, "scenes")
    run_with_upstream(ctx, *(f"filtered/{name}" for name in POLICIES), "filtered/subsets")
    return ctx


def kept(ctx: PoolContext, policy: str) -> pl.DataFrame:
    frame = ctx.store.scan(f"filtered/{policy}").collect()
    return frame.filter(pl.col("verdict") == "kept")


@pytest.mark.slow
def test_every_row_ends_somewhere_and_ledgers_replay(pool: PoolContext) -> None:
    tables = tables_of(pool)
    for name in POLICIES:
        for shard in pool.shards():
            assert violations(pool, tables[f"filtered/{name}"], shard) == []
        ledger = recorded_ledger(pool.store, name)
        npy = np.load(pool.store.folder_path("filtered/subsets") / f"{name}.npy")
        np.testing.assert_array_equal(replay(ledger), npy)
        np.testing.assert_array_equal(ledger.subset(), npy)
        assert len(npy) > 0


def test_a_full_concept_is_named(pool: PoolContext, settings: Settings) -> None:
    frame = pool.store.scan("filtered/concept_balance").collect()
    full = frame.filter(pl.col("reason").str.contains("concept full: "))
    assert full.height >= 2
    reason = full["reason"][0]
    entry, count = reason.split("concept full: ")[1].split(", kept 2 of ")
    captions = pool.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()["caption"]
    padded = captions.str.to_lowercase().str.replace_all(r"([,.;:?!])", " $1 ")
    held = (" " + padded + " ").str.contains(f" {entry} ", literal=True).sum()
    assert int(count) == held
    assert held > 2
    verdicts = explain(settings, full["sample_id"][0])[0]["policies"]
    words = next(sentence(verdict) for verdict in verdicts if verdict["policy"] == "concept_balance")
    assert words.startswith("dropped: fused.concept_balance")
    assert words.endswith(f"; concept full: {entry}, kept 2 of {count}")


def test_a_kept_caption_holds_an_entry_that_is_not_full_or_won_the_coin(pool: PoolContext) -> None:
    table = pool.store.scan("fused/concept_balance").collect()
    known = table.drop_nulls("quality")
    assert (known.filter(pl.col("keep_probability") == 1.0)["quality"] >= 0).all()
    assert (known.filter(pl.col("entry_count") == 0)["quality"] < 0).all()


def test_coverage_takes_the_greedy_choice_in_order(pool: PoolContext) -> None:
    table = pool.store.scan("fused/concept_coverage").collect().drop_nulls("quality")
    assert (table["quality"] > 0).all()
    chosen = kept(pool, "concept_coverage")
    raw = pool.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()
    assert chosen.height == round(raw.height * 0.25)
    dropped = pool.store.scan("filtered/concept_coverage").filter(pl.col("verdict") == "dropped").collect()
    assert dropped["reason"].str.contains("concept.* \\(margin\\)").all()


def test_votes_are_recorded_and_the_model_ranks_them(pool: PoolContext) -> None:
    table = pool.store.scan("fused/eyes").collect().drop_nulls("quality")
    columns = ["clip_score_vote", "image_entropy_vote", "image_light_vote"]
    assert set(columns) <= set(table.columns)
    assert table["quality"].is_between(0, 1).all()
    one = table.group_by(columns).agg(pl.col("quality").n_unique())
    assert (one["quality"] == 1).all(), "same votes, same P(good)"
    fit = pool.store.read("fused/eyes_fit")
    assert fit["voter"].to_list() == ["signals.clip_score", "signals.image_entropy", "signals.image_light"]
    why = pool.store.scan("filtered/eyes").filter(pl.col("verdict") == "dropped").collect()["reason"]
    assert why.str.contains("votes to drop: .*clip_score").any()


def test_a_mix_learns_whose_ratings_follow_a_signal(pool: PoolContext) -> None:
    fit = pool.store.read("fused/mix_fit")
    weights = dict(fit.select("signal", "weight").iter_rows())
    assert weights["signals.clip_score"] > 3 * abs(weights["signals.image_entropy"])
    both = (
        pool.store.scan("fused/mix")
        .collect()
        .join(pool.store.scan("signals/clip_score").collect(), on=["shard", "source_row"])
    )
    assert both.drop_nulls("quality").select(pl.corr("quality", "value", method="spearman")).item() > 0.95


def test_a_mix_of_given_weights_is_their_sum(tmp_path: Path) -> None:
    """Against the formula: z-scores over the pool, what is more than at_most counts as that, no row without a value."""
    (tmp_path / "given.yaml").write_text(
        "name: given\nkind: linear_mix\nmix: [signals.clip_score, signals.word_count]\n"
        "weights: {signals.clip_score: 0.5, signals.word_count: -2}\nat_most: {signals.word_count: 10}\n"
    )
    recipe = load_recipe(tmp_path / "given.yaml").settings
    assert recipe.files == ()
    clip, words = np.array([0.1, 0.2, np.nan, 0.4, 0.9]), np.array([1.0, 3.0, 4.0, 20.0, 0.0])
    rows = pl.DataFrame(
        {
            "sample_id": list("abcde"),
            "signals.clip_score": pl.Series(clip).fill_nan(None),
            "signals.clip_score:reason": [None, None, "image_broken", None, None],
            "signals.word_count": words,
            "signals.word_count:reason": pl.Series([None] * 5, dtype=pl.String),
        }
    )
    scored = recipe.score(rows, recipe.fit([rows[:2], rows[2:]], {}))
    seen, cut = clip[[0, 1, 3, 4]], np.array([1.0, 3.0, 4.0, 10.0, 0.0])
    z = 0.5 * (clip - seen.mean()) / seen.std() - 2 * (cut - cut.mean()) / cut.std()
    expected = 1 / (1 + np.exp(-z))
    np.testing.assert_allclose(scored["quality"].drop_nulls(), expected[[0, 1, 3, 4]])
    assert scored["reason"].to_list() == [None, None, "signals.clip_score:image_broken", None, None]


def test_a_mix_without_any_value_of_a_signal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "given.yaml").write_text(
        "name: given\nkind: linear_mix\nmix: [signals.clip_score]\nweights: {signals.clip_score: 1}\n"
    )
    rows = pl.DataFrame({"sample_id": ["a"], "signals.clip_score": pl.Series([None], dtype=pl.Float64)})
    with pytest.raises(ValueError, match="without any value"):
        load_recipe(tmp_path / "given.yaml").settings.fit([rows], {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "needs the file ratings, or weights of exactly"),
        ("ratings: a.csv\nweights: {signals.clip_score: 1, signals.icc: 1}\n", "ratings a.csv and weights"),
        ("weights: {signals.clip_score: 1}\n", "weights of exactly"),
        ("ratings: a.csv\nat_most: {signals.word_count: 10}\n", "at_most must name signals of mix"),
    ],
)
def test_a_mix_needs_ratings_or_all_weights(tmp_path: Path, settings: str, message: str) -> None:
    (tmp_path / "mixed.yaml").write_text(
        "name: mixed\nkind: linear_mix\nmix: [signals.clip_score, signals.icc]\n" + settings
    )
    with pytest.raises(ValueError, match=message):
        load_recipe(tmp_path / "mixed.yaml")


def test_a_recipe_of_before_keeps_its_version(tmp_path: Path) -> None:
    """The sha256 that version 0.2 gave this file: settings that came later are empty in it."""
    (tmp_path / "mix.yaml").write_text(MIX.format(ratings="ratings.csv"))
    before = "7c898ca0c300eb11501bccbfa57fe3b12c21a5c6c9f8a06ff8d6901320e28a94"
    assert load_recipe(tmp_path / "mix.yaml").version == before


def test_quotas_of_clusters_are_met(pool: PoolContext) -> None:
    fit = pool.store.read("fused/density_fit")
    assert fit["quota"].sum() == round(fit["count"].sum() * 0.5)
    by_cluster = pool.store.scan("fused/density").filter(pl.col("quality") >= 0).collect().group_by("cluster").len()
    assert dict(by_cluster.iter_rows()) == dict(fit.select("cluster", "quota").iter_rows())
    assert kept(pool, "density").height == fit["quota"].sum()


def test_a_cluster_of_one_leaves_with_its_image(tmp_path: Path) -> None:
    """Its centroid is that image's vector, so the fit is made again; of other clusters it is a mean, and stays."""
    (tmp_path / "tars").mkdir()
    alike = [(Image.new("RGB", (64, 64), (200, number, 0)), f"a red square {number}") for number in range(40)]
    write_pairs(tmp_path / "tars" / "00000.tar", [*alike, (render(plant_pool(1, 8)[0]), "a scene")])
    settings = load_settings(tmp_path, "embedded")
    options = {"image_domain": "scenes", "recipes": {"density": {"clusters": 2}}, "policies": ["density"]}
    add_pool(settings, "pairs", tmp_path / "tars", options=options)
    ctx = PoolContext.open(settings, "pairs")
    run_with_upstream(ctx, "filtered/density")
    fit = ctx.store.read("fused/density_fit")
    assert sorted(fit["count"]) == [1, 40]
    samples = ctx.store.scan("raw/samples").collect()

    def take_down(caption: str) -> dict[str, Any]:
        add_to_denylist(tmp_path, [("uid", samples.filter(pl.col("caption") == caption)["sample_id"][0])])
        tables = tables_of(ctx)
        begun = begin_takedown(ctx, tables)
        assert begun is not None
        run_with_upstream(ctx, "filtered/density")
        return finish_takedown(ctx, tables, begun)[0]

    assert "fused/density_fit" in take_down("a red square 3")["fits_kept"]
    assert ctx.store.read("fused/density_fit").equals(fit)
    assert "fused/density_fit" not in take_down("a scene")["fits_kept"]
    assert ctx.store.read("fused/density_fit")["count"].sum() == 39


def test_a_shrunk_set_is_that_of_the_plain_loop(pool: PoolContext) -> None:
    """VAS-D as published, on the tables of the pool; what it dropped before the last step may come back."""
    keys = ["sample_id", "shard", "source_row"]
    values = pool.store.scan("signals/clip_score").select(*keys, "value").collect().drop_nulls()
    embedded = pool.store.scan("signals/image_embedding").select(*keys[1:], "image_embedding").collect().drop_nulls()
    rows = values.join(embedded, on=keys[1:]).unique("sample_id").sort("value", descending=True)
    n = rows.height
    left = rows.head(round(n * 0.8)).sort("sample_id")
    sizes = [left.height - (left.height - round(n * 0.5)) * step // 7 for step in range(1, 8)]
    for size in sizes:
        vectors = np.array(left["image_embedding"].to_list(), dtype=np.float64)
        moment = sum(np.outer(vector, vector) for vector in vectors) / len(vectors)
        aligned = pl.Series("vas", [vector @ moment @ vector for vector in vectors])
        left = left.with_columns(aligned).sort("vas", descending=True).head(size).sort("sample_id")
    fit = pool.store.read("fused/vas_d_fit")
    np.testing.assert_allclose(np.array(fit["second_moment"].to_list()), moment, atol=1e-5)
    table = pool.store.scan("fused/vas_d").collect().unique("sample_id")
    chosen = table.filter(pl.col("quality") >= 0)
    assert set(left["sample_id"]) <= set(chosen["sample_id"])
    assert chosen.height == left.height + fit["returned"][0]
    assert fit["left"][0] == left.height == sizes[-1]
    both = left.join(table, on="sample_id", suffix="_scored")
    np.testing.assert_allclose(both["vas"], both["vas_scored"], atol=1e-5)
    words = kept_words(pool, "vas_d")
    assert words.str.contains("clip_score below the start|variance alignment below").all()
    assert words.str.contains("below the start").sum() == n - round(n * 0.8)


def kept_words(ctx: PoolContext, policy: str) -> pl.Series:
    """Reasons of what a policy drops by its cut."""
    frame = ctx.store.scan(f"filtered/{policy}").filter(pl.col("verdict") == "dropped").collect()
    return frame.filter(pl.col("reason").str.starts_with("below_cut"))["reason"]


def test_the_order_of_shards_does_not_matter(pool: PoolContext) -> None:
    """A fit is the same frame, to the bit, whichever shard is read first."""
    recipe = fitted_recipes(pool)["vas_d"]
    shards = [rows_of(pool, recipe, key) for key in pool.store.partitions("raw/samples")]
    fit = recipe.settings.fit(shards, {})
    assert fit.equals(pool.store.read("fused/vas_d_fit"))
    assert recipe.settings.fit(shards[::-1], {}).equals(fit)
    mixed = pl.concat(shards).sample(fraction=1.0, shuffle=True, seed=3)
    assert recipe.settings.fit([mixed[:40], mixed[40:]], {}).equals(fit)


def test_multiplicities_reach_npy_parquet_and_tars(pool: PoolContext, tmp_path: Path) -> None:
    fit = pool.store.read("fused/clip_soft_cap_fit")
    ids = read_subset(pool.store.folder_path("filtered/subsets") / "clip_soft_cap.npy")
    assert len(ids) == fit["budget"][0]
    assert len(set(ids)) < len(ids)
    assert read_subset(pool.store.folder_path("filtered/subsets") / "clip_soft_cap.parquet") == ids
    subset = find_subset(pool, "clip_soft_cap")
    assert subset.sample_ids == ids
    FORMATS["webdataset"].write(subset, tmp_path / "tars")
    facts = json.loads((tmp_path / "tars" / "manifest.json").read_text())
    assert facts["counts"]["entries"] == len(ids)
    often = max(set(ids), key=ids.count)
    rows = pl.concat([pl.read_parquet(path) for path in sorted((tmp_path / "tars").glob("*.parquet"))])
    assert rows.filter(pl.col("uid") == often).height == ids.count(often) > 1


@pytest.mark.slow
def test_a_late_shard_moves_nobody(pool: PoolContext, settings: Settings, source: Path) -> None:
    names = sorted(fitted_recipes(pool))
    before = {name: pool.store.scan(f"fused/{name}").collect() for name in names}
    verdicts = {name: pool.store.scan(f"filtered/{name}").collect() for name in POLICIES}
    late = source / "00002.tar"
    write_scenes(late, SCENES[110:], 110)
    try:
        ctx = run(settings)
        for name in names:
            now = ctx.store.scan(f"fused/{name}").collect()
            assert now.height == 150
            assert now.filter(pl.col("shard") != "scenes-000002").equals(before[name]), name
            assert now.filter(pl.col("shard") == "scenes-000002")["quality"].count() > 0
        for name in POLICIES:
            now = ctx.store.scan(f"filtered/{name}").filter(pl.col("shard") != "scenes-000002").collect()
            assert now.equals(verdicts[name]), name
            replay(recorded_ledger(ctx.store, name))
    finally:
        late.unlink()


def test_a_recipe_that_reads_what_the_pool_does_not_run_is_refused(settings: Settings, source: Path) -> None:
    add_pool(settings, "other", source, options={"recipes": {"concept_coverage": {}, "nonsense": {}}})
    ctx = PoolContext.open(settings, "other")
    with pytest.raises(ValueError, match="has no recipe 'nonsense'"):
        tables_of(ctx)
    add_pool(settings, "third", source, options={"recipes": {"density": {"cluster": 3}}})
    with pytest.raises(ValueError, match="did you mean 'clusters'"):
        tables_of(PoolContext.open(settings, "third"))
    own = settings.pools_root / "fourth" / "recipes"
    own.mkdir(parents=True)
    (own / "eyes.yaml").write_text(VOTES.replace("signals.image_light", "signals.vas"))
    add_pool(settings, "fourth", source)
    with pytest.raises(ValueError, match="recipe 'eyes' reads image_entropy, vas, which the pool does not run"):
        tables_of(PoolContext.open(settings, "fourth"))


def test_shipped_recipes_wait_until_the_pool_names_them(settings: Settings, source: Path) -> None:
    assert {"ecodatum", "concept_balance", "concept_coverage", "density", "clip_soft_cap"} <= set(load_recipes())
    add_pool(settings, "plain", source)
    ctx = PoolContext.open(settings, "plain")
    assert fitted_recipes(ctx) == {}
    assert not {policy.name for policy in policies_of(ctx)} & set(POLICIES)
    add_pool(settings, "named", source, options={"policies": ["ecodatum"]})
    assert set(fitted_recipes(PoolContext.open(settings, "named"))) == {"ecodatum"}


@pytest.mark.slow
def test_the_published_voters_vote_in_a_pool(settings: Settings, source: Path) -> None:
    """EcoDatum on drawn scenes, whose detector knows their objects: all voters vote, objects and flips are counted."""
    recipe = load_recipes()["ecodatum"]
    run_here = sorted(name.removeprefix("signals.") for name in recipe.settings.signals)
    assert set(run_here) <= set(all_methods())
    add_pool(settings, "voted", source, options={"methods": run_here, "policies": ["ecodatum"]})
    ctx = PoolContext.open(settings, "voted")
    run_with_upstream(ctx, "filtered/ecodatum")
    fit = ctx.store.read("fused/ecodatum_fit")
    assert fit["voter"].to_list() == list(recipe.settings.signals)
    votes = dict(fit.select("voter", pl.col("keep_votes") + pl.col("drop_votes")).iter_rows())
    assert all(count > 0 for count in votes.values()), votes
    objects_fit = fit.filter(pl.col("voter") == "signals.object_count")
    assert objects_fit["keep_votes"][0] > 0
    assert objects_fit["drop_votes"][0] > 0
    counted = ctx.store.scan("signals/object_count").select("source_row", "shard", "value").collect()
    objects = ctx.store.scan("signals/detected_objects").select("source_row", "shard", "detected_objects").collect()
    both = counted.join(objects, on=["shard", "source_row"]).drop_nulls()
    assert (both["value"] == both["detected_objects"].list.n_unique()).all()
    flipped = ctx.store.scan("signals/flipped_clip_score").collect().drop_nulls("value")
    assert (flipped["value"] == flipped.select(pl.min_horizontal("mirrored", "upside_down")).to_series()).all()
    kept_rows = ctx.store.scan("filtered/ecodatum").filter(pl.col("verdict") == "kept").collect()
    table = ctx.store.scan("fused/ecodatum").collect()
    worst_kept = table.join(kept_rows, on=["shard", "source_row"], how="semi")["quality"].min()
    assert worst_kept >= table["quality"].median()


def test_a_recipe_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    for text, said in (
        ("name: mine\n", "expected a mapping with name, kind"),
        ("name: yours\nkind: votes\n", "file and recipe are named alike"),
        ("name: mine\nkind: vote\n", "did you mean 'votes'"),
        ("name: mine\nkind: votes\nvoters: [{signal: signals.icc, keep_from: 1, drop_below: 2}]\n", "keep_from"),
        ("name: mine\nkind: vas_d\nstart_fraction: 0.2\nfraction: 0.3\n", "at most start_fraction 0.2, got 0.3"),
        ("name: mine\nkind: soft_cap\nscore_by: fused.other\nbudget: 1\n", "of a stage before fused"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=said):
            load_recipe(path)

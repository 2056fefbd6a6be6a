"""Mixtures of sources: stated shares, repeats, reasons, ledgers that replay; unions; concepts with a target."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.audit.ledger import recorded_ledger
from curation_assets.audit.why import explain, sentence
from curation_assets.core.settings import load_settings
from curation_assets.flow.conservation import violations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import fitted_recipes
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.operations.agents.answers import Home
from curation_assets.operations.releases import create_release
from curation_assets.operations.summaries import write_summary
from curation_assets.outputs.report.origins import origins_of
from curation_assets.outputs.summary.forms import FORMS
from curation_assets.selection.fitted import FittedRecipe, load_recipe
from curation_assets.selection.kinds.concept_coverage import KIND as COVERAGE
from curation_assets.selection.kinds.mix import licence_class
from curation_assets.sources.declaration import add_pool
from curation_assets.stages.fused.fitted import rows_of
from tests.support.command import curate
from tests.support.id_lists import read_subset
from tests.support.ledgers import replay
from tests.support.summaries import check_statements

NOUNS = ["dog", "kite", "city", "goose", "crowd"]
RECIPES = {
    # 12 books of which 4 epochs are fewer than half of 120; the rest passes on to the web
    "half": "kind: mix\nshares: {web: 0.5, books: 0.5}\nsamples: 120\nrank_by: signals.clip_score",
    "roots": "kind: mix\nalpha: 0.5\nfraction: 0.3\nrank_by: signals.clip_score\nfloors: {signals.clip_score: 0.2}",
    "free": "kind: mix\nby: licence_class\nshares: {public_domain: 1, attribution: 3}\nsamples: 40",
    "by_value": "kind: mix\nby: signals.english.value\nalpha: 0\nsamples: 27",
    "union": "kind: any_of\nshares: {signals.clip_score: 0.1, signals.english: 0.3}",
}


def table(n: int = 200, seed: int = 5) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    source = np.where(np.arange(n) % 17 == 0, "books", np.where(np.arange(n) % 3 == 0, "news", "web"))
    return pl.DataFrame(
        {
            "caption": [f"a {NOUNS[number % 5]} near a {NOUNS[number % 7 % 5]} number {number}" for number in range(n)],
            "source": source,
            "licence": rng.choice(["CC BY 4.0", "CC0-1.0", "CC BY-NC 4.0", None], n).tolist(),
            "score": np.round(rng.uniform(0, 1, n), 2),  # with ties
            "words": [None if number % 10 == 0 else (number % 9) / 8 for number in range(n)],
        }
    )


def run(ctx: PoolContext) -> PoolContext:
    run_with_upstream(ctx, *(f"filtered/{name}" for name in RECIPES), "filtered/subsets")
    return ctx


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    home = tmp_path_factory.mktemp("home")
    settings = load_settings(home, "embedded")
    given = {"clip_score": "score", "english": "words"}
    table().write_parquet(home / "rows.parquet")
    add_pool(settings, "two", home / "rows.parquet", options={"given_signals": given, "distil": False}, shard_size=80)
    own = settings.pools_root / "two"
    (own / "recipes").mkdir(parents=True)
    for name, text in RECIPES.items():
        (own / "recipes" / f"{name}.yaml").write_text(f"name: {name}\n{text}\n")
        repeats = "" if name == "union" else "\nrepeats: true"
        (own / f"{name}.yaml").write_text(f"name: {name}\nrank_by: fused.{name}\nthreshold: 1{repeats}\n")
    return run(PoolContext.open(settings, "two"))


def facts(ctx: PoolContext) -> pl.DataFrame:
    """Rows that raw kept, with source and licence, the values, and how often each policy has them."""
    rows = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").select("sample_id", "caption").collect()
    rows = rows.join(
        ctx.store.scan("raw/provenance").select("sample_id", "source", "licence").collect(), on="sample_id"
    )
    for name in ("clip_score", "english"):
        rows = rows.join(
            ctx.store.scan(f"signals/{name}").select("sample_id", pl.col("value").alias(name)).collect(), on="sample_id"
        )
    for name in RECIPES:
        ids = read_subset(ctx.store.folder_path("filtered/subsets") / f"{name}.npy")
        times = pl.Series("sample_id", ids).value_counts(name=name).with_columns(pl.col(name).cast(pl.Int64))
        rows = rows.join(times, on="sample_id", how="left").with_columns(pl.col(name).fill_null(0))
    return rows


def test_shares_are_stated_ones_and_what_is_short_passes_on(pool: PoolContext) -> None:
    rows = facts(pool)
    entries = dict(rows.group_by("source").agg(pl.col("half").sum()).iter_rows())
    books = rows.filter(pl.col("source") == "books").height
    assert books == 12
    assert entries == {"books": 48, "web": 72, "news": 0}
    assert rows.filter(pl.col("source") == "books")["half"].to_list() == [4] * 12
    fit = pool.store.read("fused/half_fit")
    assert fit.select("group", "rows", "entries", "epochs").rows()[0] == ("books", 12, 48, 4.0)


def test_inside_a_source_the_best_are_taken(pool: PoolContext) -> None:
    """Brute force: by the value, best first; of equal ones as many as there is room for."""
    web = facts(pool).filter(pl.col("source") == "web").sort("clip_score", descending=True)
    taken, edge = web["half"].to_numpy(), web["clip_score"].to_numpy()[71]
    assert web.height > 72
    assert (taken[web["clip_score"].to_numpy() > edge] == 1).all()
    assert (taken[web["clip_score"].to_numpy() < edge] == 0).all()
    assert taken.sum() == 72


def test_roots_of_sizes_count_only_what_is_above_the_floor(pool: PoolContext) -> None:
    rows = facts(pool)
    good = rows.filter(pl.col("clip_score") >= 0.2)
    sizes = dict(good["source"].value_counts().iter_rows())
    total = round(good.height * 0.3)
    weight = {name: size**0.5 for name, size in sizes.items()}
    for name, entries in rows.group_by("source").agg(pl.col("roots").sum()).iter_rows():
        assert abs(entries - total * weight[name] / sum(weight.values())) < 1
    assert rows["roots"].sum() == total
    assert rows.filter(pl.col("clip_score") < 0.2)["roots"].sum() == 0


def test_a_column_of_another_table_makes_groups(pool: PoolContext) -> None:
    entries = dict(facts(pool).group_by("english").agg(pl.col("by_value").sum()).iter_rows())
    assert len(entries) == 10  # nine values, and the rows without one
    assert sorted(entries.values()) == [2] * 3 + [3] * 7
    assert set(pool.store.read("fused/by_value_fit")["group"]) == {"unknown", *(str(one / 8) for one in range(9))}


def test_classes_of_licences(pool: PoolContext) -> None:
    rows = facts(pool)
    free = dict(rows.group_by("licence").agg(pl.col("free").sum()).iter_rows())
    assert (free["cc0-1.0"], free["cc-by-4.0"], free["cc-by-nc-4.0"], free[None]) == (10, 30, 0, 0)
    ids = ["cc-by-nc-sa-4.0", "cc-by-nd-4.0", "cc-by-sa-3.0", "odbl-1.0", "cc0-1.0", "mit", "my terms", None]
    classes = (
        pl.DataFrame({"id": ids}, schema={"id": pl.String}).select(licence_class(pl.col("id"))).to_series().to_list()
    )
    assert classes == [
        "non_commercial", "no_derivatives", "share_alike", "share_alike", "public_domain", "attribution", "other", None,
    ]  # fmt: skip


def test_every_row_ends_somewhere_and_ledgers_replay(pool: PoolContext) -> None:
    for name in RECIPES:
        for shard in pool.shards():
            assert violations(pool, tables_of(pool)[f"filtered/{name}"], shard) == []
        ledger = recorded_ledger(pool.store, name)
        npy = np.load(pool.store.folder_path("filtered/subsets") / f"{name}.npy")
        np.testing.assert_array_equal(replay(ledger), npy)
        np.testing.assert_array_equal(ledger.subset(), npy)


def test_reasons_are_of_the_mixture(pool: PoolContext) -> None:
    verdicts = pool.store.scan("filtered/half").select("sample_id", "verdict", "reason").collect()
    rows = verdicts.join(facts(pool).select("sample_id", "source"), on="sample_id")
    web = rows.filter((pl.col("source") == "web") & (pl.col("verdict") == "dropped"))
    count = rows.filter(pl.col("source") == "web").height
    assert set(web["reason"]) == {f"below_cut:fused.half:mixture:full: web, 72 entries of {count} rows"}
    news = rows.filter(pl.col("source") == "news")
    assert set(news["reason"]) == {"below_cut:fused.half:no share for news"}
    said = [
        sentence(one) for one in explain(pool.settings, web["sample_id"][0])[0]["policies"] if one["policy"] == "half"
    ]
    assert said[0].endswith(f"mixture:full: web, 72 entries of {count} rows")


def mixture_in_report(ctx: PoolContext, policy: str) -> dict[str, Any]:
    groups = {group["title"]: group for group in origins_of(ctx)["groups"]}  # type: ignore[index]
    return groups[f"Mixture of policy {policy}: its shares as stated, and as they are"]


@pytest.mark.slow
def test_report_and_run_show_the_entries_and_the_shares_of_each_group(pool: PoolContext) -> None:
    half = mixture_in_report(pool, "half")
    assert dict(half["rows"]) == {
        "web": [72, 72, "50.0%", "60.0%"],
        "books": [12, 48, "50.0%", "40.0%"],
        "news": [0, 0, "0.0%", "0.0%"],
    }
    assert half["picture"].startswith("data:image/")
    assert dict(mixture_in_report(pool, "free")["rows"])["attribution"][1:] == [30, "75.0%", "75.0%"]
    run = curate("run", "two", "--table", "filtered/half", home=pool.settings.home)
    assert run.exit_code == 0, run.output
    (line,) = [line.split() for line in run.output.splitlines() if line.startswith("half ")]
    assert line[1:5] == ["84", "116", "0", "120"]  # kept, dropped, failed, entries
    _, _, shown = run.output.partition("Mixture of policy half")
    books = ["books", *map(str, dict(half["rows"])["books"])]
    assert books in [line.split() for line in shown.splitlines()]


def test_why_explains_the_entries_of_a_kept_row(pool: PoolContext) -> None:
    rows = facts(pool)
    for source, times in (("books", 4), ("web", 1)):
        kept = rows.filter((pl.col("source") == source) & (pl.col("half") > 0))["sample_id"][0]
        (verdict,) = (one for one in explain(pool.settings, kept)[0]["policies"] if one["policy"] == "half")
        assert verdict["entries"] == times
        assert verdict["mixture"]["group"] == source
        said = sentence(verdict)
        if source == "books":
            assert said.endswith(
                "; 4 entries of the set: group books of the mixture, stated share 50.0%, was given 48 entries for the "
                "12 rows that it had at the fit: each 4 times"
            )
        else:
            assert said.endswith("at the fit: the best 72 once")
    (union,) = (one for one in explain(pool.settings, kept)[0]["policies"] if one["policy"] == "union")
    assert union["mixture"] is None
    (answer,) = Home(pool.settings).why(kept)["samples"]  # a group is named as rows name it
    assert answer["untrusted"]["mixtures"]["half"]["group"] == "web"
    assert not any("mixture" in one for one in answer["policies"])


@pytest.mark.slow
def test_a_new_shard_moves_the_shares_and_that_is_shown(tmp_path: Path) -> None:
    """30 : 30 entries; then a shard of web rows alone comes, and the frozen edge takes its share of them."""
    rng = np.random.default_rng(3)
    settings = load_settings(tmp_path, "embedded")
    (tmp_path / "rows").mkdir()

    def rows(sources: list[str], name: str) -> None:
        captions = [f"{name} {number} a dog" for number in range(len(sources))]
        values = rng.uniform(0, 1, len(sources))
        frame = pl.DataFrame({"caption": captions, "source": sources, "score": values})
        frame.write_parquet(tmp_path / "rows" / f"{name}.parquet")

    rows(["web", "books"] * 50, "a")
    options = {"given_signals": {"clip_score": "score"}, "distil": False}
    add_pool(settings, "two", tmp_path / "rows", options=options, shard_size=100)
    own = settings.pools_root / "two"
    (own / "recipes").mkdir(parents=True)
    recipe = "name: half\nkind: mix\nshares: {web: 1, books: 1}\nsamples: 60\nrank_by: signals.clip_score\n"
    (own / "recipes" / "half.yaml").write_text(recipe)
    (own / "half.yaml").write_text("name: half\nrank_by: fused.half\nthreshold: 1\nrepeats: true\n")
    words = ["run", "two", "--home", str(tmp_path)]
    assert curate(*words).exit_code == 0
    rows(["web"] * 100, "b")
    again = curate(*words)
    assert again.exit_code == 0, again.output
    ctx = PoolContext.open(settings, "two")
    (web, books) = mixture_in_report(ctx, "half")["rows"]
    samples = ctx.store.scan("raw/samples").select("shard", "source_row").collect()
    kept = ctx.store.scan("filtered/half").filter(pl.col("verdict") == "kept").select("shard", "source_row").collect()
    source = ctx.store.scan("raw/provenance").select("shard", "source_row", "source").collect()
    counted = dict(kept.join(source, on=["shard", "source_row"])["source"].value_counts().iter_rows())
    assert samples.height == 200
    assert counted["books"] == 30 < counted["web"]
    total = sum(counted.values())
    assert web == ("web", [counted["web"], counted["web"], "50.0%", f"{counted['web'] / total:.1%}"])
    assert books == ("books", [30, 30, "50.0%", f"{30 / total:.1%}"])
    _, _, shown = again.output.partition("Mixture of policy half")
    assert ["web", *map(str, web[1])] in [line.split() for line in shown.splitlines()]


@pytest.mark.slow
def test_a_release_and_an_export_describe_the_mixture_as_one(
    pool: PoolContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = create_release(pool, tables_of(pool), "half", "m1")
    stated = "a mixture by source, stated shares books 50.0%, web 50.0%, each sample at most 4 times"
    for form in FORMS:
        summary = write_summary(pool.settings.home, release, FORMS[form], Path("none.yaml"))
        check_statements(release, summary, monkeypatch)
        text = (summary.folder / "summary.md").read_text()
        assert f"{stated}; shares of its 120 entries: web 60.0%, books 40.0%." in text
        assert "from 1 by" not in text
    assert f"The cut by `fused.half` is {stated}; shares of its 120" in (release.folder / "card.md").read_text()
    home = str(pool.settings.home)
    for of in (["half"], ["--release", "m1"]):
        out = tmp_path / of[-1]
        words = ["export", "hf", *of, "--pool", "two", "--out", str(out), "--home", home]
        exported = curate(*words)
        assert exported.exit_code == 0, exported.output
        assert f"The cut by `fused.half` is {stated}." in (out / "README.md").read_text()
        protocol = json.loads((out / "croissant.json").read_text())["rai:dataManipulationProtocol"]
        assert f"not changed: {stated}: 84 of 200. Repeats counted they are 120 entries." in protocol


def test_a_name_in_shares_that_no_row_has_is_refused(pool: PoolContext) -> None:
    recipe = fitted_recipes(pool)["half"].with_settings({"shares": {"web": 1, "boks": 1}}, "here")
    rows = rows_of(pool, recipe, pool.store.partitions("raw/samples")[0])
    with pytest.raises(ValueError, match="shares names 'boks', and no row has that source; did you mean 'books'"):
        recipe.settings.fit([rows], {})


def test_a_union_keeps_what_any_signal_passes(pool: PoolContext) -> None:
    rows = facts(pool)
    best = rows["clip_score"].sort(descending=True)[rows.height // 10 - 1]
    words = rows["english"].drop_nulls()
    wordy = words.sort(descending=True)[round(len(words) * 0.3) - 1]
    expected = (pl.col("clip_score") >= best) | (pl.col("english") >= wordy).fill_null(False)
    assert rows.filter(expected)["sample_id"].sort().equals(rows.filter(pl.col("union") > 0)["sample_id"].sort())
    table = pool.store.scan("fused/union").collect()
    assert set(table["quality"].unique()) == {0.0, 1.0, 2.0}
    dropped = pool.store.scan("filtered/union").filter(pl.col("verdict") == "dropped").collect()
    reasons = set(dropped["reason"])
    assert reasons == {f"below_cut:fused.union:best missed: {name}" for name in ("clip_score", "english")}
    near = table.filter(pl.col("quality") == 0).join(rows, on="sample_id")
    only_clip = near.filter(pl.col("english").is_null())
    assert only_clip.height > 0
    assert set(only_clip["best_missed"]) == {"clip_score"}


def test_a_late_source_has_no_share_until_the_fit_is_made_again(pool: PoolContext) -> None:
    recipe = fitted_recipes(pool)["half"]
    shards = [rows_of(pool, recipe, key) for key in pool.store.partitions("raw/samples")]
    fit = recipe.settings.fit(shards, {})
    assert fit.equals(recipe.settings.fit(shards[::-1], {}))
    late = shards[0].with_columns(source=pl.lit("late"))
    assert set(recipe.settings.score(late, fit)["drop_reason"]) == {"no share for late"}
    again = recipe.settings.score(shards[0], fit)
    assert again["quality"].equals(recipe.settings.score(pl.concat(shards), fit)["quality"][: shards[0].height])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: mix\nsamples: 5", "mix needs shares or alpha"),
        ("kind: mix\nalpha: 1", "mix needs samples or fraction"),
        ("kind: mix\nshares: {web: -1}\nsamples: 5", "shares must be 0 or more"),
        ("kind: any_of\nshares: {signals.icc: 0.5}", "two or more signals"),
        ("kind: any_of\nshares: {signals.icc: 0.5, signals.clip_score: 1.5}", r"shares in \(0, 1\]"),
        ("kind: concept_coverage\nbin_weights: [0, 0]", "bin_weights must be 0 or more"),
    ],
)
def test_a_recipe_that_makes_no_sense_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(f"name: odd\n{text}\n")
    with pytest.raises(ValueError, match=message):
        load_recipe(path)


def test_an_unknown_column_is_named(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, "embedded")
    table(20).write_parquet(tmp_path / "rows.parquet")
    add_pool(settings, "p", tmp_path / "rows.parquet", options={"distil": False})
    recipes = settings.pools_root / "p" / "recipes"
    recipes.mkdir(parents=True)
    (recipes / "odd.yaml").write_text("name: odd\nkind: mix\nby: sauce\nalpha: 0\nsamples: 5\n")
    with pytest.raises(ValueError, match="recipe 'odd': the pool has no column 'sauce'; did you mean 'source'"):
        tables_of(PoolContext.open(settings, "p"))
    (recipes / "odd.yaml").write_text("name: odd\nkind: mix\nby: signals.image_kind.kind\nalpha: 0\nsamples: 5\n")
    with pytest.raises(ValueError, match="image_kind"):
        tables_of(PoolContext.open(settings, "p"))


# -- concept coverage with a target, and balance per language ---------------------------------------------------------


class _WordNet:
    def lemmas(self, pos: str | None = None) -> list[str]:
        return NOUNS


def covered(tmp_path: Path, rows: pl.DataFrame, engines: dict[str, Any] | None = None, **given: Any) -> pl.DataFrame:
    kind = COVERAGE(least=1, bins=3, **given)
    return kind.fit([rows], {"wordnet": _WordNet(), **(engines or {})})


def coverage_rows(n: int = 60) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "sample_id": [f"{number:032x}" for number in range(n)],
            "caption": [f"a {NOUNS[number % 5]}" for number in range(n)],
            "caption:reason": pl.Series([None] * n, dtype=pl.String),
            "signals.clip_score": np.linspace(0, 1, n),
            "signals.clip_score:reason": pl.Series([None] * n, dtype=pl.String),
            "detected_objects": [["dog"] if number % 2 else ["cat, tabby"] for number in range(n)],
        }
    )


def test_the_target_decides_which_concepts_count(tmp_path: Path) -> None:
    wanted = tmp_path / "wanted.tsv"
    wanted.write_text("caption\na goose\nthe goose and a kite\na zebra\n")
    fit = covered(tmp_path, coverage_rows(), target=str(wanted), target_power=1.0)
    concepts = fit.filter(pl.col("low_edge").is_null() & pl.col("weight").is_not_null())
    assert dict(concepts.select("item", "weight").iter_rows()) == pytest.approx({"goose": 0.5 * 2 / 3, "kite": 0.5 / 3})
    pl.DataFrame({"caption": ["a unicorn"]}).write_csv(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="no concept of target"):
        covered(tmp_path, coverage_rows(), target=str(tmp_path / "none.csv"))
    pl.DataFrame({"text": ["a goose"]}).write_csv(tmp_path / "odd.csv")
    with pytest.raises(ValueError, match="expected a column caption, got text"):
        covered(tmp_path, coverage_rows(), target=str(tmp_path / "odd.csv"))


def test_a_target_of_images_counts_objects(tmp_path: Path) -> None:
    class Detector:
        def detect_objects(self, images: list[Image.Image]) -> list[list[Any]]:
            label = "dog" if images[0].size == (8, 8) else "cat, tabby"
            return [[type("Detection", (), {"label": label, "score": 1.0})()]]

    images = tmp_path / "wanted"
    images.mkdir()
    for number in range(3):
        Image.new("RGB", (8, 8) if number else (9, 9)).save(images / f"{number}.png")
    (images / "broken.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match="set objects: true"):
        COVERAGE(target=str(images))
    kind = COVERAGE(target=str(images), objects=True)
    assert kind.roles == ("wordnet", "object_detector")
    assert len(kind.files) == 4
    fit = covered(tmp_path, coverage_rows(), {"object_detector": Detector()}, target=str(images), objects=True)
    weights = dict(fit.filter(pl.col("low_edge").is_null()).select("item", "weight").iter_rows())
    assert weights["dog"] == pytest.approx(weights["cat"] * 2**0.5)


def test_weights_of_bins_are_those_given(tmp_path: Path) -> None:
    fit = covered(tmp_path, coverage_rows(), bin_weights=(0, 0.01, 0.99), concept_share=0.0)
    bins = fit.filter(pl.col("low_edge").is_not_null())
    assert bins["weight"].to_list() == pytest.approx([0, 0.01, 0.99])
    scored = COVERAGE(bins=3, bin_weights=(0, 0.01, 0.99), concept_share=0.0).score(coverage_rows(), fit)
    best = scored.with_columns(coverage_rows()["signals.clip_score"]).sort("quality", descending=True)[:20]
    assert best["signals.clip_score"].min() > 0.66  # the upper bin first


def test_each_language_has_the_tail_share_of_english(tmp_path: Path) -> None:
    """A planted pool: in French one word is everywhere, so its limit is lower than English's in captions."""
    rng = np.random.default_rng(0)
    rows = []
    for language, words, n in (("en", ["dog", "kite", "city", "goose"], 400), ("fr", ["chien", "ville", "oie"], 90)):
        chances = 1 / np.arange(1, len(words) + 1) ** 2
        drawn = rng.choice(words, size=n, p=chances / chances.sum())
        rows += [(language, f"{word} {word}") for word in drawn]
    rows += [("zh", "红色的狗")] * 30 + [("xx", "unseen")]
    frame = pl.DataFrame(rows, schema=["language", "caption"], orient="row")
    frame = frame.with_columns(
        pl.Series("sample_id", [f"{number:032x}" for number in range(frame.height)]),
        pl.lit(None, pl.String).alias("caption:reason"),
    )
    path = tmp_path / "each.yaml"
    path.write_text(
        "name: each\nkind: concept_balance\nper_language: true\nlimit: 60\nwordnet: false\nngram_min_count: 5\n"
        "ngram_words: 1\n"
    )
    recipe: FittedRecipe = load_recipe(path)
    assert recipe.settings.columns == ("caption", "language")
    fit = recipe.settings.fit([frame[:300], frame[300:]], {})
    entries = {name: part for (name,), part in fit.partition_by("language", as_dict=True).items()}
    assert set(entries) == {"en", "fr", "zh"}
    english = entries["en"]
    share = english.filter(pl.col("count") <= 60)["count"].sum() / english["count"].sum()
    french = entries["fr"].sort("count")
    limit = french["limit"][0]
    tails = [french.filter(pl.col("count") <= one)["count"].sum() / french["count"].sum() for one in french["count"]]
    assert limit == french["count"][next(i for i, tail in enumerate(tails) if tail >= share)]
    assert 0 < limit < 60 == english["limit"][0]
    assert "狗" in entries["zh"]["entry"].to_list()  # no blanks between words: characters are counted
    scored = recipe.settings.score(frame, fit)
    assert scored.filter(frame["language"] == "xx")["quality"].to_list() == [-1.0]
    kept = scored.filter((frame["language"] == "fr") & (scored["quality"] >= 0)).height
    rare = frame.filter((pl.col("language") == "fr") & ~pl.col("caption").str.contains("chien")).height
    assert rare <= kept < 90
    only = load_recipe(path).settings
    with pytest.raises(ValueError, match="no caption is English"):
        only.fit([frame.filter(pl.col("language") != "en")], {})

"""Conceptual Captions beyond its text filter: overlap, transformation, the count of concepts, the funnel."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from benchmarks.papers.text_methods import data_sets, funnel
from curation_assets.core.settings import load_settings
from curation_assets.engines import load_engine
from curation_assets.flow.context import PoolContext
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.flow.sql import load_models, run_model
from curation_assets.methods import get_method
from curation_assets.numeric.conceptual_captions.overlap import overlapping_words
from curation_assets.numeric.conceptual_captions.transformation import Meaning, plural_of, transform
from curation_assets.numeric.dependency import Token
from curation_assets.sources.declaration import add_pool
from curation_assets.stores.catalog import open_pool
from curation_assets.stores.content_hash import frame_sha256
from curation_assets.world.pool import plant_pool, render
from tests.support.sql_tables import connection_of, samples, signal
from tests.support.tars import encoded, tar_of
from tests.support.tiny_wordnet import write_wordnet

MEANINGS = {
    "Los Angeles": Meaning("city", "place"),
    "Ada Stone": Meaning("actor", "thing"),
    "Bo Reed": Meaning("actor", "thing"),
    "January": Meaning("month", "time"),
}


def output(tokens: list[tuple[str, str, str, int]], **settings: Any) -> Any:
    parsed = [Token(text, pos, "", dep, head) for text, pos, dep, head in tokens]
    return transform(
        parsed,
        lambda name, label: next((MEANINGS[key] for key in MEANINGS if name.endswith(key)), None),
        is_common=lambda word: word == "Kite",
        is_proper_adjective=lambda word: word == "Italian",
        noun_lemma=lambda word: word.removesuffix("s"),
        **settings,
    )


def test_overlap_is_by_dictionary_form() -> None:
    assert overlapping_words("Two Dogs running by a stop sign", ["dog", "stop sign,stopsign"]) == [
        "dogs",
        "stop",
        "sign",
    ]
    assert overlapping_words("kites", ["kite"]) == ["kites"]
    assert overlapping_words("a category of its own", ["cat"]) == []
    assert overlapping_words("", ["cat"]) == []


def test_places_go_with_their_preposition_in_both_label_sets() -> None:
    words = [
        ("Crowd", "NOUN"),
        ("at", "ADP"),
        ("a", "DET"),
        ("concert", "NOUN"),
        ("in", "ADP"),
        ("Los", "PROPN"),
        ("Angeles", "PROPN"),
    ]
    universal = [("root", 0), ("case", 3), ("det", 3), ("nmod", 0), ("case", 6), ("compound", 6), ("nmod", 3)]
    spacy = [("ROOT", 0), ("prep", 0), ("det", 3), ("pobj", 1), ("prep", 3), ("compound", 6), ("pobj", 4)]
    for labels in (universal, spacy):
        done = output([(*word, *label) for word, label in zip(words, labels, strict=True)])
        assert done.text == "crowd at a concert"
        assert done.concepts == ["concert", "crowd"]
        assert done.drop is None


def test_names_become_what_they_name_and_equal_ones_merge() -> None:
    done = output(
        [
            ("Former", "ADJ", "amod", 3), ("Miss", "PROPN", "compound", 3), ("Ada", "PROPN", "compound", 3),
            ("Stone", "PROPN", "nsubj", 3), ("on", "ADP", "case", 7), ("the", "DET", "det", 7),
            ("red", "ADJ", "amod", 7),
            ("carpet", "NOUN", "nmod", 3),
        ]
    )  # fmt: skip
    assert done.text == "actor on the red carpet"
    merged = output(
        [
            ("Ada", "PROPN", "compound", 1), ("Stone", "PROPN", "root", 1), ("and", "CCONJ", "cc", 4),
            ("Bo", "PROPN", "compound", 4), ("Reed", "PROPN", "conj", 1), ("attend", "VERB", "acl", 1),
            ("premiere", "NOUN", "obj", 5),
        ]
    )  # fmt: skip
    assert merged.text == "actors attend premiere"
    assert merged.concepts == ["actor", "premiere"]


def test_modifiers_dates_and_numerals_go() -> None:
    done = output(
        [
            ("Italian", "ADJ", "amod", 1), ("cuisine", "NOUN", "root", 1), ("and", "CCONJ", "cc", 4),
            ("Zyx", "PROPN", "compound", 4),
            ("wine", "NOUN", "conj", 1), ("on", "ADP", "case", 7), ("a", "DET", "det", 7), ("table", "NOUN", "nmod", 1),
            ("in", "ADP", "case", 9), ("2012", "NUM", "nmod", 7),
        ]
    )  # fmt: skip
    assert done.text == "cuisine and wine on a table"
    dated = output(
        [
            ("kites", "NOUN", "root", 0),
            ("fly", "VERB", "acl", 0),
            ("January", "PROPN", "obl:tmod", 1),
            ("5", "NUM", "nummod", 2),
        ]
    )
    assert dated.text == "kites fly"
    assert dated.drop is not None
    assert dated.drop[:2] == ("too_short_after", 2)


def test_unknown_names_drop_unless_they_tell_where_or_by_whom() -> None:
    subject = output(
        [("Zyx", "PROPN", "nsubj", 1), ("waves", "VERB", "root", 1), ("a", "DET", "det", 3), ("hat", "NOUN", "obj", 1)]
    )
    assert subject.drop is not None
    assert subject.drop == ("unknown_name", 1, "Zyx")
    by = output(
        [
            ("a", "DET", "det", 1),
            ("hat", "NOUN", "root", 1),
            ("waves", "VERB", "acl", 1),
            ("by", "ADP", "case", 4),
            ("Zyx", "PROPN", "obl", 2),
        ]
    )
    assert by.text == "a hat waves"
    title = output(
        [
            ("Kite", "PROPN", "root", 0),
            ("above", "ADP", "case", 3),
            ("the", "DET", "det", 3),
            ("sea", "NOUN", "nmod", 0),
        ]
    )
    assert (title.text, title.drop) == ("kite above the sea", None)


def test_plurals() -> None:
    assert [plural_of(noun) for noun in ("actor", "box", "city", "day", "person")] == [
        "actors",
        "boxes",
        "cities",
        "days",
        "people",
    ]


def test_the_method_runs_on_the_real_parser(tmp_path: Path) -> None:
    write_wordnet(tmp_path)
    settings = load_settings(tmp_path, "embedded")
    profile = settings.profile.with_roles(wordnet=f"path:{tmp_path}")
    method = get_method("conceptual_captions_transform")
    roles = {role: load_engine(role, profile) for role in method.roles}
    found = method.function(caption=["A crowd in the city of Rome", "a dog runs near a red kite in Rome"], **roles)
    assert found.value[1] == 1.0
    assert found.details["text"][1] == "a dog runs near a red kite"
    assert found.details["concepts"][1] == ["dog", "kite"]
    own = method.function(caption=["Zyx Zyxel waves at a dog"], entities={"Zyx Zyxel": "actor"}, **roles)
    assert own.details["text"] == ["actor waves at a dog"]


CC = "conceptual_captions"


def stage_tables(values: dict[str, list[float]], concepts: list[list[str]]) -> dict[str, pl.DataFrame]:
    tables = {f"signals.{CC}{suffix}": signal(values[suffix]) for suffix in ("", "_image", "_overlap", "_transform")}
    name = f"signals.{CC}_transform"
    tables[name] = tables[name].with_columns(
        pl.Series("text", ["t"] * len(concepts)), pl.Series("concepts", concepts, dtype=pl.List(pl.String))
    )
    return {"raw.samples": samples(["kept"] * len(concepts), [None] * len(concepts)), **tables}


def test_recipe_equals_a_slow_twin() -> None:
    rng = np.random.default_rng(0)
    n = 900
    values = {
        suffix: (rng.random(n) < 0.9).astype(float).tolist() for suffix in ("", "_image", "_overlap", "_transform")
    }
    concepts = [
        sorted(set(rng.choice(["dog", "sea", "kite", "baguette"], p=[0.5, 0.25, 0.22, 0.03], size=2))) for _ in range(n)
    ]
    passing = [i for i in range(n) if all(column[i] for column in values.values())]
    counts = Counter(concept for i in passing for concept in concepts[i])
    assert counts["baguette"] <= 100 < counts["kite"], counts
    expected = [float(i in set(passing) and all(counts[c] > 100 for c in concepts[i])) for i in range(n)]
    with connection_of(stage_tables(values, concepts)) as connection:
        frame = run_model(load_models()[f"fused.{CC}"], connection).sort("source_row")
    assert frame["quality"].to_list() == expected
    first = {"": "text", "_image": "image", "_overlap": "overlap", "_transform": "transform"}
    for i, stage in enumerate(frame["stage"]):
        failed = next((first[s] for s in ("_image", "", "_overlap", "_transform") if not values[s][i]), None)
        assert stage == (failed or (None if expected[i] else "rare_concept"))


def test_exactly_100_mentions_are_too_few() -> None:
    for n, quality in ((100, 0.0), (101, 1.0)):
        tables = stage_tables({suffix: [1.0] * n for suffix in ("", "_image", "_overlap", "_transform")}, [["dog"]] * n)
        with connection_of(tables) as connection:
            model = load_models()[f"fused.{CC}"]
            frame = run_model(model, connection)
            assert run_model(model, connection, {"rare_mentions": n})["quality"].max() == 0
            assert run_model(model, connection, {"rare_mentions": n - 1})["quality"].max() == 1
        assert set(frame["quality"]) == {quality}


def scene_tar(path: Path, size: int) -> None:
    members = {}
    for number, sample in enumerate(plant_pool(size, 11)):
        sizes = {"original_width": sample.scene.width_px, "original_height": sample.scene.height_px}
        members[f"{number:09d}.png"] = encoded(render(sample), "PNG")
        members[f"{number:09d}.txt"] = sample.caption.encode()
        members[f"{number:09d}.json"] = json.dumps(sizes).encode()
    tar_of(path, members)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    """Forty scenes as a webdataset, with every text method of this branch that needs no hub."""
    home = tmp_path_factory.mktemp("text_methods")
    (home / "tars").mkdir()
    scene_tar(home / "tars" / "00000.tar", 40)
    write_wordnet(home / "wordnet")
    (home / "task.txt").write_text("a red kite above the sea\na blue car on the street\n")
    settings = load_settings(home, "embedded")
    profile = settings.profile.with_roles(wordnet=f"path:{home / 'wordnet'}")
    profile = replace(profile, methods={**profile.methods, f"{CC}_image": {"min_side_px": 30}})
    settings = replace(settings, profile=profile)
    names = [CC, f"{CC}_image", f"{CC}_overlap", f"{CC}_transform", "object_word_quality", "relatedness"]
    options = {
        "methods": names,
        "related_to": str(home / "task.txt"),
        "policies": ["conceptual_captions", "relatedness"],
    }
    add_pool(settings, "texts", home / "tars", options=options)
    return PoolContext.open(settings, "texts")


def test_funnel_counts_every_candidate_once(pool: PoolContext) -> None:
    run_with_upstream(pool, "fused/conceptual_captions")
    with open_pool(pool.store) as connection:  # one frame, of a pool that is small
        frame = run_model(load_models()["fused.conceptual_captions"], connection)
    manifest = pool.store.manifest("fused/conceptual_captions")
    assert manifest is not None
    assert manifest.content_sha256 == frame_sha256(frame)
    assert not pool.store.unfinished_path("fused/conceptual_captions").exists()
    counted = funnel(pool)
    left = pool.store.read("raw/samples", "texts-000000").filter(pl.col("status") == "kept").height
    for stage in ("image", "text", "overlap", "transform", "concept_count"):
        rows = counted.filter(pl.col("stage") == stage)
        assert rows["candidates"].sum() == left, stage
        left = rows.filter(pl.col("rule") == "passed")["candidates"].item()
    assert counted.filter((pl.col("stage") == "image") & (pl.col("rule") != "passed"))["rule"].to_list()
    text_rules = counted.filter(pl.col("stage") == "text")["rule"].to_list()
    assert {"first_word_lower_case", "no_determiner"} & set(text_rules), text_rules


def test_data_sets_have_means_and_medians(pool: PoolContext) -> None:
    for policy in ("conceptual_captions", "relatedness"):
        run_with_upstream(pool, f"filtered/{policy}")
    run_with_upstream(pool, "signals/object_word_quality")
    table = data_sets(pool)
    assert set(table["data_set"]) == {"pool", "conceptual_captions", "relatedness"}
    whole, subset = (
        table.filter((pl.col("method") == "relatedness") & (pl.col("data_set") == name)).row(0, named=True)
        for name in ("pool", "relatedness")
    )
    values = pool.store.read("signals/relatedness", "texts-000000")["value"].drop_nulls()
    assert whole["mean"] == pytest.approx(values.mean())
    assert whole["median"] == pytest.approx(values.median())
    assert subset["mean"] > whole["mean"]
    assert subset["samples"] == pytest.approx(len(values) / 4, abs=1)
    weights = pool.store.read("standardised/word_weights")
    assert {"word", "idf", "target"} <= set(weights.columns)


def test_a_pool_that_relates_to_nothing_says_so(pool: PoolContext) -> None:
    from curation_assets.flow.graph import tables_of

    lost = replace(pool, pool=replace(pool.pool, options={"methods": ["relatedness"]}))
    with pytest.raises(ValueError, match="related_to"):
        tables_of(lost)

"""The baselines of ICC (CLIP-SP, aveCLIP, a lexicon) and methods that run only where they are named."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.core.settings import Settings, load_profile, load_settings
from curation_assets.engines import load_engine
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date, materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.methods import all_methods, get_method
from curation_assets.methods.clip_stroop import PROMPTS
from curation_assets.numeric.identity import seed_of
from curation_assets.numeric.lemmas import lemma_in
from curation_assets.scoring.parameters import with_parameters
from curation_assets.sources.declaration import add_pool
from tests.support.command import curate
from tests.support.paths import shared

OPTIONAL = {"clip_stroop", "ave_clip", "concreteness_lexicon"}


# --- CLIP-SP


class Angles:
    """A text is a unit vector at an angle that grows with its number of letters."""

    def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
        angles = np.array([len(text.replace(" ", "")) for text in texts]) * 0.05
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_stroop_is_the_mean_over_prompts_of_the_cosine_to_the_emptied_prompt() -> None:
    captions = ["kite", "justice for all"]
    found = get_method("clip_stroop").function(caption=captions, image_text_encoder=Angles())
    # inserting k letters turns every prompt by k · .05
    np.testing.assert_allclose(found.value, [-np.cos(4 * 0.05), -np.cos(13 * 0.05)], atol=1e-12)
    assert found.value[1] > found.value[0]


def test_stroop_prompts_are_checked_and_may_be_replaced() -> None:
    assert all(prompt.count("[*]") == 1 for prompt in PROMPTS)
    method = with_parameters(get_method("clip_stroop"), prompts=["no slot"])
    with pytest.raises(ValueError, match=r"exactly one slot \[\*\], got \['no slot'\]"):
        method.function(caption=["a"], image_text_encoder=Angles())
    seen: list[str] = []

    class Spy(Angles):
        def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
            seen.extend(texts)
            return super().embed_texts(texts)

    with_parameters(get_method("clip_stroop"), prompts=["I see [*] now"]).function(
        caption=["it"], image_text_encoder=Spy()
    )
    assert seen == ["I see  now", "I see it now"], "the slot goes, its blanks stay"


# --- aveCLIP


def test_ave_clip_draws_each_caption_with_seeds_of_its_own() -> None:
    drawn: list[tuple[str, int]] = []

    class Painter:
        def generate_images(self, captions: Sequence[str], seeds: Sequence[int]) -> list[Image.Image]:
            drawn.extend(zip(captions, seeds, strict=True))
            return [Image.new("L", (1, 1), seed % 256) for seed in seeds]

    class Encoder:
        def embed_images(self, images: Sequence[Image.Image]) -> np.ndarray:
            angles = np.array([float(np.asarray(image)[0, 0]) for image in images]) / 256
            return np.stack([np.cos(angles), np.sin(angles)], axis=1)

        def embed_texts(self, texts: Sequence[str]) -> np.ndarray:
            return np.tile([1.0, 0.0], (len(texts), 1))

    columns = {"caption": ["a", "a"], "sample_id": ["0" * 32, "2" * 32]}
    method = with_parameters(get_method("ave_clip"), images=3)
    values = method.function(**columns, text_to_image=Painter(), image_text_encoder=Encoder())
    assert len(set(drawn)) == 6
    for i, seeds in enumerate((drawn[:3], drawn[3:])):
        cosines = [np.cos((seed % 256) / 256) for _, seed in seeds]
        np.testing.assert_allclose(values.details["cosines"][i], cosines, atol=1e-12)
        assert values.value[i] == pytest.approx(np.mean(cosines))
    with pytest.raises(ValueError, match="images must be at least 1, got 0"):
        with_parameters(get_method("ave_clip"), images=0).function(
            **columns, text_to_image=Painter(), image_text_encoder=Encoder()
        )


def test_ave_clip_on_the_shipped_models_is_the_mean_cosine_of_its_drawings() -> None:
    profile = load_profile("embedded")
    roles: dict[str, Any] = {role: load_engine(role, profile) for role in ("text_to_image", "image_text_encoder")}
    caption, sample_id = "a red kite on the beach", "3" * 32
    method = with_parameters(get_method("ave_clip"), images=2)
    value = method.function(caption=[caption], sample_id=[sample_id], **roles).value[0]
    seeds = [seed_of(sample_id, f"ave_clip-{k}") for k in range(2)]
    drawings = [roles["text_to_image"].generate_images([caption], [seed])[0] for seed in seeds]
    text = roles["image_text_encoder"].embed_texts([caption])[0]
    cosines = [float(roles["image_text_encoder"].embed_images([drawing])[0] @ text) for drawing in drawings]
    assert value == pytest.approx(np.mean(cosines), abs=2e-3)  # two drawings in one batch: one grey level of rounding
    assert cosines[0] != pytest.approx(cosines[1], abs=1e-4), "every drawing has its own seed"


# --- the lexicon


@pytest.mark.parametrize(
    ("word", "lemma"),
    [
        ("kites", "kite"), ("boxes", "box"), ("running", "run"), ("riding", "ride"), ("singing", "sing"),
        ("falling", "fall"), ("tried", "try"), ("stopped", "stop"), ("hoped", "hope"), ("dog's", "dog"),
        ("opened", "open"), ("biggest", "big"), ("lying", "lie"), ("justice", None), ("is", None),
    ],
)  # fmt: skip
def test_inflections_find_their_word(word: str, lemma: str | None) -> None:
    known = {"kite", "kit", "box", "run", "ride", "rid", "sing", "singe", "fall", "try", "stop", "hope", "hop", "dog",
             "open", "big", "lie", "i"}  # fmt: skip
    assert lemma_in(word, known) == lemma


def test_without_a_lexicon_every_row_says_so_and_with_one_gaps_have_reasons() -> None:
    method = get_method("concreteness_lexicon")
    assert method.function(caption=["a dog", ""]).reason == ["no_lexicon"] * 2
    values = method.function(caption=["Dogs, dogs!", "xyz", "—"], lexicon={"dog": 4.85})
    assert values.value[0] == pytest.approx(4.85)
    assert values.reason == [None, "no_rated_word", "no_rated_word"]
    assert values.details["rated_share"] == [1.0, 0.0, 0.0]


def test_the_users_list_ranks_things_above_ideas(tmp_path: Path) -> None:
    path = shared("words/concreteness_ratings_half.tsv")
    method = with_parameters(get_method("concreteness_lexicon"), path=str(path))
    captions = ["a white truck near the river", "the importance of an honest philosophy"]
    values = method.function(caption=captions)
    assert values.value[0] > values.value[1] + 0.5


# --- methods that run only where they are named


def captions_pool(home: Path, **declared: Any) -> Settings:
    settings = load_settings(home, "embedded")
    table = home / "captions.csv"
    home.mkdir(parents=True, exist_ok=True)
    pl.DataFrame({"caption": ["two dogs", "truth", ""]}).write_csv(table)
    add_pool(settings, "mine", table, **declared)
    return settings


def signal_names(ctx: PoolContext) -> set[str]:
    return {name.removeprefix("signals/") for name in tables_of(ctx) if name.startswith("signals/")}


def test_optional_methods_run_only_where_they_are_named(tmp_path: Path) -> None:
    assert {name for name, method in all_methods().items() if not method.default} >= OPTIONAL
    plain = PoolContext.open(captions_pool(tmp_path / "a"), "mine")
    assert not signal_names(plain) & OPTIONAL
    assert signal_names(plain) == {"icc"}, "the others read images"
    by_pool = PoolContext.open(captions_pool(tmp_path / "b", options={"methods": ["clip_stroop"]}), "mine")
    assert signal_names(by_pool) - signal_names(plain) == {"clip_stroop"}
    wrong = PoolContext.open(captions_pool(tmp_path / "c", options={"methods": ["clip_stoop"]}), "mine")
    with pytest.raises(ValueError, match="did you mean 'clip_stroop'"):
        tables_of(wrong)


def test_a_lexicon_of_the_profile_makes_a_table_that_follows_the_file(tmp_path: Path) -> None:
    lexicon = tmp_path / "words.csv"
    lexicon.write_text("word,rating\ndog,5\ntwo,3\n")
    profile = tmp_path / "mine.yaml"
    profile.write_text(
        "name: mine\nroles: {student: 'embedded:minilm'}\ndevice: cpu\n"
        f"methods: {{concreteness_lexicon: {{path: '{lexicon}'}}}}\n"
    )
    captions_pool(tmp_path / "home")
    ctx = PoolContext.open(load_settings(tmp_path / "home", str(profile)), "mine")
    tables = tables_of(ctx)
    table = tables["signals/concreteness_lexicon"]
    shard = ctx.shards()[0]
    for name in ("raw/registered_shards", "raw/downloads", "raw/samples"):
        materialise_table(ctx, tables[name], shard, tables=tables)
    materialise_table(ctx, table, shard, tables=tables)
    found = ctx.store.read(table.name, shard)
    assert found["value"].to_list()[0] == pytest.approx(4.0)
    assert found["reason"].to_list()[1] == "no_rated_word"
    assert is_up_to_date(ctx, table, shard, tables=tables)
    lexicon.write_text("word,rating\ndog,4\ntwo,2\ntruth,1.5\n")
    assert not is_up_to_date(ctx, table, shard, tables=tables), "another content of the same file is another input"
    fresh = PoolContext.open(load_settings(tmp_path / "home", str(profile)), "mine")
    tables = tables_of(fresh)
    materialise_table(fresh, tables[table.name], shard, tables=tables)
    assert fresh.store.read(table.name, shard)["value"].to_list()[:2] == [3.0, 1.5]


def test_score_runs_an_optional_method_and_methods_says_which_are(tmp_path: Path) -> None:
    (tmp_path / "captions.txt").write_text("a red kite\n\n")
    arguments = ["score", "clip_stroop", str(tmp_path / "captions.txt"), "--out", str(tmp_path / "out.tsv")]
    result = curate(*arguments)
    assert result.exit_code == 0, result.output
    assert "1 of 2 rows have a value of clip_stroop" in result.output
    shown = curate("methods").output
    line = next(line for line in shown.splitlines() if line.startswith("clip_stroop"))
    assert "if named" in line


def test_icc_is_raw_unless_clipping_is_asked_for() -> None:
    method = get_method("icc")
    captions, roles = method.example.columns["caption"], method.example.roles
    assert method.function(caption=captions, **roles).value.max() == pytest.approx(1.04)
    clipped = with_parameters(method, clip01=True).function(caption=captions, **roles)
    assert clipped.value.tolist() == [1.0, 0.26, 0.0]

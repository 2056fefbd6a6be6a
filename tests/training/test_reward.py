"""Reward models: ranking files, pairs, the loss, training on frozen features, BLIP behind the roles, the commands."""

import io
import json
import math
import threading
from collections.abc import Iterator
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image
from rich.console import Console
from scipy.stats import kendalltau
from torch import nn
from typer.testing import CliRunner

from curation_assets.annotation.ranking import RankingLog, parse_order
from curation_assets.annotation.session import RankingSession
from curation_assets.annotation.terminal import answer_in_terminal
from curation_assets.annotation.web import LabellingServer, picture_of
from curation_assets.cli import app
from curation_assets.core.settings import Profile, load_profile
from curation_assets.engines import load_engine
from curation_assets.engines.addresses import WEIGHTS_ROOT
from curation_assets.engines.reward_model import RewardEngine, reward_mlp
from curation_assets.methods import get_method
from curation_assets.numeric.rankings import (
    RankAgreement,
    bradley_terry_loss,
    concordance,
    mean_ranks,
    preference_accuracy,
    rank_agreement,
    ranked_pairs,
)
from curation_assets.stores.rankings import RankedImage, read_rankings, split_by_image
from curation_assets.training.reward import (
    RankedFeatures,
    RewardRecipe,
    preference_of,
    ranked_features,
    train_reward_model,
)
from curation_assets.world.scene import draw_spec, render_scene
from lab.rankings import Judged, draw_candidates, rank_by_criteria
from tests.support.command import curate
from tests.support.http_calls import call
from tests.support.paths import SHARED_DATA
from tests.support.tars import encoded, tar_of

PROFILE = load_profile("embedded")


@pytest.mark.parametrize(("margin", "loss"), [(0, 0.693147), (1, 0.313262), (-1, 1.313262), (3, 0.048587)])
def test_bradley_terry_loss_of_one_pair(margin: float, loss: float) -> None:
    """formulas.md §9.2."""
    assert bradley_terry_loss(np.array([margin])) == pytest.approx(loss, abs=1e-6)
    assert bradley_terry_loss(np.array([margin, margin])) == pytest.approx(loss, abs=1e-6)


def test_loss_is_finite_for_huge_margins_and_needs_a_pair() -> None:
    assert bradley_terry_loss(np.array([-2000.0])) == 2000
    with pytest.raises(ValueError, match="at least one pair"):
        bradley_terry_loss(np.array([]))


@pytest.mark.parametrize(("k", "pairs"), [(8, 28), (9, 36), (10, 45)])
def test_pairs_of_k_captions(k: int, pairs: int) -> None:
    assert len(ranked_pairs(range(1, k + 1))) == pairs
    assert ranked_pairs([1, 2, 2]) == [(0, 1), (0, 2)]  # a tie gives none


def test_preference_accuracy_by_hand() -> None:
    # pairs: a>b right, a>c a tied score (half), b>c wrong; best is a, which shares the top score with c
    found = preference_accuracy([np.array([2.0, 1.0, 2.0])], [[1, 2, 3]])
    assert found.pair_accuracy == pytest.approx((1 + 0.5 + 0) / 3)
    assert (found.top1, found.chance_top1, found.pairs, found.images) == (0.5, pytest.approx(1 / 3), 3, 1)
    tied = preference_accuracy([np.array([1.0, 2.0, 0.0]), np.array([1.0, 2.0])], [[1, 1, 2], [1, 1]])
    assert (tied.top1, tied.chance_top1, tied.images) == (1.0, pytest.approx(2 / 3), 1)
    with pytest.raises(ValueError, match="no image has two captions"):
        preference_accuracy([np.array([1.0, 2.0])], [[1, 1]])


def test_ranking_file_of_several_raters(tmp_path: Path) -> None:
    rows = [("i", "a", 1, "x"), ("i", "b", 2, "x"), ("i", "a", 3, "y"), ("i", "b", 2, "y"), ("lone", "c", 1, "x")]
    path = tmp_path / "ranks.tsv"
    pl.DataFrame(rows, schema=["image", "caption", "rank", "rater"], orient="row").write_csv(path, separator="\t")
    assert read_rankings(path) == [RankedImage("i", ("a", "b"), (2.0, 2.0))]
    assert mean_ranks([[1, 2, 3], [1, 3, 2]]) == [1, 2.5, 2.5]
    rated = pl.DataFrame({"image": ["i"] * 3, "caption": ["a", "b", "c"], "rating": [2.5, 4, 2.5]})
    rated.write_parquet(tmp_path / "rated.parquet")
    assert read_rankings(tmp_path / "rated.parquet")[0].ranks == (2.0, 1.0, 2.0)
    pl.DataFrame(rows[:3], schema=["image", "caption", "rank", "rater"], orient="row").write_csv(path, separator="\t")
    with pytest.raises(ValueError, match="rater 'y' ranked 1 of 2 captions"):
        read_rankings(path)
    rated.with_columns(pl.Series("rating", [1.0, math.nan, 2])).write_parquet(tmp_path / "rated.parquet")
    with pytest.raises(ValueError, match="must be a number"):
        read_rankings(tmp_path / "rated.parquet")
    rated.drop("rating").write_parquet(tmp_path / "rated.parquet")
    with pytest.raises(ValueError, match="expected the columns image, caption and rank"):
        read_rankings(tmp_path / "rated.parquet")


def test_split_keeps_images_whole() -> None:
    ranked = [RankedImage(f"{i}.png", ("a", "b"), (1, 2)) for i in range(200)]
    training, held_out = split_by_image(ranked, 0.25, seed=1)
    assert not {one.image for one in training} & {one.image for one in held_out}
    assert len(training) + len(held_out) == 200
    assert 30 <= len(held_out) <= 70
    assert split_by_image(ranked[::-1], 0.25, seed=1)[1] == held_out[::-1]  # the file's order is irrelevant
    with pytest.raises(ValueError, match="too few"):
        split_by_image(ranked[:1], 0.5)


def test_criteria_decide_in_their_order() -> None:
    said = [
        Judged("wrong but vivid", -1, 1, 1, 1),
        Judged("all", 0, 1, 1, 1),
        Judged("bare", 0, 1, 0, 1),
        Judged("part", 0, 0.5, 1, 1),
    ]
    assert rank_by_criteria(said) == [4, 1, 2, 3]
    assert rank_by_criteria([said[1], said[1]]) == [1, 1]
    rng = np.random.default_rng(0)
    for _ in range(30):
        judged = draw_candidates(draw_spec(rng), rng)
        assert judged[0].key == max(one.key for one in judged)  # everything that is there
        assert judged[-1].key == min(one.key for one in judged)  # nothing that is there
        assert judged[0].key[:2] == (0, 1.0)
        assert judged[5].accuracy == judged[6].accuracy + 1 == -1 or judged[6].accuracy < judged[5].accuracy < 0


def scene_rankings(folder: Path, count: int, seed: int = 3) -> Path:
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        scene = draw_spec(rng)
        render_scene(scene).save(folder / f"{number}.png")
        judged = draw_candidates(scene, rng)
        rows += [
            (f"{number}.png", one.caption, rank) for one, rank in zip(judged, rank_by_criteria(judged), strict=True)
        ]
    table = pl.DataFrame(rows, schema=["image", "caption", "rank"], orient="row")
    path = folder / "rankings.parquet"
    table.unique(["image", "caption"], keep="first", maintain_order=True).write_parquet(path)
    return path


@pytest.mark.slow
@pytest.mark.skipif(
    not (WEIGHTS_ROOT / "reward_model").is_dir(),
    reason="no reward model ships; python -m lab makes it",
)
def test_shipped_model_prefers_what_the_criteria_prefer(tmp_path: Path) -> None:
    path = scene_rankings(tmp_path, 40, seed=99)
    ranked = read_rankings(path)
    model: Any = load_engine("reward_model", PROFILE.with_roles(reward_model="embedded:reward_model"))
    clip: Any = load_engine("image_text_encoder", PROFILE)
    rewarded, cosine = preference_of(path, ranked, model), preference_of(path, ranked, clip)
    assert rewarded.pair_accuracy > 0.85
    assert rewarded.pair_accuracy > cosine.pair_accuracy
    assert rewarded.top1 > 2 * rewarded.chance_top1


@pytest.mark.slow
def test_training_caches_features_learns_and_scores_alike(tmp_path: Path) -> None:
    path = scene_rankings(tmp_path, 24)
    ranked = read_rankings(path)
    encoder: Any = load_engine("pair_encoder", PROFILE)
    cache = tmp_path / "cache" / "features.safetensors"
    features = ranked_features(path, ranked, encoder, cache)
    stamp = cache.stat().st_mtime_ns
    again = ranked_features(path, ranked, encoder, cache)
    assert cache.stat().st_mtime_ns == stamp
    np.testing.assert_array_equal(features.features, again.features)
    recipe = RewardRecipe(updates=60, learning_rate=1e-3, activation="relu")
    card = train_reward_model(
        features, tmp_path / "model", recipe, pair_encoder="embedded:clip", facts={"data": "test"}
    )
    assert card["training_loss"] < 0.6 < math.log(2)
    assert card["pairs"] == len(features.pairs()) > 300
    model: Any = load_engine("reward_model", PROFILE.with_roles(reward_model=f"path:{tmp_path / 'model'}"))
    images = [Image.open(tmp_path / "0.png").convert("RGB")] * 3
    texts = list(ranked[0].captions[:3])
    together = model.reward_pairs(images, texts)
    alone = [float(model.reward_pairs(images[:1], [text])[0]) for text in texts]
    np.testing.assert_allclose(together, alone, atol=1e-4)
    values = get_method("reward").function(image=images, caption=texts, reward_model=model)
    assert values.value.tolist() == pytest.approx(alone, abs=1e-4)


def test_architecture_is_the_supplements() -> None:
    layers = [type(layer).__name__ for layer in reward_mlp(768)]
    assert layers == ["Linear", "Dropout", "Linear", "Dropout", "Linear", "Dropout", "Linear", "Linear"]
    shapes = [(layer.in_features, layer.out_features) for layer in reward_mlp(768) if hasattr(layer, "in_features")]
    assert shapes == [(768, 1024), (1024, 128), (128, 64), (64, 16), (16, 1)]
    assert [layer.p for layer in reward_mlp(768) if hasattr(layer, "p")] == [0.2, 0.2, 0.1]
    with pytest.raises(ValueError, match="none, relu"):
        reward_mlp(768, "gelu")


@pytest.fixture(scope="module")
def tiny_blip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """BlipForImageTextRetrieval as transformers saves it, with tiny towers and a ten-word tokenizer."""
    import torch
    from transformers import BertTokenizer, BlipConfig, BlipForImageTextRetrieval, BlipImageProcessor

    folder = tmp_path_factory.mktemp("blip")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "kite", "dog", "sea"]
    (folder / "vocab.txt").write_text("\n".join(words))
    torch.manual_seed(0)
    config = BlipConfig(
        text_config={
            "vocab_size": 10, "hidden_size": 16, "encoder_hidden_size": 16, "intermediate_size": 16,
            "projection_dim": 8,
            "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 70, "bos_token_id": 2,
            "eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0,
        },
        vision_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 32, "patch_size": 16,
        },
        image_text_hidden_size=8,
    )  # fmt: skip
    BlipForImageTextRetrieval(config).save_pretrained(folder)
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    BlipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def test_blip_fills_both_roles_as_the_library_computes_it(tiny_blip: Path) -> None:
    import torch
    from transformers import AutoImageProcessor, AutoTokenizer, BlipForImageTextRetrieval

    address = f"path:{tiny_blip}"
    profile = Profile("blip", {"image_text_encoder": address, "pair_encoder": address}, device="cpu")
    images = [Image.new("RGB", (40, 30), colour) for colour in ("red", "blue")]
    texts = ["a red kite", "sea"]
    itc: Any = load_engine("image_text_encoder", profile)
    cosines = itc.embed_images(images) @ itc.embed_texts(texts).T
    pairs: Any = load_engine("pair_encoder", profile)
    features = pairs.embed_pairs(images, texts)
    model = BlipForImageTextRetrieval.from_pretrained(tiny_blip).eval()
    pixels = AutoImageProcessor.from_pretrained(tiny_blip)(images, return_tensors="pt").pixel_values
    tokens = AutoTokenizer.from_pretrained(tiny_blip)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        asked = {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask, "pixel_values": pixels}
        expected = model(**asked, use_itm_head=False).itm_score.numpy()
        states = model(**asked, use_itm_head=True).question_embeds[:, 0].numpy()
    np.testing.assert_allclose(cosines, expected, atol=1e-5)
    np.testing.assert_allclose(features, states, atol=1e-5)
    assert features.shape == (2, 16)
    scored = get_method("clip_score").function(image=images, caption=texts, image_text_encoder=itc)
    np.testing.assert_allclose(scored.value, np.diag(expected), atol=1e-5)


def test_orders_are_typed_with_letters() -> None:
    assert parse_order("b a=d c", 4) == [2, 1, 4, 2]
    assert parse_order("B  A", 2) == [2, 1]
    for wrong in ("a", "a b c", "a a", ""):
        with pytest.raises(ValueError, match="expected each of a, b once"):
            parse_order(wrong, 2)


def test_ranking_by_hand_goes_on_where_it_stopped(tmp_path: Path) -> None:
    candidates = [("0.png", ["good", "bad"]), ("1.png", ["x", "y", "z"]), ("2.png", ["p", "q"])]
    path, out = tmp_path / "ranks.tsv", io.StringIO()
    for done, lines in enumerate((["nonsense", "a b", "s", "q"], ["c a=b", "q"]), start=1):
        typed = iter(lines)
        session = RankingSession(candidates, "me", RankingLog(path), in_order=True)
        answer_in_terminal(session, Console(file=out), typed.__next__)
        assert session.done_count == done
    assert "accuracy" in out.getvalue()
    assert "expected each of a, b once, got 'nonsense'" in out.getvalue()
    found = {one.image: one.ranks for one in read_rankings(path)}
    assert found == {"0.png": (1.0, 2.0), "1.png": (2.0, 2.0, 1.0)}
    (tmp_path / "other.tsv").write_text("a\tb\n")
    with pytest.raises(ValueError, match="no ranking file"):
        RankingLog(tmp_path / "other.tsv")


RANKED = [("0.png", ["good", "bad"]), ("1.png", ["x", "y", "z"])]


@pytest.fixture
def ranking_page(tmp_path: Path) -> Iterator[LabellingServer]:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "0.png")
    (tmp_path / "1.png").write_bytes(b"broken")
    session = partial(RankingSession, RANKED, log=RankingLog(tmp_path / "ranks.tsv"))
    picture = partial(picture_of, tmp_path / "c.tsv", {image for image, _ in RANKED})
    with LabellingServer("ranking", session, picture=picture) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()


def test_ranking_on_the_page_goes_on_where_it_stopped(ranking_page: LabellingServer, tmp_path: Path) -> None:
    assert "http" not in call(ranking_page, "GET", "/")[1], "nothing is loaded from elsewhere"
    seen = {}
    for _ in range(2):
        state = call(ranking_page, "GET", "/state?rater=ann")[1]
        seen[state["image"]] = state["captions"]
        output = {"rater": "ann", "image": state["image"], "order": " ".join("abc"[: len(state["captions"])])}
        refused = call(ranking_page, "POST", "/rank", {**output, "order": "a a"})
        assert refused[0] == 400
        after = call(ranking_page, "POST", "/rank", output)[1]
        assert call(ranking_page, "POST", "/rank", output)[1] == after, "a second click ranks no other image"
    assert after == {"image": None, "captions": None, "done": 2, "total": 2}
    assert set(seen) == {"0.png", "1.png"}
    ranked = {
        one.image: dict(zip(one.captions, one.ranks, strict=True)) for one in read_rankings(tmp_path / "ranks.tsv")
    }
    assert ranked == {name: dict(zip(texts, (1.0, 2.0, 3.0), strict=False)) for name, texts in seen.items()}
    last = call(ranking_page, "POST", "/back", {"rater": "ann"})[1]
    order = " ".join(reversed("abc"[: len(last["captions"])]))
    call(ranking_page, "POST", "/rank", {"rater": "ann", "image": last["image"], "order": order})
    again = {one.image: one for one in read_rankings(tmp_path / "ranks.tsv")}[last["image"]]
    assert dict(zip(again.captions, again.ranks, strict=True))[last["captions"][-1]] == 1, "the later ranks count"
    fresh = RankingSession(RANKED, "ann", RankingLog(tmp_path / "ranks.tsv"))
    assert (fresh.current, fresh.done_count) == (None, 2)
    assert call(ranking_page, "GET", "/state?rater=bob")[1]["done"] == 0


def test_the_page_shows_the_candidates_images_only(ranking_page: LabellingServer, tmp_path: Path) -> None:
    connection = HTTPConnection("127.0.0.1", ranking_page.server_port)
    connection.request("GET", "/picture?name=0.png")
    answer = connection.getresponse()
    assert Image.open(io.BytesIO(answer.read())).size == (40, 30)
    connection.close()
    Image.new("RGB", (4, 4)).save(tmp_path / "other.png")
    for name in ("other.png", "../0.png", "1.png", ""):
        assert call(ranking_page, "GET", f"/picture?name={name}")[0] == 404
    assert call(ranking_page, "GET", "/state?rater=")[0] == 400
    assert call(ranking_page, "POST", "/elsewhere", {"rater": "ann"})[0] == 400


def test_a_torn_ranking_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "ranks.tsv"
    RankingLog(path).append("0.png", ["good", "bad"], [1, 2], "me")
    path.write_text(path.read_text() + "1.png\tx\t1\tme\tnow\n1.png\ty\t2")  # killed inside an image's second line
    candidates = [("0.png", ["good", "bad"]), ("1.png", ["x", "y"])]
    session = RankingSession(candidates, "me", RankingLog(path))
    assert session.current is not None
    assert (session.current[0], session.done_count) == ("1.png", 1)
    session.answer({"order": "b=a"})
    assert {one.image: one.ranks for one in read_rankings(path)} == {"0.png": (1, 2), "1.png": (1, 1)}


def test_agreement_of_raters_by_hand(tmp_path: Path) -> None:
    # pairs (ab, ac, bc): alike, alike, other way round; tau = 1/3; sums of ranks 2, 5, 5 around 4: S = 6, W = 12·6 / 96
    two = [np.array([1, 2, 3]), np.array([1, 3, 2])]
    assert rank_agreement([(two[0], two[1])]) == RankAgreement(pytest.approx(1 / 3), pytest.approx(2 / 3), 3, 1)
    assert concordance([two]) == pytest.approx(0.75)
    same = [np.array([1, 1, 3]), np.array([1, 1, 3]), np.array([2, 2, 7])]
    assert concordance([same]) == pytest.approx(1.0), "corrected for ties"
    assert rank_agreement([(same[0], np.ones(3))]) == RankAgreement(None, None, 0, 1)
    assert concordance([[np.array([1, 2])]]) is None
    rng = np.random.default_rng(0)
    assert concordance([[rng.permutation(6) for _ in range(200)]]) == pytest.approx(1 / 200, abs=0.01)
    a, b = (rng.integers(1, 5, 8) for _ in range(2))
    assert rank_agreement([(a, b)]).kendall == pytest.approx(kendalltau(a, b).statistic)
    log = RankingLog(tmp_path / "r.tsv")
    for rater, ranks in (("ann", [1, 2, 3]), ("bob", [1, 3, 2])):
        log.append("0.png", ["a", "b", "c"], ranks, rater)
    output = curate("agreement", "rankings", tmp_path / "r.tsv", "--json")
    assert json.loads(output.stdout)["kendall_w"] == pytest.approx(0.75)
    assert json.loads(output.stdout)["pairs"][0]["pairs"] == 3
    shown = curate("agreement", "rankings", tmp_path / "r.tsv")
    assert "Kendall's W: 0.750" in shown.output


def test_commands_from_candidates_to_evaluation(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    members = {}
    for number in range(4):
        picture = encoded(render_scene(draw_spec(rng)), "PNG")
        members |= {f"{number}.png": picture, f"{number}.txt": b"a reference"}
    tar_of(tmp_path / "00000.tar", members)
    run = CliRunner().invoke
    made = run(
        app, ["annotate", "candidates", str(tmp_path / "00000.tar"), "--out", str(tmp_path / "c.tsv"), "--count", "2"]
    )
    assert made.exit_code == 0, made.output
    candidates = pl.read_csv(tmp_path / "c.tsv", separator="\t")
    assert candidates["image"].n_unique() == 4
    assert set(candidates["source"]) == {"reference", "embedded:captioner"}
    ranked = run(app, ["annotate", "rank", str(tmp_path / "c.tsv"), "--rater", "me"], input="q\n")
    assert ranked.exit_code == 0, ranked.output
    # ranks by length stand in for a person's; longer captions first
    table = candidates.with_columns(pl.col("caption").str.len_chars().rank("dense", descending=True).alias("rank"))
    table.write_parquet(tmp_path / "ranks.parquet")
    trained = run(
        app,
        [
            "reward",
            "train",
            str(tmp_path / "ranks.parquet"),
            "--out",
            str(tmp_path / "m"),
            "--updates",
            "5",
            "--held-out",
            "0.5",
        ],
    )
    assert trained.exit_code == 0, trained.output
    assert json.loads((tmp_path / "m" / "card.json").read_text())["recipe"]["updates"] == 5
    evaluate = ["reward", "evaluate", str(tmp_path / "ranks.parquet"), "--model", f"path:{tmp_path / 'm'}", "--json"]
    unseen = run(app, evaluate)  # the images that training held out, as its card says
    assert unseen.exit_code == 0, unseen.output
    held_out = split_by_image(read_rankings(tmp_path / "ranks.parquet"), 0.5)[1]
    assert {one["images"] for one in json.loads(unseen.stdout).values()} == {len(held_out)}
    judged = run(app, [*evaluate, "--all"])
    assert judged.exit_code == 0, judged.output
    found = json.loads(judged.stdout)
    assert len(found) == 2
    assert all(0 <= one["pair_accuracy"] <= 1 for one in found.values())


def test_without_hidden_layers_a_reward_is_linear_and_older_models_keep_theirs(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = RankedFeatures(
        rng.normal(size=(40, 6)).astype(np.float32), np.arange(0, 41, 4), [(1.0, 2.0, 3.0, 4.0)] * 10
    )
    recipe = RewardRecipe(updates=20, learning_rate=1e-2, hidden=())
    train_reward_model(features, tmp_path, recipe, pair_encoder="embedded:clip", facts={})
    encoder: Any = load_engine("pair_encoder", PROFILE)
    model = RewardEngine(encoder.identity, encoder, tmp_path, 64, "cpu")
    assert [type(layer) for layer in model.mlp] == [nn.Linear]
    one, other = rng.normal(size=(2, 1, 6)).astype(np.float32)
    mean = model.reward_features((one + other) / 2)
    assert mean == pytest.approx((model.reward_features(one) + model.reward_features(other)) / 2, abs=1e-5)
    config = json.loads((WEIGHTS_ROOT / "reward_model" / "config.json").read_text())
    assert "hidden" not in config, "a model of an earlier version"
    shipped: Any = load_engine("reward_model", PROFILE)
    assert sum(isinstance(layer, nn.Linear) for layer in shipped.mlp) == 5


@pytest.mark.skipif(not (SHARED_DATA / "judgements").is_dir(), reason="needs ../shared/data/judgements")
@pytest.mark.slow
def test_the_model_of_photographs_orders_captions_as_people_do(tmp_path: Path) -> None:
    """.775 of the pairs of all 500 photographs; the model of scenes orders .459 alike, chance .5."""
    experts = pl.read_parquet(SHARED_DATA / "judgements" / "flickr8k_expert.parquet")
    rated = experts.select(
        (pl.lit(f"{SHARED_DATA / 'photos' / '000000.tar'}:") + pl.col("key") + ".jpg").alias("image"),
        "caption",
        pl.col("mean").alias("rating"),
    )
    rated = rated.filter(pl.col("image").is_in(rated["image"].unique().sort().gather_every(12).to_list()))
    path = tmp_path / "experts.parquet"
    rated.unique(["image", "caption"], keep="first", maintain_order=True).write_parquet(path)
    model: Any = load_engine("reward_model", PROFILE.with_roles(reward_model="embedded:reward_photos"))
    found = preference_of(path, read_rankings(path), model)
    assert found.images > 30
    assert found.pair_accuracy > 0.68
    assert found.top1 > found.chance_top1 + 0.15


@pytest.mark.skipif(not (SHARED_DATA / "judgements").is_dir(), reason="needs ../shared/data/judgements")
def test_expert_judgements_are_read_and_scored(tmp_path: Path) -> None:
    experts = pl.read_parquet(SHARED_DATA / "judgements" / "flickr8k_expert.parquet")
    tar = SHARED_DATA / "photos" / "000000.tar"
    rated = experts.select(
        (pl.lit(f"{tar}:") + pl.col("key") + ".jpg").alias("image"), "caption", pl.col("mean").alias("rating")
    )
    rated = rated.filter(pl.col("image").is_in(rated["image"].unique().sort().to_list()[:12]))
    rated.unique(["image", "caption"], keep="first", maintain_order=True).write_parquet(tmp_path / "experts.parquet")
    ranked = read_rankings(tmp_path / "experts.parquet")
    clip: Any = load_engine("image_text_encoder", PROFILE)
    found = preference_of(tmp_path / "experts.parquet", ranked, clip)
    assert found.images >= 8
    assert 0 <= found.pair_accuracy <= 1

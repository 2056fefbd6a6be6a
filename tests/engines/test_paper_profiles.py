"""Chains of the paper profiles and of `laptop`, their own settings on tiny checkpoints of the same layouts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from diffusers import EulerDiscreteScheduler
from transformers import RobertaForMaskedLM

from curation_assets.core.settings import Profile, load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import get_method
from curation_assets.scoring.derived import derive_column
from curation_assets.scoring.parameters import with_parameters
from curation_assets.scoring.samples import score_samples
from curation_assets.sources.all_options import with_profile_options
from curation_assets.training.students import train_student
from tests.engines.test_hub_teachers import save_stable_diffusion
from tests.support.tiny_models import (
    make_images,
    save_blip,
    save_blip2,
    save_bridge,
    save_clip,
    save_encoder,
    save_llama,
)

torch.set_num_threads(1)
CAPTIONS = ["a red kite over the sea", "two dogs", "the wet beach in winter"]


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per layout that the profiles name."""
    torch.manual_seed(5)
    root = tmp_path_factory.mktemp("zoo")
    save_blip(root / "blip")
    save_blip2(root / "blip2")
    save_encoder(root / "distilroberta", RobertaForMaskedLM, 140, num_hidden_layers=1)
    save_stable_diffusion(root / "turbo", EulerDiscreteScheduler(timestep_spacing="trailing"))
    save_llama(root / "llama", 128, newlines=2.5)
    save_clip(root / "clip")
    save_bridge(root / "bridge", 1)
    return root


def tiny(name: str, folders: Mapping[str, Path], **changes: Mapping[str, Any]) -> Profile:
    """A shipped profile with folders for some roles, and what the tiny models cannot do as the real ones."""
    profile = replace(load_profile(name), device="cpu").with_roles(**{r: f"path:{f}" for r, f in folders.items()})
    for role, settings in changes.items():
        profile = profile.with_generation(role, **settings)
    return profile


def score(name: str, profile: Profile, samples: pl.DataFrame) -> pl.DataFrame:
    method = with_parameters(get_method(name), **profile.methods.get(name, {}))
    return score_samples(method, samples, {role: load_engine(role, profile) for role in method.roles}, batch_size=4)


def samples_of(captions: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"sample_id": [f"{i:032x}" for i in range(len(captions))], "caption": captions})


@pytest.mark.parametrize("name", ["sieve_paper", "laptop"])
def test_sieve_with_eight_prompted_captions_of_clips_crop(zoo: Path, name: str) -> None:
    profile = tiny(name, {"captioner": zoo / "blip"}, captioner={"image_size": 48})
    profile = profile.with_roles(sentence_encoder="embedded:minilm")  # the hub's all-MiniLM-L6-v2
    count = with_profile_options({}, profile.options, name).caption_count if name == "sieve_paper" else 8
    captioner: Any = load_engine("captioner", profile)
    decode, lengths = captioner.loaded.model.decode, []

    def decode_and_measure(*arguments: Any, **options: Any) -> torch.Tensor:
        sequences = decode(*arguments, **options)
        lengths.append(sequences.shape[1])  # new tokens of the longest caption
        return sequences

    captioner.loaded.model.decode = decode_and_measure
    images = make_images(3)
    made = derive_column(
        "generated_captions", samples_of(CAPTIONS), captioner, count=count,
        load_image=lambda row: images[int(row["sample_id"], 16)],
    )  # fmt: skip
    written = made["generated_captions"].to_list()
    assert [len(captions) for captions in written] == [8, 8, 8]
    assert not any(caption.startswith("a picture of") for captions in written for caption in captions)
    captioner.loaded.model.decode = decode
    assert 1 <= max(lengths) <= 16, "20 tokens of which the prompt takes four"
    assert captioner.loaded.model.prompt_ids[0] == captioner.loaded.model.model.config.text_config.bos_token_id
    assert captioner.loaded.tokenizer.decode(captioner.loaded.model.prompt_ids[1:]) == "a picture of"
    scored = score("sieve", profile, samples_of(CAPTIONS).with_columns(made["generated_captions"]))
    assert scored["value"].null_count() == 0


def test_vba_of_icc_paper_keeps_the_best_of_five_beams_of_blip2(zoo: Path) -> None:
    folders = {
        "text_to_image": zoo / "turbo",
        "beam_captioner": zoo / "blip2",
        "text_similarity": zoo / "distilroberta",
    }
    profile = tiny(
        "icc_paper", folders, text_to_image={"steps": 2, "height": 32, "width": 32}, text_similarity={"layer": 1}
    )
    scored = score("vba", profile, samples_of(CAPTIONS))
    assert [len(beams) for beams in scored["reconstructions"]] == [5, 5, 5]
    assert scored["value"].to_list() == [max(values) for values in scored["similarities"]]


def test_the_student_of_icc_paper_is_trained_by_its_recipe(zoo: Path, tmp_path: Path) -> None:
    """What both stages of distilling call, on a DistilRoBERTa of a few units."""
    options = with_profile_options({}, load_profile("icc_paper").options, "icc_paper")
    fit = replace(options.student_fit, backbone=f"path:{zoo / 'distilroberta'}")
    captions = [f"{a} {b} {i}" for i in range(8) for a in ("red", "wet") for b in ("kite", "dogs")]
    targets = [0.2 + 0.6 * ("red" in caption) for caption in captions]
    card = train_student(captions, targets, tmp_path / "student", kind=options.student_kind, fit=fit)
    recipe = card.recipe
    assert card.kind == "roberta"
    assert (recipe["epochs_run"], recipe["batch_size"], recipe["learning_rate"]) == (3, 128, 2e-5)
    assert recipe["warm_up_share"] == 0.06
    profile = tiny("icc_paper", {"student": tmp_path / "student"})
    student: Any = load_engine("student", profile)
    assert type(student.model).__name__ == "RobertaForSequenceClassification"
    assert student.score_captions(["kite " * 400]).shape == (1,), "cut at 128 tokens"


@pytest.mark.slow
def test_the_teachers_of_laptop_run(zoo: Path) -> None:
    """Retrieval in the place of drawing, and a small language model behind a bridge where the pool names SBA."""
    profile = tiny(
        "laptop", {"semantic_decoder": zoo / "llama"},
        semantic_decoder={"text_encoder": f"path:{zoo / 'clip'}", "bridge": f"path:{zoo / 'bridge'}"},
    )  # fmt: skip
    assert profile.options["teachers"] == ["vba", "sba_linear"]
    for teacher, beams in (("vba", 5), ("sba", 3)):
        scored = score(teacher, profile, samples_of(CAPTIONS))
        assert scored["value"].null_count() == 0
        assert [len(found) for found in scored["reconstructions"]] == [beams] * 3


def test_a_diffusion_model_without_guidance_draws_for_blips_beams(zoo: Path) -> None:
    """As sd-turbo wants it: two steps, no guidance."""
    profile = load_profile("photos").with_roles(
        text_to_image=f"path:{zoo / 'turbo'}", beam_captioner=f"path:{zoo / 'blip'}"
    )
    profile = profile.with_generation("text_to_image", steps=2, guidance_scale=0.0, height=32, width=32)
    scored = score("vba", profile, samples_of(CAPTIONS))
    assert scored["value"].null_count() == 0
    assert [len(beams) for beams in scored["reconstructions"]] == [5, 5, 5]

"""What roles need: every role has an engine, no needs load a model library, companions are found as declared."""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

from curation_assets import engines
from curation_assets.core.roles import ROLES, SafetyClassifier, Wordnet
from curation_assets.engines import identify_engine
from curation_assets.engines.addresses import resolve_address
from curation_assets.engines.identities import companion_addresses
from curation_assets.engines.needs import FOLDER_SCHEMES, needs_of
from tests.support.tiny_models import profile_of


def test_a_role_is_a_contract_and_an_engine_that_states_its_needs() -> None:
    assert ROLES["safety_classifier"] is SafetyClassifier
    assert ROLES["wordnet"] is Wordnet
    assert len(ROLES) == 25
    modules = {module.name for module in pkgutil.iter_modules(engines.__path__)}
    assert set(ROLES) <= modules
    assert needs_of("parser").schemes == FOLDER_SCHEMES


def test_needs_load_no_model_library() -> None:
    code = (
        "import sys; from curation_assets.core.roles import ROLES; from curation_assets.engines.needs import needs_of; "
        "[needs_of(role) for role in ROLES]; "
        "heavy = ('torch', 'transformers', 'open_clip', 'diffusers', 'spacy', 'wordfreq', 'rapidocr', 'fasttext'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_setting_of_null_drops_a_companion() -> None:
    address = resolve_address("embedded:wordfreq")
    assert {part: one.text for part, one in companion_addresses("lexicon", address, {}).items()} == {
        "polarity": "embedded:vader",
        "profanity": "embedded:better-profanity",
    }
    assert list(companion_addresses("lexicon", address, {"profanity": None})) == ["polarity"]


def test_a_companion_may_lie_beside_or_be_named_by_the_settings(tmp_path: Path) -> None:
    for name in ("clip", "reward"):
        (tmp_path / name).mkdir()
    (tmp_path / "reward" / "config.json").write_text(json.dumps({"pair_encoder": "../clip"}))
    beside = companion_addresses("reward_model", resolve_address(f"path:{tmp_path / 'reward'}"), {})
    assert beside["pair_encoder"].folder == tmp_path / "reward" / "../clip"
    labels = tmp_path / "labels.txt"
    labels.write_text("dog\n")
    with pytest.raises(ValueError, match="is a list of labels: name the model"):
        companion_addresses("object_detector", resolve_address(f"path:{labels}"), {})
    named = companion_addresses(
        "object_detector", resolve_address(f"path:{labels}"), {"image_text_encoder": "embedded:clip"}
    )
    assert {part: one.text for part, one in named.items()} == {"image_text_encoder": "embedded:clip"}


def test_an_address_that_a_role_cannot_take_is_refused_before_anything_is_hashed() -> None:
    with pytest.raises(ValueError, match=r"role 'parser' takes embedded:.*open_clip: fills image_text_encoder"):
        identify_engine("parser", profile_of("parser", "open_clip:ViT-B-32-quickgelu@openai"))

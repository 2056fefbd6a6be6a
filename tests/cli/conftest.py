"""Fixtures of the command's tests."""

from pathlib import Path

import pytest

from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.training.students import train_student
from tests.support.captions import CAPTIONS, TARGETS


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student of a few captions, trained in a second."""
    folder = tmp_path_factory.mktemp("student")
    encoder = load_engine(
        "sentence_encoder", Profile(name="test", roles={"sentence_encoder": "embedded:minilm"}, device="cpu")
    )
    train_student(CAPTIONS, TARGETS, folder, sentence_encoder=encoder)  # type: ignore[arg-type]
    return folder

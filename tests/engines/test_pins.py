"""Weights are compared with the sha256 that is pinned for them before they are used."""

import base64
import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.seal import is_sealed
from curation_assets.engines import addresses, identify_engine, load_engine, pins
from curation_assets.engines.addresses import WEIGHTS_ROOT, embedded_names, local_folder, pins_of, resolve_address
from curation_assets.engines.pins import check_weights, damaged_weights, recorded_pins, shipped_hashes
from curation_assets.stores.file_hash import FileState
from curation_assets.stores.shard_store import ShardStore
from tests.support.tiny_models import profile_of


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped student in place of all shipped weights."""
    root = tmp_path / "weights"
    shutil.copytree(WEIGHTS_ROOT / "icc_student", root / "icc_student")
    shutil.copy(WEIGHTS_ROOT / "manifest.json", root)
    for module in (addresses, pins):
        monkeypatch.setattr(module, "WEIGHTS_ROOT", root)
    return root


def test_every_shipped_model_is_pinned() -> None:
    assert is_sealed((WEIGHTS_ROOT / "manifest.json").read_bytes())
    assert set(shipped_hashes()) == {path.name for path in WEIGHTS_ROOT.iterdir() if path.is_dir()}
    for name in set(embedded_names()) - set(shipped_hashes()):  # those that packages bring
        assert [pin for pin in pins_of(resolve_address(f"embedded:{name}")) if pin.hashes], name


def test_a_flipped_bit_of_the_shipped_student_is_refused(shipped: Path) -> None:
    profile = profile_of("student", "embedded:icc_student")
    identify_engine("student", profile)
    weights = shipped / "icc_student" / "mlp.safetensors"
    before = hashlib.sha256(weights.read_bytes()).hexdigest()
    flip(weights, 50_000)
    after = hashlib.sha256(weights.read_bytes()).hexdigest()
    for use in (identify_engine, load_engine):
        with pytest.raises(
            ModelUnavailableError, match=rf"{weights}: expected sha256 {before}, got {after}; install the package again"
        ):
            use("student", profile)


def test_a_list_of_pins_that_was_changed_is_no_list(shipped: Path) -> None:
    flip(shipped / "manifest.json", 2_000)
    with pytest.raises(ModelUnavailableError, match=r"manifest\.json is damaged or absent"):
        local_folder(resolve_address("embedded:icc_student"))


def test_a_bit_that_turns_over_unseen_is_found_by_a_fresh_look(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, weights = shipped / "icc_student", shipped / "icc_student" / "mlp.safetensors"
    state = FileState.of(weights)
    old = replace(state, changed_ns=state.changed_ns - 10**10)  # old enough to be remembered
    of = FileState.of
    # a disk that fails changes no time
    monkeypatch.setattr(FileState, "of", lambda path: old if path.name == weights.name else of(path))
    check_weights(folder)
    flip(weights, 50_000)
    check_weights(folder)
    assert [damaged.path for damaged in damaged_weights(folder, fresh=True)] == [weights]
    monkeypatch.setattr(FileState, "of", of)
    with pytest.raises(ModelUnavailableError, match="expected sha256"):
        check_weights(folder)  # whoever writes leaves a time of change


def test_files_of_a_package_are_those_of_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, facts = tmp_path / "model_of_a_package", tmp_path / "model_of_a_package-1.0.dist-info"
    folder.mkdir()
    facts.mkdir()
    model = folder / "model.bin"
    model.write_bytes(b"weights")
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"weights").digest()).decode().rstrip("=")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: model-of-a-package\nVersion: 1.0\n")
    (facts / "RECORD").write_text(f"model_of_a_package/model.bin,sha256={digest},7\nmodel_of_a_package/x.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    pin = recorded_pins("model-of-a-package", folder)
    assert list(pin.hashes) == [model]
    check_weights(folder, pin)
    flip(model, 3)
    with pytest.raises(ModelUnavailableError, match=r"got .*; install the package model-of-a-package again"):
        check_weights(folder, pin)
    model.unlink()
    with pytest.raises(ModelUnavailableError, match="got no file"):
        check_weights(folder, pin)
    assert not recorded_pins("no-such-package", folder).hashes


@pytest.mark.parametrize("hashed", ["sha256", "git"])
def test_a_blob_of_the_hubs_cache_is_what_its_name_says(tmp_path: Path, hashed: str) -> None:
    data = b"weights of a repository"
    git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    blob = tmp_path / "blobs" / (hashlib.sha256(data).hexdigest() if hashed == "sha256" else git)
    snapshot = tmp_path / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    blob.parent.mkdir()
    blob.write_bytes(data)
    (snapshot / "model.safetensors").symlink_to(blob)
    folder = local_folder(resolve_address(f"path:{snapshot}"))
    assert folder == snapshot
    flip(blob, 4)
    with pytest.raises(ModelUnavailableError, match=f"expected sha256 {blob.name}, got .*; delete it and fetch"):
        local_folder(resolve_address(f"path:{snapshot}"))


def test_a_model_of_the_pool_is_what_was_trained(tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "work" / "toy")

    def train(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"trained")

    store.materialise_folder("distilled/student", train, code_version="1")
    address = resolve_address("pool:student", store.root / "distilled")
    model = local_folder(address) / "model.safetensors"
    flip(model, 1)
    with pytest.raises(ModelUnavailableError, match=r"model\.safetensors: expected .*curate verify POOL --repair"):
        local_folder(address)

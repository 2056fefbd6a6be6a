"""What a run takes, found before it begins: models, parts of them, files; no network is asked."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from curation_assets.core.settings import load_settings
from curation_assets.engines.addresses import resolve_address
from curation_assets.engines.presence import cached_snapshot, parts_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.pieces import MissingPiecesError, Piece, cautions_of, check_pieces, pieces_of
from curation_assets.sources.declaration import add_pool
from tests.support.command import curate


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty hub cache, and a refusal of every connection."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def refuse(*arguments: Any) -> None:
        raise AssertionError(f"a connection was tried: {arguments[1:]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def pool(home: Path, profile: str, **options: Any) -> PoolContext:
    """A pool of captions."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "c.csv").write_text("caption\na red kite\ntwo dogs\n")
    settings = load_settings(home, profile)
    add_pool(settings, "mine", home / "c.csv", options=options)
    return PoolContext.open(settings, "mine")


def found(ctx: PoolContext) -> dict[str, Piece]:
    return {piece.name: piece for piece in pieces_of(ctx, tables_of(ctx))}


def test_icc_paper_lists_what_is_fetched_gated_made_and_missing(tmp_path: Path) -> None:
    pieces = found(pool(tmp_path / "home", "icc_paper"))
    states = {name: piece.state for name, piece in pieces.items()}
    assert states["text_to_image"] == states["beam_captioner"] == states["text_similarity"] == "fetch"
    assert states["semantic_decoder"] == "gated"
    assert "licence of meta-llama/Llama-2-7b-hf" in pieces["semantic_decoder"].advice
    assert states["semantic_decoder: text_encoder"] == states["student_fit: backbone"] == "fetch"
    assert states["semantic_decoder: bridge"] == "missing"
    assert pieces["semantic_decoder: bridge"].tables == ("teachers/sba",)
    assert states["student"] == "here", "nobody rated captions of this pool: the shipped one stays"
    assert (pieces["student"].size or 0) > 1e5
    assert pieces["option labels"].is_required
    with pytest.raises(MissingPiecesError, match=r"2 pieces are missing:\n  semantic_decoder: bridge .*train_sba"):
        check_pieces(pieces.values())


def test_a_bridge_that_the_pool_trains_is_made_by_the_run(tmp_path: Path) -> None:
    (tmp_path / "labels.tsv").write_text("caption\trating\na\t1\n")
    pieces = found(pool(tmp_path / "home", "icc_paper", train_sba=True, labels=str(tmp_path / "labels.tsv")))
    assert pieces["semantic_decoder: bridge"].state == "made"
    assert pieces["option labels"].state == "here"
    check_pieces(pieces.values())


def test_a_file_of_an_option_that_is_not_there_stops(tmp_path: Path) -> None:
    pieces = found(pool(tmp_path / "home", "embedded", distil=True, labels=str(tmp_path / "missing.tsv")))
    with pytest.raises(MissingPiecesError, match=r"option labels .*missing\.tsv \(for teachers/labelled_captions\)"):
        check_pieces(pieces.values())


def test_words_and_word_vectors_that_a_machine_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("curation_assets.engines.addresses.DEBIAN_DATA", {"wordnet-base": (str(tmp_path), "data.noun")})
    monkeypatch.chdir(tmp_path)
    wordnet = found(pool(tmp_path / "a", "datacomp"))["wordnet"]
    assert wordnet.state == "missing"
    assert "apt-get install wordnet-base" in wordnet.advice
    assert wordnet.tables == ("signals/datacomp_text",)
    vectors = found(pool(tmp_path / "b", "rao_paper", methods=["object_word_quality"]))["word_vectors"]
    assert vectors.state == "missing"
    assert "glove.840B.300d.txt of nlp.stanford.edu" in vectors.advice
    (tmp_path / "glove.840B.300d.txt").write_text("kite 1 2\n")
    assert found(pool(tmp_path / "b", "rao_paper", methods=["object_word_quality"]))["word_vectors"].state == "here"


def test_an_empty_role_names_the_column_that_replaces_it(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    shipped = load_settings(tmp_path, "embedded").profile.roles
    roles = "\n".join(f"  {role}: {text}" for role, text in shipped.items() if role != "object_detector")
    file.write_text(f"name: p\ndevice: cpu\nroles:\n{roles}\n")
    pieces = found(pool(tmp_path / "home", str(file), methods=["object_word_quality"]))
    assert pieces["object_detector"].state == "missing"
    assert "options: {given: {detected_objects: FILE}}" in pieces["object_detector"].advice


def test_a_snapshot_counts_once_all_of_its_weights_are_there(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--org--big" / "snapshots" / ("0" * 40)
    folder.mkdir(parents=True)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text("0" * 40)
    address = resolve_address("hub:org/big")
    assert cached_snapshot(address) is None
    shards = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    (folder / "model-1.safetensors").write_bytes(b"1")
    assert cached_snapshot(address) is None
    (folder / "model-2.safetensors").write_bytes(b"22")
    assert cached_snapshot(address) == folder
    profile = load_settings(tmp_path, "embedded").profile.with_roles(captioner="hub:org/big")
    (part,) = parts_of("captioner", profile)
    assert part.state == "here"


def test_the_command_lists_them_before_the_first_run_and_the_run_stops(tmp_path: Path) -> None:
    ctx = pool(tmp_path / "home", "icc_paper")
    arguments = ["mine", "--home", str(ctx.settings.home), "--profile", "icc_paper"]
    shown = curate("plan", *arguments)
    assert shown.exit_code == 0, shown.output
    assert "hub:meta-llama/Llama-2-7b-hf" in shown.output
    assert "gated" in shown.output
    assert "semantic_decoder: bridge is missing: train one" in shown.output
    as_json = curate("plan", *arguments, "--json")
    listed = {piece["name"]: piece for piece in json.loads(as_json.stdout)["pieces"]}
    assert listed["semantic_decoder: bridge"]["state"] == "missing"
    stopped = curate("run", *arguments)
    assert stopped.exit_code == 1
    assert "nothing was started" in stopped.output
    assert not ctx.store.partitions("raw/samples"), "not even the source was read"


def test_laions_threshold_is_tied_to_its_encoder(tmp_path: Path) -> None:
    (caution,) = cautions_of(pool(tmp_path / "a", "embedded", methods=["laion_filter"]))
    assert ".28 belongs to OpenAI's ViT-B/32, and image_text_encoder is embedded:clip" in caution
    assert "methods: {laion_filter: {threshold: VALUE}}" in caution
    assert cautions_of(pool(tmp_path / "b", "laptop", methods=["laion_filter"])) == []
    assert cautions_of(pool(tmp_path / "c", "embedded")) == []

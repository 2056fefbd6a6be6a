"""The BERT encoder on torch alone against transformers and sentence-transformers.

The same operations in the same order: equal to the last bit on the processors tried. Kernels of others may round
otherwise, so the tests allow a few units in the last place.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.engines.addresses import resolve_address
from curation_assets.engines.batches import weights_precision
from curation_assets.engines.bert import load_bert
from curation_assets.numeric.agreement import correlations
from curation_assets.world.bank.captions import bank_captions

FOLDER = resolve_address("embedded:minilm").folder
TEXTS = [
    *bank_captions(None)[::120],
    *(
        "",
        " ",
        "a",
        "[SEP]",
        "a [MASK] dog [CLS] [PAD] cat",
        "ça, 中文 🎈👩‍🚀",
        "ÀÉÎ çß İstanbul",
        "\u0000 \u200b",
        "ﬁ ﬂ ſ",
    ),
    *("x" * 600, "word " * 400, "é" * 300, "中文" * 200, "a\tb\nc\r\nd", "##ing", "…—“”", "1,234.56 don't!!!"),
]


@pytest.fixture(scope="module")
def library() -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(FOLDER, add_pooling_layer=False, attn_implementation="sdpa", dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(FOLDER)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["as they are", "by length", "shuffled"])
def test_hidden_states_are_those_of_transformers(library: tuple[Any, Any], order: str) -> None:
    assert FOLDER is not None
    own, (model, tokenizer) = load_bert(FOLDER, "cpu"), library
    texts = list(TEXTS)
    if order == "by length":
        texts.sort(key=len)
    if order == "shuffled":
        texts = [texts[i] for i in np.random.default_rng(0).permutation(len(texts))]
    for start in range(0, len(texts), 32):
        batch = texts[start : start + 32]
        tokens = tokenizer(batch, padding=True, truncation=True, max_length=128, return_tensors="pt")
        with torch.inference_mode():
            ids, is_real = own.tokenize(batch, 128)
            found = own.hidden_states(ids, is_real)
            expected = model(**tokens, output_hidden_states=True).hidden_states
        assert torch.equal(ids, tokens.input_ids)
        assert torch.equal(is_real, tokens.attention_mask.bool())
        assert len(found) == len(expected) == 7
        for ours, theirs in zip(found, expected, strict=True):
            # what stands on padding is nobody's
            torch.testing.assert_close(ours[is_real], theirs[is_real], rtol=1e-5, atol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [7, 128])
def test_sentences_are_embedded_as_by_sentence_transformers(batch_size: int) -> None:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(FOLDER), device="cpu", local_files_only=True)
    expected = model.encode(TEXTS, batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False)
    profile = Profile(
        "test", {"sentence_encoder": "embedded:minilm"}, device="cpu", batch_size={"sentence_encoder": batch_size}
    )
    engine: Any = load_engine("sentence_encoder", profile)
    np.testing.assert_allclose(engine.embed_sentences(TEXTS), expected, rtol=0, atol=2e-6)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    assert FOLDER is not None
    config = json.loads((FOLDER / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(ValueError, match=r"expected a BERT encoder with .*'gelu'.*, got .*'relu'"):
        load_bert(tmp_path, "cpu")


CAPTIONS = bank_captions(None)[::80]  # 300: bfloat16 is slow where a processor has no instructions for it


def _student(address: str, **settings: Any) -> Any:
    profile = Profile("test", {"student": address}, generation={"student": settings}, device="cpu")
    return load_engine("student", profile)


def test_a_student_in_bfloat16_ranks_captions_as_in_float32() -> None:
    exact = _student("embedded:icc_student").score_captions(CAPTIONS)
    rounded = _student("embedded:icc_student", precision="bfloat16").score_captions(CAPTIONS)
    assert 0 < np.abs(rounded - exact).max() < 0.02  # of a unit of [0, 1]
    assert correlations(rounded, exact)[1] > 0.999
    # a value still depends on its caption alone: here among others of its length, there by itself
    alone = [_student("embedded:icc_student", precision="bfloat16").score_captions([text])[0] for text in CAPTIONS[:5]]
    np.testing.assert_allclose(alone, rounded[:5], atol=0.01)
    np.testing.assert_array_equal(_student("embedded:icc_student", precision="float32").score_captions(CAPTIONS), exact)


def test_a_cascade_runs_its_slow_student_in_the_precision() -> None:
    rounded = _student("embedded:icc_student", precision="bfloat16").score_captions(CAPTIONS)
    values = _student("cascade:-9", precision="bfloat16").score_captions(CAPTIONS)  # every caption reaches the cut
    np.testing.assert_allclose(values, rounded, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("address", ["embedded:minilm", f"path:{FOLDER}"])
def test_sentences_in_bfloat16_keep_their_direction(address: str) -> None:
    roles, half = {"sentence_encoder": address}, {"sentence_encoder": {"precision": "bfloat16"}}
    exact: Any = load_engine("sentence_encoder", Profile("test", roles, device="cpu"))
    rounded: Any = load_engine("sentence_encoder", Profile("test", roles, generation=half, device="cpu"))
    vectors = rounded.embed_sentences(CAPTIONS)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert (exact.embed_sentences(CAPTIONS) * vectors).sum(axis=1).min() > 0.999
    assert not np.array_equal(exact.embed_sentences(CAPTIONS), vectors)


@pytest.mark.parametrize(
    ("address", "settings", "message"),
    [
        (
            "embedded:icc_student",
            {"precison": "bfloat16"},
            "generation.student has no setting 'precison'; did you mean",
        ),
        ("embedded:icc_student", {"precision": "int3"}, "one of float32, bfloat16, float16, got 'int3'"),
        ("embedded:icc_student_static", {"precision": "bfloat16"}, r"_static \(static\) has no setting"),
    ],
)
def test_a_setting_that_a_student_lacks_is_refused(address: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _student(address, **settings)


def test_a_precision_that_this_processor_gains_nothing_from_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    assert weights_precision("cpu", {"precision": "bfloat16"}) == torch.bfloat16
    assert "float32 is faster here" in caplog.text
    caplog.clear()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    assert weights_precision("cpu", {"precision": "bfloat16"}) == torch.bfloat16
    assert weights_precision("cpu", {"precision": "float32"}) == torch.float32
    assert weights_precision("cpu", {}) is None
    assert not caplog.text

"""Beam search and nucleus sampling in shrinking batches, against the library's own generation on the same networks."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import NoRepeatNGramLogitsProcessor

from benchmarks.generation import PlainCaptioner, PlainDecoder, PlainPainter
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.engines.generation import ROWS_AT_ONCE, BeamSearch, NoRepeatNgrams, prompts_at_once
from curation_assets.foreign.transformers_generation import go_on_after
from tests.support.tiny_models import (
    make_images,
    profile_of,
    save_generators,
    save_text_to_image,
)

CAPTIONS = [
    f"{number} {rest}"
    for number in ("two", "a red", "1000")
    for rest in ("dogs", "kite over the sea in winter", "house on the left of a very old tree")
]
IMAGES = make_images(9)
LIMIT = 20
#: Scores of the same sequences: batches of other sizes are multiplied in other blocks, which changes last bits.
SCORE_TOLERANCE = 1e-6


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny random checkpoints; the decoder's lines end often, so that beams end at different times."""
    torch.manual_seed(1)
    root = tmp_path_factory.mktemp("zoo")
    save_generators(root)
    save_text_to_image(root / "attends_first", real_vae=False, attends_first=True)
    (root / "semantic_decoder" / "text_encoder").symlink_to(root / "clip")
    return root


def decoder(zoo: Path, batch_size: int = 8, beams: int = 3, ngram: int = 0, limit: int = LIMIT) -> Any:
    """The semantic decoder of the zoo."""
    settings = {"beams": beams, "no_repeat_ngram_size": ngram, "max_new_tokens": limit,
                "text_encoder": f"path:{zoo / 'clip'}"}  # fmt: skip
    engine: Any = load_engine("semantic_decoder", profile_of("semantic_decoder", zoo / "semantic_decoder",
                                                             batch_size, **settings))  # fmt: skip
    return engine


def captioner(zoo: Path, name: str, role: str, batch_size: int = 8) -> Any:
    """A caption model of the zoo; BLIP and BLIP-2 take a prompt."""
    settings: dict[str, Any] = {"max_new_tokens": 10, "min_new_tokens": 2}
    settings |= {"top_p": 0.9, "top_k": 50} if role == "captioner" else {}
    settings |= {} if name == "captioner" else {"prompt": "a red kite"}
    return load_engine(role, profile_of(role, zoo / name, batch_size, **settings))


def plain_search(engine: Any, prompt: torch.Tensor, beams: int, **options: Any) -> Any:
    """The library's beam search of a semantic decoder's language model, with scores."""
    return engine.language_model.generate(
        inputs_embeds=prompt,
        attention_mask=torch.ones(prompt.shape[:2], dtype=torch.long),
        do_sample=False,
        num_beams=beams,
        num_return_sequences=beams,
        max_new_tokens=LIMIT,
        eos_token_id=engine.stop_ids,
        pad_token_id=engine.tokenizer.eos_token_id,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


def search(engine: Any, prompt: torch.Tensor, beams: int, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """(B * beams, L) tokens and (B * beams,) scores of this package's beam search."""
    method = BeamSearch(beams)
    sequences = engine.language_model.generate(
        inputs_embeds=prompt,
        attention_mask=torch.ones(prompt.shape[:2], dtype=torch.long),
        custom_generate=method,
        do_sample=False,
        num_beams=1,
        max_new_tokens=LIMIT,
        eos_token_id=engine.stop_ids,
        pad_token_id=engine.tokenizer.eos_token_id,
        **options,
    )
    return sequences, method.scores.flatten()


def until_end(sequences: torch.Tensor, stop_ids: list[int]) -> list[list[int]]:
    """Each row up to its first end token, which belongs to it."""
    rows = sequences.tolist()
    ends = [next((i for i, token in enumerate(row) if token in stop_ids), len(row)) for row in rows]
    return [row[: end + 1] for row, end in zip(rows, ends, strict=True)]


def often_ending(engine: Any, factor: float) -> None:
    """Enlarges the newline's output row."""
    newline = engine.tokenizer("\n", add_special_tokens=False).input_ids[-1]
    with torch.no_grad():
        engine.language_model.lm_head.weight[newline] *= factor


@pytest.mark.parametrize(
    ("beams", "options"),
    [
        (1, {}),
        (3, {}),
        (5, {"no_repeat_ngram_size": 2}),
        (3, {"early_stopping": True}),
        (3, {"early_stopping": "never", "length_penalty": 2.0}),
        (3, {"length_penalty": 0.3}),
        (4, {"length_penalty": -1.0, "min_new_tokens": 4}),
    ],
)
def test_beam_search_finds_the_librarys_sequences_and_scores(zoo: Path, beams: int, options: dict[str, Any]) -> None:
    engine = decoder(zoo)
    prompt = engine._prompt(engine.text_feature(CAPTIONS))
    lengths = set()
    for factor in (1.0, 2.0):
        often_ending(engine, factor)
        try:
            found, scores = search(engine, prompt, beams, **options)
            expected = plain_search(engine, prompt, beams, **options)
        finally:
            often_ending(engine, 1 / factor)
        rows = until_end(found, engine.stop_ids)
        assert rows == until_end(expected.sequences, engine.stop_ids)
        if beams > 1:  # one beam is greedy search in the library, which has no score
            np.testing.assert_allclose(scores, expected.sequences_scores, atol=SCORE_TOLERANCE)
        lengths |= {len(row) for row in rows}
    assert len(lengths) > 1, "all sequences are equally long, so nothing leaves a batch"


@pytest.mark.slow
@pytest.mark.parametrize("off", ["", "all"])
@pytest.mark.parametrize("name", ["captioner", "blip", "blip2"])
def test_caption_models_answer_as_the_librarys_loops_one_by_one(
    zoo: Path, name: str, off: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With transformers' own rule for the inputs of the next step and without it (docs/contributor/upgrading.md)."""
    monkeypatch.setenv("CURATION_FOREIGN_OFF", off)
    beams = captioner(zoo, name, "beam_captioner")
    assert beams.beam_captions(IMAGES, 3) == PlainCaptioner(beams, 1).beam_captions(IMAGES, 3)
    sampler = captioner(zoo, name, "captioner")
    seeds = list(range(len(IMAGES)))
    assert sampler.sample_captions(IMAGES, seeds, 4) == PlainCaptioner(sampler, 1).sample_captions(IMAGES, seeds, 4)


def test_the_semantic_decoder_answers_as_the_librarys_loop_one_by_one(zoo: Path) -> None:
    engine = decoder(zoo, beams=5, ngram=2)
    assert engine.reconstruct_captions(CAPTIONS) == PlainDecoder(engine, 1).reconstruct_captions(CAPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("guidance_scale", [4.0, 1.0])
@pytest.mark.parametrize("attends_first", [False, True])
def test_drawings_are_those_of_the_pipeline_one_by_one(zoo: Path, guidance_scale: float, attends_first: bool) -> None:
    """What guidance computes twice alike is computed once: layers before the first that sees a caption."""
    folder = zoo / ("attends_first" if attends_first else "text_to_image")
    settings = {"steps": 2, "guidance_scale": guidance_scale, "height": 32, "width": 32}
    engine: Any = load_engine("text_to_image", profile_of("text_to_image", folder, 2, **settings))
    seeds = list(range(len(CAPTIONS)))
    ours = np.array([np.asarray(image) for image in engine.generate_images(CAPTIONS, seeds)], dtype=int)
    plain = np.array([np.asarray(image) for image in PlainPainter(engine, 1).generate_images(CAPTIONS, seeds)])
    assert np.abs(ours - plain).max() <= 1
    torch.set_num_threads(2)
    side_by_side = [np.asarray(image) for image in engine.generate_images(CAPTIONS, seeds)]
    np.testing.assert_array_equal(np.array(side_by_side), ours)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 3, 8])
@pytest.mark.parametrize("threads", [1, 2])
def test_an_answer_depends_on_no_neighbour_and_on_no_thread(zoo: Path, batch_size: int, threads: int) -> None:
    """Texts of all engines are equal whatever the batch; the next test compares the scores behind them."""
    torch.set_num_threads(threads)
    order = np.random.default_rng(batch_size).permutation(len(IMAGES))
    seeds = list(range(len(IMAGES)))

    texts = decoder(zoo, batch_size=8).reconstruct_captions(CAPTIONS)
    shuffled = decoder(zoo, batch_size=batch_size).reconstruct_captions([CAPTIONS[i] for i in order])
    assert shuffled == [texts[i] for i in order]

    beams = captioner(zoo, "captioner", "beam_captioner").beam_captions(IMAGES, 3)
    shuffled = captioner(zoo, "captioner", "beam_captioner", batch_size).beam_captions([IMAGES[i] for i in order], 3)
    assert shuffled == [beams[i] for i in order]

    samples = captioner(zoo, "captioner", "captioner").sample_captions(IMAGES, seeds, 4)
    shuffled = captioner(zoo, "captioner", "captioner", batch_size).sample_captions(
        [IMAGES[i] for i in order], [seeds[i] for i in order], 4
    )
    assert shuffled == [samples[i] for i in order]


@pytest.mark.parametrize("size", [1, 3, 8])
def test_scores_do_not_depend_on_the_batch(size: int) -> None:
    """The shipped network: the steep logits of a random one would multiply the last bits of its matrix products."""
    engine: Any = load_engine("semantic_decoder", load_profile("embedded"))
    prompt = engine._prompt(engine.text_feature(CAPTIONS))
    sequences, expected = search(engine, prompt, 3)
    order = torch.from_numpy(np.random.default_rng(size).permutation(len(prompt)))
    parts = [search(engine, part, 3) for part in prompt[order].split(size)]
    rows = [row for found, _ in parts for row in until_end(found, engine.stop_ids)]
    expected_rows = until_end(sequences, engine.stop_ids)
    assert rows == [expected_rows[3 * i + beam] for i in order.tolist() for beam in range(3)]
    scores = torch.cat([scores for _, scores in parts]).view(-1, 3)
    np.testing.assert_allclose(scores, expected.view(-1, 3)[order], atol=SCORE_TOLERANCE)


def test_two_threads_change_no_bit(zoo: Path) -> None:
    """Each batch has one thread, and which captions share one does not depend on the number of threads."""
    similarity: Any = load_engine("text_similarity", profile_of("text_similarity", "embedded:bertscore-minilm", 2))
    pairs = (CAPTIONS, CAPTIONS[1:] + CAPTIONS[:1])
    one, feature = similarity.similarity(*pairs), decoder(zoo).text_feature(CAPTIONS)
    torch.set_num_threads(2)
    np.testing.assert_array_equal(similarity.similarity(*pairs), one)
    np.testing.assert_array_equal(decoder(zoo).text_feature(CAPTIONS), feature)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_the_texts_of_the_cpu(zoo: Path) -> None:
    """In float32, with the batches and the same random numbers of the CPU."""
    settings = {"beams": 3, "no_repeat_ngram_size": 2, "max_new_tokens": LIMIT, "precision": "float32",
                "text_encoder": f"path:{zoo / 'clip'}"}  # fmt: skip
    on_gpu = replace(profile_of("semantic_decoder", zoo / "semantic_decoder", 8, **settings), device="cuda")
    engine: Any = load_engine("semantic_decoder", on_gpu)
    assert engine.reconstruct_captions(CAPTIONS) == decoder(zoo, ngram=2).reconstruct_captions(CAPTIONS)
    seeds = list(range(len(IMAGES)))
    for name in ("captioner", "blip", "blip2"):
        prompt = {} if name == "captioner" else {"prompt": "a red kite"}
        settings = {"max_new_tokens": 10, "min_new_tokens": 2, "precision": "float32", **prompt}
        engines: list[Any] = [
            load_engine(role, replace(profile_of(role, zoo / name, 8, **settings, **sampling), device="cuda"))
            for role, sampling in (("beam_captioner", {}), ("captioner", {"top_p": 0.9}))
        ]
        beams, samples = captioner(zoo, name, "beam_captioner"), captioner(zoo, name, "captioner")
        assert engines[0].beam_captions(IMAGES, 3) == beams.beam_captions(IMAGES, 3)
        assert engines[1].sample_captions(IMAGES, seeds, 4) == samples.sample_captions(IMAGES, seeds, 4)


def test_rows_that_have_ended_are_no_longer_computed(zoo: Path) -> None:
    engine = decoder(zoo)
    often_ending(engine, 2.0)
    rows: list[int] = []
    hook = engine.language_model.lm_head.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    try:
        prompt = engine._prompt(engine.text_feature(CAPTIONS))
        search(engine, prompt, 3)
        ours, rows[:] = list(rows), []
        plain_search(engine, prompt, 3)
    finally:
        hook.remove()
        often_ending(engine, 0.5)
    assert ours[0] == len(CAPTIONS), "a prompt is read once for all beams"
    assert ours[1:] == sorted(ours[1:], reverse=True)
    assert ours[-1] < ours[1] == 3 * len(CAPTIONS)
    assert len(ours) == len(rows), "both end with the last row"
    assert sum(ours) < sum(rows)


def test_beams_that_never_end_stop_at_the_limit(zoo: Path) -> None:
    engine = decoder(zoo)
    prompt = engine._prompt(engine.text_feature(CAPTIONS))
    sequences, scores = search(engine, prompt, 3, min_new_tokens=LIMIT)
    assert sequences.shape == (3 * len(CAPTIONS), LIMIT)
    assert not set(sequences.flatten().tolist()) & set(engine.stop_ids)
    expected = plain_search(engine, prompt, 3, min_new_tokens=LIMIT)
    assert torch.equal(sequences, expected.sequences)
    np.testing.assert_allclose(scores, expected.sequences_scores, atol=SCORE_TOLERANCE)


def test_calls_are_even_in_number_and_not_too_large() -> None:
    assert [prompts_at_once(64, beams, "cpu") for beams in (3, 5, 8)] == [32, 32, 16]  # 2, 2 and 4 calls
    assert prompts_at_once(1000, 3, "cpu") * 3 <= ROWS_AT_ONCE
    assert [prompts_at_once(count, 5, "cpu") for count in (0, 1, 19, 20)] == [1, 1, 19, 10]
    assert prompts_at_once(1, 500, "cpu") == 1
    assert prompts_at_once(1000, 5, "cuda") == 1000


def test_inputs_of_a_models_own_are_refused_without_the_librarys_rule(
    zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CURATION_FOREIGN_OFF", "cache_of_any_model")
    model = decoder(zoo).language_model
    with pytest.raises(
        NotImplementedError, match="takes token_type_ids, which only versions of transformers that were"
    ):
        go_on_after(model, None, {"token_type_ids": torch.zeros(1, 3)})


@pytest.mark.parametrize("size", [1, 2, 3])
def test_forbidden_ngrams_are_the_librarys(size: int) -> None:
    rng = torch.Generator().manual_seed(size)
    for length in range(12):
        ids = torch.randint(0, 4, (50, length), generator=rng)
        scores = torch.randn(50, 4, generator=rng)
        if length == 0:
            assert torch.equal(NoRepeatNgrams(size)(ids, scores), scores)
            continue
        expected = NoRepeatNGramLogitsProcessor(size)(ids, scores.clone())
        assert torch.equal(NoRepeatNgrams(size)(ids, scores), expected)
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        NoRepeatNgrams(0)


def test_a_checkpoint_that_stops_otherwise_is_refused(zoo: Path) -> None:
    engine = decoder(zoo)
    prompt = engine._prompt(engine.text_feature(CAPTIONS[:1]))
    with pytest.raises(ValueError, match="generation_config of the checkpoint sets MaxTimeCriteria"):
        search(engine, prompt, 2, max_time=100.0)
    with pytest.raises(ValueError, match="beams must be at least 1, got 0"):
        BeamSearch(0)

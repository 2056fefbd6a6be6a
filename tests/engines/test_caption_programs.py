"""The Java programs of caption evaluation: tokens and values of the reference implementation, and machines without."""

import json
from pathlib import Path

import numpy as np
import pytest

from curation_assets.core.errors import ProgramUnavailableError
from curation_assets.engines import caption_programs
from curation_assets.engines.caption_programs import Java, find_java, running_meteor, spice, treebank_tokens
from curation_assets.numeric.metrics.captioning import tokenise_caption
from tests.support.captioning import CANDIDATES, REFERENCES, coco_captions, java_that, needs_java, without_java


@needs_java
def test_tokens_of_texts_that_could_break_the_lines() -> None:
    texts = [
        "A man's dog, isn't it?",
        "",
        "two\nlines",
        "a\rb\x0bc\u2028d\u2029e\x0cf",
        "  ",
        "Café – naïve…",
        "two\nlines",
    ]
    expected = ["a man 's dog is n't it", "", "two lines", "a b c d e f", "", "café naïve", "two lines"]
    assert treebank_tokens(texts) == expected
    assert treebank_tokens(["", " \n"]) == ["", ""]


@needs_java
@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_tokens_do_not_depend_on_the_locale_or_on_other_texts(locale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    texts = ["Corner of Hollywood Blvd.", "A café in the U.S.", "the 5th ave.", "Naïve “art”"]
    expected = ["corner of hollywood blvd.", "a café in the u.s.", "the 5th ave.", "naïve art"]
    assert treebank_tokens(texts) == expected
    assert [treebank_tokens([text])[0] for text in texts] == expected
    assert treebank_tokens(texts[::-1]) == expected[::-1]


@needs_java
def test_coco_tokens_equal_pycocoevalcap_and_the_approximation_nearly() -> None:
    """All 25,014 captions; our own tokeniser differs on 3 of them."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    captions = coco_captions()
    of_package = PTBTokenizer().tokenize({image: [{"caption": text} for text in captions[image]] for image in captions})
    expected = [tokens for image in captions for tokens in of_package[image]]
    texts = [text for image in captions for text in captions[image]]
    assert treebank_tokens(texts) == expected
    assert sum(tokenise_caption(text) != tokens for text, tokens in zip(texts, expected, strict=True)) <= 3


@needs_java
def test_meteor_of_the_golden_set_and_of_several_systems() -> None:
    """formulas.md §13.14, §10.2."""
    references = [treebank_tokens(texts) for texts in REFERENCES]
    candidates = treebank_tokens(CANDIDATES)
    with running_meteor() as meteor:
        mean, per_image = meteor.score(references, candidates)
        empty, _ = meteor.score(references, [""] * 4)
        barred, _ = meteor.score(
            [[f"{text} |||" for text in texts] for texts in references], [f"||| {candidates[0]}"] * 4
        )
        again, _ = meteor.score(references, candidates)
        plain, _ = meteor.score(references, [candidates[0]] * 4)
    assert mean == again == pytest.approx(0.3034671777, abs=1e-9)
    np.testing.assert_allclose(per_image, [0.37805953, 0.18023885, 0.44094104, 0.19851207], atol=1e-8)
    assert empty == 0.0
    assert barred == pytest.approx(plain, abs=1e-12), "||| parts METEOR's fields"
    assert meteor.process.poll() is not None, "the process ends with the block"


def test_without_java_the_reason_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_java(tmp_path, monkeypatch)
    for call in (find_java, lambda: treebank_tokens(["a"]), lambda: running_meteor().__enter__()):
        with pytest.raises(ProgramUnavailableError, match="no Java on the PATH; install a Java runtime"):
            call()


def test_an_old_or_broken_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, script, sentence in (
        ("old", "echo 'java version \"1.6.0_45\"' >&2", r"is Java 1\.6\.0_45, expected 8 or later"),
        ("broken", "echo 'cannot load libjvm.so' >&2; exit 1", r"does not tell its version: cannot load libjvm\.so"),
    ):
        (tmp_path / name).mkdir()
        java_that(script, tmp_path / name, monkeypatch)
        with pytest.raises(ProgramUnavailableError, match=sentence):
            find_java()
    (tmp_path / "new").mkdir()
    path = java_that("echo 'openjdk version \"1.8.0_292\"' >&2", tmp_path / "new", monkeypatch)
    assert find_java() == Java(str(path), "1.8.0_292", 8)


VERSION = 'if [ "$1" = -version ]; then echo \'openjdk version "11.0.2"\' >&2; exit 0; fi\n'


def test_a_program_that_fails_is_a_reason_with_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "Exception in thread main java.lang.OutOfMemoryError: Java heap space"
    java_that(f"{VERSION}echo '{words}' >&2; echo '  at X' >&2; exit 1", tmp_path, monkeypatch)
    with pytest.raises(ProgramUnavailableError, match=f"Penn Treebank tokeniser failed with exit status 1: {words}"):
        treebank_tokens(["a kite"])
    with running_meteor() as meteor, pytest.raises(ProgramUnavailableError, match=f"METEOR ended early .{words}"):
        meteor.score([["a kite"]], ["a kite"])


def test_a_program_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_that(f"{VERSION}exec /bin/sleep 60", tmp_path, monkeypatch)
    monkeypatch.setattr(caption_programs, "_STARTING_SECONDS", 0.5)
    with pytest.raises(ProgramUnavailableError, match="gave no result within"):
        treebank_tokens(["a kite"])
    with running_meteor() as meteor, pytest.raises(ProgramUnavailableError, match="no answer within"):
        meteor.score([["a kite"]], ["a kite"])


def test_spice_names_all_it_lacks_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caption_programs, "_package_file", lambda *names: tmp_path.joinpath(*names))
    (tmp_path / "spice" / "lib").mkdir(parents=True)
    java = java_that("echo 'openjdk version \"17.0.15\"' >&2", tmp_path, monkeypatch)
    with pytest.raises(ProgramUnavailableError) as caught:
        spice([["a kite"]], {"a": ["a kite"]})
    assert "needs stanford-corenlp-3.6.0.jar and stanford-corenlp-3.6.0-models.jar" in str(caught.value)
    assert f"the JavaScript engine that Java 15 removed, and {java} is Java 17.0.15" in str(caught.value)
    for name in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
        (tmp_path / "spice" / "lib" / name).touch()
    with pytest.raises(ProgramUnavailableError, match=r"^SPICE writes its results"):
        spice([["a kite"]], {"a": ["a kite"]})


def test_spice_reads_what_the_program_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser's models are not at hand: a stand-in writes a result in SPICE's layout, null where F is undefined."""
    (tmp_path / "spice" / "lib").mkdir(parents=True)
    for name in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar", "nashorn-core-15.4.jar"):
        (tmp_path / "spice" / "lib" / name).touch()
    (tmp_path / "spice" / "spice-1.0.jar").touch()
    monkeypatch.setattr(caption_programs, "_package_file", lambda *names: tmp_path.joinpath(*names))
    # not in the order of the images: SPICE's result is read by image_id
    result = json.dumps([{"image_id": i, "scores": {"All": {"f": f}}} for i, f in ((1, None), (0, 0.25))])
    version = VERSION.replace("11.0.2", "17.0.15")
    java_that(
        f"{version}echo \"$@\" > '{tmp_path}/arguments'\nprintf '%s' '{result}' > output.json", tmp_path, monkeypatch
    )
    mean, per_image = spice([["a kite"], ["a tractor"]], {"a": ["kite", "barn"]})["a"]
    assert np.isnan(mean)
    np.testing.assert_array_equal(per_image, [0.25, np.nan])
    arguments = (tmp_path / "arguments").read_text()
    assert "--add-opens=java.base/java.math=ALL-UNNAMED" in arguments
    assert "nashorn-core-15.4.jar edu.anu.spice.SpiceScorer input.json -cache cache" in arguments
    with pytest.raises(ProgramUnavailableError, match="no readable result"):
        spice([["a kite"]] * 3, {"a": ["kite"] * 3})

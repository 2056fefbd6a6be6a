"""WordNet's files, and DataComp's text-based filter on them."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from curation_assets.core.settings import load_profile
from curation_assets.engines import ModelUnavailableError, load_engine, resolve_address
from curation_assets.engines.addresses import DEBIAN_DATA
from curation_assets.methods import get_method
from curation_assets.methods.datacomp_text import parse_wordnet_ids
from curation_assets.scoring.parameters import with_parameters
from curation_assets.scoring.samples import score_samples
from tests.support.tiny_wordnet import write_wordnet

PROFILE = load_profile("embedded")
DEBIAN = Path(DEBIAN_DATA["wordnet-base"][0])
needs_debian = pytest.mark.skipif(not (DEBIAN / "data.noun").is_file(), reason="needs the Debian package wordnet-base")


def engine(address: str) -> Any:
    return load_engine("wordnet", PROFILE.with_roles(wordnet=address))


def test_senses_are_read_by_word_and_by_offset(tmp_path: Path) -> None:
    offsets = write_wordnet(tmp_path)
    wordnet = engine(f"path:{tmp_path}")
    dog = wordnet.synsets("Dogs")[0]
    assert (dog.offset, dog.pos, dog.words, dog.topic) == (offsets["n", "dog"], "n", ("dog",), 5)
    assert wordnet.synset(dog.hypernyms[0]).words == ("animal", "beast")
    assert wordnet.synsets("geese", "n")[0].words == ("goose",)
    assert wordnet.synsets("wolves", "n")[0].words == ("wolf",)
    rome = wordnet.synsets("Rome")[0]
    assert rome.hypernyms == ()
    assert wordnet.synset(rome.instance_of[0]).words == ("city",)
    assert wordnet.synsets("Ada Stone")[0].words == ("Ada_Stone",)
    assert [one.pos for one in wordnet.synsets("run")] == ["n", "v"]
    assert [one.pos for one in wordnet.synsets("running")] == []  # run + ing is doubled: morphy knows no such rule
    assert wordnet.synsets("waving", "v")[0].words == ("wave",)
    assert wordnet.synsets("dog,") == []
    with pytest.raises(ValueError, match="no sense at offset 7"):
        wordnet.synset(7)


def test_a_folder_without_the_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "x.txt").write_text("x")
    with pytest.raises(ValueError, match=r"lacks data\.noun"):
        engine(f"path:{tmp_path / 'empty'}")
    with pytest.raises(ValueError, match="known packages are wordnet-base"):
        resolve_address("debian:wordnet")


def test_an_absent_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(DEBIAN_DATA, "wordnet-base", (str(tmp_path), "data.noun"))
    with pytest.raises(ModelUnavailableError, match="apt-get install wordnet-base"):
        resolve_address("debian:wordnet-base")


@needs_debian
def test_the_real_dictionary() -> None:
    wordnet = engine("debian:wordnet-base")
    assert wordnet.synsets("dog")[0].offset == 2084071  # n02084071, as in ImageNet
    assert wordnet.synset(wordnet.synsets("Los Angeles")[0].instance_of[0]).words[0] == "city"
    assert wordnet.synsets("geese")[0].words == ("goose",)
    assert wordnet.synsets("running")[0].pos == "n"
    assert wordnet.synsets("Italian", "a")[0].words[0] == "Italian"
    assert wordnet.synsets("qzxv") == []


def test_text_filter_takes_first_senses_of_a_list(tmp_path: Path) -> None:
    offsets = write_wordnet(tmp_path / "wordnet")
    (tmp_path / "ids.txt").write_text(f"n{offsets['n', 'dog']:08d}\n\nn{offsets['n', 'run']:08d}\n")
    profile = PROFILE.with_roles(wordnet=f"path:{tmp_path / 'wordnet'}")
    method = get_method("datacomp_text")
    roles = {role: load_engine(role, profile) for role in method.roles}
    texts = [
        "the dogs are here in the garden",
        "the dog, is here in the garden",
        "they run through the garden",
        "der Hund ist hier dog",
    ]
    samples = pl.DataFrame({"sample_id": [f"{i:032x}" for i in range(4)], "caption": texts})
    scored = score_samples(with_parameters(method, wordnet_ids=str(tmp_path / "ids.txt")), samples, roles)
    assert scored["value"].to_list() == [1, 0, 1, 0]
    assert scored["rule"].to_list() == [None, "no_listed_word", None, "not_english"]
    assert scored["word"].to_list() == ["dogs", None, "run", None]
    without = score_samples(method, samples, roles)
    assert without["reason"].unique().to_list() == ["no_wordnet_ids"]


def test_ids_must_look_like_ids() -> None:
    assert parse_wordnet_ids({"line": ["n02084071", "00001740"]}) == {2084071, 1740}
    with pytest.raises(ValueError, match="such as n02084071"):
        parse_wordnet_ids({"line": ["dog"]})
    with pytest.raises(ValueError, match="got 'none'"):
        parse_wordnet_ids({"line": []})

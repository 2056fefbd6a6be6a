"""Complexity and Action: the three readings on hand-parsed captions, the shipped parser on real ones."""

import json
from dataclasses import replace

import pytest

from curation_assets.core.roles import Parser
from curation_assets.core.settings import load_profile
from curation_assets.engines import ModelUnavailableError, load_engine, resolve_address
from curation_assets.engines.addresses import WEIGHTS_ROOT
from curation_assets.methods import get_method
from curation_assets.numeric.complexity_action import MODES, complexity_action_of
from curation_assets.numeric.dependency import Token
from tests.support.paths import shared

WEIGHTS = WEIGHTS_ROOT / "parser"
PROFILE = load_profile("embedded")

# By hand, Universal Dependencies: (text, pos, tag, dep, head)
RED_SHOE = [Token("red", "ADJ", "JJ", "amod", 1), Token("shoe", "NOUN", "NN", "ROOT", 1)]
CAT = [
    Token("a", "DET", "DT", "det", 2),
    Token("black", "ADJ", "JJ", "amod", 2),
    Token("cat", "NOUN", "NN", "nsubj", 3),
    Token("chases", "VERB", "VBZ", "ROOT", 3),
    Token("a", "DET", "DT", "det", 6),
    Token("small", "ADJ", "JJ", "amod", 6),
    Token("bird", "NOUN", "NN", "obj", 3),
]
HOTEL = [
    Token("the", "DET", "DT", "det", 2),
    Token("Sunflower", "PROPN", "NNP", "compound", 2),
    Token("Hotel", "PROPN", "NNP", "ROOT", 2),
]
MAN_RUNNING = [Token("man", "NOUN", "NN", "ROOT", 0), Token("running", "VERB", "VBG", "acl", 0)]
LONE_NOUN = [Token("dog", "NOUN", "NN", "ROOT", 0)]
# the same relation in spaCy's own labels: dog –prep→ on –pobj→ grass
ON_GRASS_UD = [
    Token("dog", "NOUN", "NN", "ROOT", 0),
    Token("on", "ADP", "IN", "case", 2),
    Token("grass", "NOUN", "NN", "nmod", 0),
]
ON_GRASS_SPACY = [
    Token("dog", "NOUN", "NN", "ROOT", 0),
    Token("on", "ADP", "IN", "prep", 0),
    Token("grass", "NOUN", "NN", "pobj", 1),
]


@pytest.mark.parametrize(
    ("mode", "tokens", "complexity", "actions"),
    [
        ("radenovic", RED_SHOE, 1, 0),
        ("radenovic", CAT, 2, 1),  # cat: black, and subject of chases
        ("radenovic", HOTEL, 0, 0),  # the is a determiner, Sunflower part of the name
        ("radenovic", MAN_RUNNING, 1, 1),
        ("radenovic", LONE_NOUN, 0, 0),
        ("radenovic", ON_GRASS_UD, 1, 0),
        ("radenovic", ON_GRASS_SPACY, 1, 0),
        ("fondant", RED_SHOE, 1, 0),
        ("fondant", CAT, 2, 1),  # chases: cat, bird
        ("fondant", HOTEL, 2, 0),  # determiners count
        ("fondant", MAN_RUNNING, 1, 0),  # no nsubj
        ("datajuicer", RED_SHOE, 1, 0),  # shoe: red
        ("datajuicer", CAT, 3, 1),  # cat and bird: head, determiner, adjective
        ("datajuicer", MAN_RUNNING, 1, 1),
        ("datajuicer", LONE_NOUN, 0, 0),  # a root without dependents has no edge
        ("radenovic", [], 0, 0),
        ("fondant", [], 0, 0),
        ("datajuicer", [], 0, 0),
    ],
)
def test_hand_parsed_captions(mode, tokens, complexity, actions):
    assert complexity_action_of(tokens, mode) == (complexity, actions)


def test_one_bare_entity_fails_datajuicers_all():
    tokens = [*CAT, Token("dog", "NOUN", "NN", "ROOT", 7)]
    assert complexity_action_of(tokens, "datajuicer").complexity == 0
    assert complexity_action_of(tokens, "radenovic").complexity == 2


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match="mode must be one of radenovic, fondant, datajuicer"):
        complexity_action_of(CAT, "cat")
    with pytest.raises(ValueError, match="value must be"):
        get_method("complexity_action").function(caption=["red shoe"], parser=None, value="rank")


def test_complexity_ranks_what_passes():
    method = get_method("complexity_action")
    columns = {"caption": ["red shoe", "a black cat chases a small bird"]}
    values = method.function(**columns, **method.example.roles, value="complexity")
    assert values.value.tolist() == [0.0, 2.0]
    assert values.details == {"complexity": [1, 2], "action_count": [0, 1]}
    loose = method.function(**columns, **method.example.roles, min_actions=0)
    assert loose.value.tolist() == [1.0, 1.0]


# --- the shipped parser ---


@pytest.fixture(scope="module")
def parser():
    return load_engine("parser", PROFILE)


def test_the_parser_fills_its_role(parser):
    assert isinstance(parser, Parser)
    assert parser.parse_texts([]) == []
    assert parser.parse_texts(["", " \n"]) == [[], []]
    tokens = parser.parse_texts(["a black cat\n chases  a small bird"])[0]
    assert [token.text for token in tokens] == ["a", "black", "cat", "chases", "a", "small", "bird"]
    assert all(0 <= token.head < len(tokens) for token in tokens)


@pytest.mark.parametrize(
    ("caption", "passes"),
    [
        ("red shoe", 0.0),
        ("a black cat chases a small bird", 1.0),
        ("the Sunflower Hotel", 0.0),
        ("A man running on the beach", 1.0),
        ("two dogs are playing in the snow", 1.0),
        ("a photo of a red car", 0.0),
    ],
)
def test_hand_cases_with_the_shipped_parser(parser, caption, passes):
    values = get_method("complexity_action").function(caption=[caption], parser=parser)
    assert values.value.tolist() == [passes], parser.parse_texts([caption])


@pytest.mark.parametrize("mode", MODES)
def test_a_value_ignores_its_neighbours(parser, mode):
    captions = ["red shoe", "A man is riding a horse.", "", "the Sunflower Hotel", "BUY NOW!!!", "猫", "a " * 300]
    whole = get_method("complexity_action").function(caption=captions, parser=parser, mode=mode)
    alone = [get_method("complexity_action").function(caption=[c], parser=parser, mode=mode) for c in captions]
    assert [v.value[0] for v in alone] == pytest.approx(whole.value.tolist(), nan_ok=True)


def test_real_captions_mostly_act(parser):
    pl = pytest.importorskip("polars")
    path = shared("captions/flickr8k_captions.parquet")
    captions = pl.read_parquet(path)["caption"].head(300).to_list()
    share = {m: get_method("complexity_action").function(captions, parser, mode=m).value.mean() for m in MODES}
    assert share["radenovic"] > 0.8  # Flickr8k was collected to show people and dogs doing things
    assert share["fondant"] < share["radenovic"]


def test_the_card_tells_the_accuracy_of_the_shipped_files():
    meta = json.loads((WEIGHTS / "meta.json").read_text())
    assert meta["lang"] == "en"
    assert not [path.name for path in WEIGHTS.rglob("*") if path.suffix in (".pkl", ".pickle", ".bin.pkl")]
    assert sum(path.stat().st_size for path in WEIGHTS.rglob("*") if path.is_file()) < 12e6


@pytest.mark.slow
def test_treebank_accuracy_is_what_the_card_says():
    path = shared("treebank")
    from lab.parser import evaluate, read_treebank

    manifest = json.loads((WEIGHTS.parent / "manifest.json").read_text())["models"]["parser"]
    noted = manifest["stages"]["parser"]["test"]
    measured = evaluate(WEIGHTS, read_treebank(path, "test")[:300])
    for name in ("tag_acc", "pos_acc", "dep_uas", "dep_las"):
        assert measured[name] > noted[name] - 0.03, name  # the first 300 of 2,077 sentences


def test_other_addresses(tmp_path):
    profile = PROFILE.with_roles(parser="spacy:no_such_pipeline")
    with pytest.raises(ModelUnavailableError, match="no installed package 'no_such_pipeline'"):
        load_engine("parser", profile)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/readme.txt").write_text("nothing")
    with pytest.raises(ValueError, match=r"holds no config\.cfg"):
        load_engine("parser", PROFILE.with_roles(parser=f"path:{tmp_path / 'empty'}"))


def test_a_pipeline_without_a_parser_is_refused(tmp_path):
    import spacy

    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(ValueError, match="sets no POS, TAG, DEP"):
        load_engine("parser", PROFILE.with_roles(parser=f"path:{tmp_path / 'blank'}"))


def test_an_installed_pipeline_package_is_found(tmp_path, monkeypatch):
    folder = tmp_path / "en_tiny" / "en_tiny-1.0.0"
    folder.mkdir(parents=True)
    (tmp_path / "en_tiny/__init__.py").write_text("")
    for source in WEIGHTS.rglob("*"):
        target = folder / source.relative_to(WEIGHTS)
        target.mkdir(parents=True, exist_ok=True) if source.is_dir() else target.write_bytes(source.read_bytes())
    monkeypatch.syspath_prepend(str(tmp_path))
    address = resolve_address("spacy:en_tiny")
    assert (address.revision, address.folder) == ("en_tiny-1.0.0", folder)
    engine = load_engine("parser", replace(PROFILE, roles={"parser": "spacy:en_tiny"}))
    assert [token.pos for token in engine.parse_texts(["dogs run"])[0]] == ["NOUN", "VERB"]

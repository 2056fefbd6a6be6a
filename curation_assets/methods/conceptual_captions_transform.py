"""Conceptual Captions, text transformation: names become what they name; what is left must still be a description."""

from collections.abc import Mapping

import numpy as np

from curation_assets.core.roles import Parser, Synset, Texts, Wordnet
from curation_assets.methods import Columns, Example, FileSetting, Method, Values
from curation_assets.numeric.conceptual_captions.boilerplate import crop_boilerplate
from curation_assets.numeric.conceptual_captions.transformation import Kind, Meaning, transform
from curation_assets.numeric.dependency import Token

PLACES, PEOPLE, TIMES = 15, 18, 28  # lexicographer files of WordNet
#: What an entity of an OntoNotes label is, where neither the list nor WordNet knows the name.
OF_LABEL = {
    "PERSON": Meaning("person", "thing"),
    "GPE": Meaning("place", "place"),
    "LOC": Meaning("place", "place"),
    "FAC": Meaning("building", "place"),
}
#: Forms of address whose first sense in WordNet is no person.
TITLES = ("mr", "mr.", "mrs", "mrs.", "ms", "ms.", "dr", "dr.", "queen")


def conceptual_captions_transform(
    caption: Texts,
    parser: Parser,
    wordnet: Wordnet,
    entities: Mapping[str, str] | None = None,
    min_words: int = 3,
) -> Values:
    """1 where a caption can be rephrased without names, dates and places, else 0. Sharma et al. 2018 §3; formulas.md
    §7.4.

    What a name stands for is looked up in `entities` (setting `entities_file`: columns name, hypernym; case ignored),
    then among WordNet's instances, without its first words where the whole is unknown ("Miss World Priyanka Chopra" →
    "Priyanka Chopra"). Of a parser with an entity recogniser (`spacy:`) the label decides which of WordNet's senses
    count, and what a name is that WordNet lacks ("person"); a title makes one a person. A name that is still unknown
    drops the caption, unless it only describes a noun or states where, when or by whom. Details: text (transformed,
    lower-case), concepts (its nouns, which the corpus-level count reads), rule, rule_value, rule_about.
    """
    known = {name.lower(): noun for name, noun in (entities or {}).items()}
    transformed = [
        transform(
            tokens,
            lambda name, label: _meaning(name, label, known, wordnet),
            is_common=lambda word: _is_common(word, known, wordnet),
            is_proper_adjective=lambda word: _is_proper_adjective(word, wordnet),
            noun_lemma=lambda word: _noun_lemma(word, wordnet),
            is_listed=lambda text: text.lower() in known,
            min_words=min_words,
        )
        for tokens in parser.parse_texts([crop_boilerplate(text) for text in caption])
    ]
    drops = [result.drop for result in transformed]
    return Values.of(
        np.array([float(drop is None) for drop in drops]),
        text=[result.text for result in transformed],
        concepts=[result.concepts for result in transformed],
        rule=[None if drop is None else drop.rule for drop in drops],
        rule_value=[None if drop is None else float(drop.value) for drop in drops],
        rule_about=[None if drop is None else drop.about for drop in drops],
    )


def _meaning(name: str, label: str | None, entities: Mapping[str, str], wordnet: Wordnet) -> Meaning | None:
    """`label`: OntoNotes label of the entity, "" for no entity, None where the parser recognises none."""
    words = name.split()
    for start in range(len(words)):
        rest = " ".join(words[start:])
        if rest.lower() in entities:
            return Meaning(entities[rest.lower()], _kind_of_noun(entities[rest.lower()], wordnet))
        if label == "PERSON" and 0 < start == len(words) - 1:
            break  # a family name alone is somebody else's
        for sense in wordnet.synsets(rest, "n"):
            if sense.topic == TIMES and not label:
                return Meaning(_shown(sense), "time")
            if sense.instance_of and (not label or _fits(sense, label, wordnet)):
                return Meaning(
                    _shown(wordnet.synset(sense.instance_of[0])), "place" if sense.topic == PLACES else "thing"
                )
    if label == "" and len(words) > 1 and _is_title(words[0], wordnet):
        return OF_LABEL["PERSON"]
    return OF_LABEL.get(label or "")


def _fits(sense: Synset, label: str, wordnet: Wordnet) -> bool:
    """Whether a single thing of WordNet may be an entity of that label."""
    if label == "PERSON":
        return sense.topic == PEOPLE
    return sense.topic == PLACES or (label == "FAC" and sense.topic != PEOPLE)


def _is_title(word: str, wordnet: Wordnet) -> bool:
    """Whether a word is a title of persons: "Miss", "President"."""
    senses = wordnet.synsets(word, "n")
    return word.lower() in TITLES or (bool(senses) and senses[0].topic == PEOPLE and not senses[0].instance_of)


def _kind_of_noun(noun: str, wordnet: Wordnet) -> Kind:
    senses = wordnet.synsets(noun, "n")
    topic = senses[0].topic if senses else None
    if topic == PLACES:
        return "place"
    return "time" if topic == TIMES else "thing"


def _shown(sense: Synset) -> str:
    return sense.words[0].replace("_", " ")


def _is_common(word: str, entities: Mapping[str, str], wordnet: Wordnet) -> bool:
    """Whether the word's first sense as a noun is no single thing and no date ("Kite" in a title)."""
    senses = [] if word.lower() in entities else wordnet.synsets(word, "n")
    return bool(senses) and not senses[0].instance_of and senses[0].topic != TIMES and senses[0].words[0].islower()


def _is_proper_adjective(word: str, wordnet: Wordnet) -> bool:
    senses = wordnet.synsets(word, "a")
    return bool(senses) and senses[0].words[0][:1].isupper()


def _noun_lemma(word: str, wordnet: Wordnet) -> str:
    senses = wordnet.synsets(word, "n")
    forms = {lemma.lower().replace("_", " ") for sense in senses for lemma in sense.words}
    return word if not senses or word in forms else min(forms, key=lambda form: (-_shared(form, word), form))


def _shared(form: str, word: str) -> int:
    """Letters with which both begin."""
    return next((i for i, (a, b) in enumerate(zip(form, word, strict=False)) if a != b), min(len(form), len(word)))


def parse_entities(columns: Columns) -> dict[str, str]:
    """Name → what it is. Raises ValueError for other columns."""
    if not {"name", "hypernym"} <= set(columns):
        raise ValueError(f"entities need the columns name and hypernym, got {sorted(columns)}")
    return dict(zip(columns["name"], columns["hypernym"], strict=True))


class _ExampleParser:
    """Every word hangs on the last one; capitals are names; 'in' makes a phrase with its noun."""

    def parse_texts(self, texts: Texts) -> list[list[Token]]:
        return [self._parse(text.split()) for text in texts]

    def _parse(self, words: list[str]) -> list[Token]:
        heads = {"crowd at a concert in Paris": [0, 3, 3, 0, 5, 3], "Zyx Zyxel waves her red hat": [2, 0, 2, 5, 5, 2]}
        head_of = heads.get(" ".join(words), [len(words) - 1] * len(words))
        tags = {"a": ("DET", "det"), "in": ("ADP", "case"), "at": ("ADP", "case"), "waves": ("VERB", "ROOT")}
        return [
            Token(word, *_tagged(tags.get(word, ("PROPN" if word[0].isupper() else "NOUN", "nmod"))), head)
            for word, head in zip(words, head_of, strict=True)
        ]


def _tagged(pair: tuple[str, str]) -> tuple[str, str, str]:
    return pair[0], "NN", pair[1]


class _ExampleWordNet:
    """Paris is a city."""

    def synsets(self, word: str, pos: str = "nvar") -> list[Synset]:
        if "n" not in pos or word.lower() not in ("paris", "concert", "crowd", "hat", "car"):
            return []
        is_paris = word.lower() == "paris"
        return [Synset(1, "n", (word,), PLACES if is_paris else 6, (), (2,) if is_paris else ())]

    def synset(self, offset: int, pos: str = "n") -> Synset:
        return Synset(offset, "n", ("city",), PLACES, (), ())


METHOD = Method(
    function=conceptual_captions_transform,
    unit="1 passes, 0 does not",
    bounds=(0.0, 1.0),
    source="Conceptual Captions (Sharma et al. 2018) §3, text transformation with hypernymization; formulas.md §7.4",
    blank_caption="empty_caption",
    summary="1 where the caption can be written without names, dates and places, else 0.",
    no_planted_kind="no planted caption holds names, dates or places with a name",
    file_settings={"entities_file": FileSetting("entities", parse_entities)},
    example=Example(
        columns={"caption": ["crowd at a concert in Paris", "Zyx Zyxel waves her red hat", "Paris car"]},
        value=[1.0, 0.0, 0.0],  # "crowd at a concert"; Zyx Zyxel is unknown; "car" alone is too short
        roles={"parser": _ExampleParser(), "wordnet": _ExampleWordNet()},
    ),
)

"""The role parser: a spaCy pipeline with tagger and dependency parser, and its entity recogniser if any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curation_assets.core.roles import ModelIdentity, Texts
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.batches import unique_texts
from curation_assets.engines.needs import RoleNeeds
from curation_assets.numeric.dependency import Token

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Token as SpacyToken

NEEDS = RoleNeeds(package="spacy", extra="texts")
#: Parts of larger pipelines whose output is not used.
UNUSED_PIPES = ("lemmatizer", "textcat", "textcat_multilabel", "entity_linker", "entity_ruler", "senter")


class SpacyEngine:
    """Tags and trees of texts; repeated texts are parsed once."""

    def __init__(self, identity: ModelIdentity, nlp: Language, batch_size: int) -> None:
        self.identity = identity
        self.nlp = nlp
        self.batch_size = batch_size
        self.has_entities = nlp.has_pipe("ner")

    def parse_texts(self, texts: Texts) -> list[list[Token]]:
        """(N,) strings → N lists of tokens; a blank text has none. Runs of white space are one blank."""
        distinct, inverse = unique_texts([" ".join(text.split()) for text in texts])
        parsed = [
            [Token(token.text, token.pos_, token.tag_, token.dep_, token.head.i, self._entity(token)) for token in doc]
            for doc in self.nlp.pipe(distinct, batch_size=self.batch_size)
        ]
        return [parsed[i] for i in inverse]

    def _entity(self, token: SpacyToken) -> str | None:
        if not self.has_entities:
            return None
        return f"{token.ent_iob_}-{token.ent_type_}" if token.ent_type_ else ""


def load(request: EngineRequest) -> SpacyEngine:
    """embedded:parser, path:/folder of a saved pipeline, or spacy:NAME of an installed one.

    Raises ValueError for a pipeline that sets no part of speech, tag or dependency.
    """
    import spacy

    folder = local_folder(request.address)
    if not (folder / "config.cfg").is_file():
        raise ValueError(f"{request.address.text}: {folder} holds no config.cfg; the role parser takes spaCy pipelines")
    nlp = spacy.load(folder, exclude=UNUSED_PIPES)
    probe = nlp("A dog runs.")
    missing = [name for name in ("POS", "TAG", "DEP") if not probe.has_annotation(name)]
    if missing:
        raise ValueError(
            f"{request.address.text}: this spaCy pipeline sets no {', '.join(missing)}; it has the parts "
            f"{nlp.pipe_names} and the role parser needs a tagger and a parser"
        )
    return SpacyEngine(request.identity, nlp, request.batch_size)

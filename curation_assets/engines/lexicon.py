"""The role lexicon: word frequencies (wordfreq), polarity (VADER) and profanity (a word list)."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from curation_assets.core.roles import ModelIdentity, Texts
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import PACKAGE_MODELS, ModelAddress, local_folder
from curation_assets.engines.needs import Companions, Resolve, RoleNeeds
from curation_assets.stores.text_tables import each_line

LISTS = {"polarity": "embedded:vader", "profanity": "embedded:better-profanity"}


def companions(address: ModelAddress, settings: Mapping[str, Any], resolve: Resolve) -> Companions:
    """`polarity` and `profanity`: the settings' addresses (null: none), else the shipped lists."""
    named = {part: settings.get(part, shipped) for part, shipped in LISTS.items()}
    return {part: resolve(text) for part, text in named.items() if text is not None}


NEEDS = RoleNeeds(settings=tuple(LISTS), companions=companions, package="wordfreq", extra="texts")

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")


class LexiconEngine:
    """English only. Nothing here looks at context, so a value depends on its own word or text alone."""

    def __init__(self, identity: ModelIdentity, profane: frozenset[str]) -> None:
        """`profane`: lower-case words and phrases, words separated by one blank."""
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

        self.identity = identity
        self.profane = profane
        self.longest = max((phrase.count(" ") + 1 for phrase in profane), default=0)  # words
        self.analyzer = SentimentIntensityAnalyzer()

    def zipf_frequencies(self, words: Texts) -> np.ndarray:
        """(N,) words → (N,) Zipf frequency: log10 of occurrences per 10⁹ words; 0 for a word not listed."""
        return np.array([_zipf(word) for word in words], dtype=np.float64)

    def polarities(self, texts: Texts) -> np.ndarray:
        """(N,) texts → (N,) VADER's compound score in [-1, 1] (Hutto & Gilbert 2014), 0 neutral."""
        return np.array([self.analyzer.polarity_scores(text)["compound"] for text in texts], dtype=np.float64)

    def profanities(self, texts: Texts) -> list[list[str]]:
        """(N,) texts → per text the listed words and phrases it holds, in order, as whole words."""
        return [self._profanities(text) for text in texts]

    def _profanities(self, text: str) -> list[str]:
        words = [word.lower().replace("’", "'") for word in WORD.findall(text)]
        spans = (
            " ".join(words[start : start + length])
            for start in range(len(words))
            for length in range(1, min(self.longest, len(words) - start) + 1)
        )
        return [span for span in spans if span in self.profane]


@lru_cache(maxsize=200_000)
def _zipf(word: str) -> float:
    from wordfreq import zipf_frequency

    return zipf_frequency(word, "en", wordlist="large")


def read_word_list(path: Path) -> frozenset[str]:
    """Lower-case words and phrases of a text file, one a line, blank lines left out.

    Raises ValueError for a file without any.
    """
    entries = frozenset(" ".join(word.lower() for word in WORD.findall(line)) for line in each_line(path)) - {""}
    if not entries:
        raise ValueError(f"{path}: expected one word or phrase a line, got none")
    return entries


def load(request: EngineRequest) -> LexiconEngine:
    """embedded:wordfreq with VADER; profanity from better-profanity's list, or the settings' `profanity: path:/file`.

    `profanity: null` looks for none. Raises ValueError for another word-frequency address: wordfreq reads its own.
    """
    if request.address.text != "embedded:wordfreq":
        raise ValueError(f"the role lexicon takes embedded:wordfreq, got {request.address.text!r}")
    named = request.companions.get("profanity")
    return LexiconEngine(request.identity, frozenset() if named is None else read_word_list(_word_file(named)))


def _word_file(address: ModelAddress) -> Path:
    path = local_folder(address)
    if path.is_file():
        return path
    if address.name in PACKAGE_MODELS:
        return path / PACKAGE_MODELS[address.name][2]
    raise ValueError(f"profanity must name a text file (path:/words.txt), got {address.text!r}")

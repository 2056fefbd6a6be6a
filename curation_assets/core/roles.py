"""The roles that models play, as contracts: what a method may call on a model, whichever engine implements it.

Pure: no torch here. Engines (`curation_assets/engines/`) fill these roles; methods are handed them.
Shapes: N inputs, D embedding width, R captions per image.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from curation_assets.numeric.dependency import Token
from curation_assets.numeric.text_masking import TextBox

Images = Sequence[Image.Image]  # RGB
Texts = Sequence[str]


@dataclass(frozen=True)
class ModelIdentity:
    """Which model answered: enough to find it again and to notice that it changed."""

    address: str  # as written in the profile, e.g. "embedded:clip" or "hub:org/name@revision"
    revision: str  # commit, tag or "shipped"
    weights_sha256: str  # sha256 over the sorted (file name, file sha256) list of the weights


@dataclass(frozen=True)
class PhotoVector:
    """A photograph that was found instead of drawn: its place in the joint space of an image–text encoder."""

    vector: np.ndarray  # (D,) float32, unit length
    encoder_sha256: str  # weights of the encoder whose space it is


class Engine(Protocol):
    """Whatever answers a model question."""

    identity: ModelIdentity


@runtime_checkable
class ImageTextEncoder(Engine, Protocol):
    """CLIP: images and captions in one space."""

    def embed_images(self, images: Images) -> np.ndarray:
        """(N,) RGB images → (N, D) float32, unit length."""
        ...

    def embed_texts(self, texts: Texts) -> np.ndarray:
        """(N,) strings → (N, D) float32, unit length, truncated to the model's context."""
        ...


@runtime_checkable
class PatchEncoder(Protocol):
    """What an image–text encoder may offer besides: how it sees the parts of an image."""

    def embed_patches(self, images: Images) -> np.ndarray:
        """(N,) RGB images, at least one → (N, T, D) float32, a state per patch (and class token)."""
        ...


@runtime_checkable
class Captioner(Engine, Protocol):
    """Image → sampled captions, what SIEVE compares. A caption depends on its own image and seed only."""

    def sample_captions(self, images: Images, seeds: Sequence[int], count: int) -> list[list[str]]:
        """Nucleus sampling (SIEVE §3; generation settings from the profile): N lists of `count` captions."""
        ...


@runtime_checkable
class BeamCaptioner(Engine, Protocol):
    """Image → the captions of a beam search, what VBA compares. A caption depends on its own image only."""

    def beam_captions(self, images: Sequence[Any], beams: int) -> list[list[str]]:
        """Beam search, all beams returned, best first (ICC §4.1): N lists of `beams` captions.

        `images`: RGB images, or what the profile's text_to_image hands on (`PhotoVector`).
        """
        ...


@runtime_checkable
class TextToImage(Engine, Protocol):
    """Caption → image (the V of VBA)."""

    def generate_images(self, captions: Texts, seeds: Sequence[int]) -> Sequence[Any]:
        """One RGB image (or `PhotoVector`) per caption; image i depends on (captions[i], seeds[i]) only."""
        ...


@runtime_checkable
class SemanticDecoder(Engine, Protocol):
    """Caption → CLIP text vector → language model → caption (the S of SBA)."""

    def reconstruct_captions(self, captions: Texts) -> list[list[str]]:
        """N lists of beams, best first; a list depends on its own caption only."""
        ...


@runtime_checkable
class SentenceEncoder(Engine, Protocol):
    """Sentence embeddings."""

    def embed_sentences(self, sentences: Texts) -> np.ndarray:
        """(N,) strings → (N, D) float32, unit length."""
        ...


@runtime_checkable
class TextSimilarity(Engine, Protocol):
    """Similarity of a reconstruction with its caption (BERTScore F1 by default)."""

    def similarity(self, candidates: Texts, references: Texts) -> np.ndarray:
        """Pairwise (not all-against-all): (N,), (N,) → (N,) float64 in [-1, 1]; an empty candidate scores 0."""
        ...


@runtime_checkable
class Student(Engine, Protocol):
    """The distilled concreteness regressor."""

    def score_captions(self, captions: Texts) -> np.ndarray:
        """(N,) captions → (N,) float64, nominally in [0, 1], not clipped (formulas.md §1.1)."""
        ...


@runtime_checkable
class Parser(Engine, Protocol):
    """Part-of-speech tags, a dependency tree and, of some engines, named entities of every caption."""

    def parse_texts(self, texts: Texts) -> list[list[Token]]:
        """(N,) strings → N lists of tokens; a blank text has none. A list depends on its own text only."""
        ...


@runtime_checkable
class LanguageIdentifier(Engine, Protocol):
    """Which language a text is in."""

    def identify_languages(self, texts: Texts) -> tuple[list[str], np.ndarray]:
        """(N,) strings → (N,) ISO 639 codes of the likeliest language, and (N,) its probability in [0, 1]."""
        ...


@runtime_checkable
class Lexicon(Engine, Protocol):
    """What is known of English words: how frequent, how polar, how profane."""

    def zipf_frequencies(self, words: Texts) -> np.ndarray:
        """(N,) words → (N,) log10 of occurrences per 10⁹ words; 0 for a word that the list lacks."""
        ...

    def polarities(self, texts: Texts) -> np.ndarray:
        """(N,) texts → (N,) sentiment in [-1, 1], 0 neutral."""
        ...

    def profanities(self, texts: Texts) -> list[list[str]]:
        """(N,) texts → per text the profane words and phrases it holds, in order."""
        ...


@runtime_checkable
class WordVectors(Engine, Protocol):
    """Static word vectors (GloVe)."""

    def word_vectors(self, words: Texts) -> tuple[np.ndarray, np.ndarray]:
        """(N,) words → (N, D) float64 vectors as stored (zeros where unknown), and (N,) bool: is it known?"""
        ...


@dataclass(frozen=True)
class Detection:
    """One object found in an image."""

    label: str  # as the detector's vocabulary writes it; "stop sign,stopsign" lists synonyms
    score: float  # in [0, 1]
    box: tuple[float, float, float, float] | None = None  # left, top, right, bottom in pixels; None: unknown


@runtime_checkable
class ObjectDetector(Engine, Protocol):
    """Which objects an image shows."""

    def detect_objects(self, images: Images) -> list[list[Detection]]:
        """(N,) RGB images → N lists, best first, above the threshold of the engine's settings."""
        ...


@runtime_checkable
class TextSpotter(Engine, Protocol):
    """Text in images, detected and read (OCR)."""

    def spot_text(self, images: Images) -> list[list[TextBox]]:
        """(N,) RGB images → N lists of boxes in pixels of the image. A list depends on its own image only."""
        ...


@runtime_checkable
class PairEncoder(Engine, Protocol):
    """One vector of an image and a caption together: what a reward model reads."""

    def embed_pairs(self, images: Images, captions: Texts) -> np.ndarray:
        """(N,) RGB images, (N,) strings → (N, D) float32, not normalised."""
        ...


@runtime_checkable
class RewardModel(Engine, Protocol):
    """How much people would like this caption for this image, learned from their rankings."""

    def reward_pairs(self, images: Images, captions: Texts) -> np.ndarray:
        """(N,), (N,) → (N,) float64, unbounded; comparable within one trained model only."""
        ...


@dataclass(frozen=True)
class Synset:
    """One sense: a set of words that mean the same."""

    offset: int  # byte offset in the data file; with the part of speech it names the sense (n02084071)
    pos: str  # n, v, a or r
    words: tuple[str, ...]  # underscores for blanks
    topic: int  # number of the lexicographer's file: 15 places, 18 people, 28 times
    hypernyms: tuple[int, ...]  # offsets of what this is a kind of
    instance_of: tuple[int, ...]  # offsets of what this single thing is one of: a city, an actor


@runtime_checkable
class Wordnet(Engine, Protocol):
    """Princeton's WordNet: senses of English words."""

    def synsets(self, word: str, pos: str = "nvar") -> list[Synset]:
        """Senses of a word, also of what it is an inflection of, most frequent first, one part of speech after another.

        Case is ignored, blanks are underscores. An unknown word has none.
        """
        ...

    def synset(self, offset: int, pos: str = "n") -> Synset:
        """The sense at an offset. Raises ValueError where there is none."""
        ...

    def lemmas(self, pos: str = "nvar") -> list[str]:
        """All words that have a sense of these parts of speech, in lower case, blanks for underscores, sorted."""
        ...


@runtime_checkable
class SceneBank(Engine, Protocol):
    """Captions of drawable scenes that a caption is compared with: a visual bottleneck without parameters."""

    def nearest_scenes(self, captions: Texts, k: int) -> tuple[list[list[str]], np.ndarray]:
        """(N,) captions → N lists of the k nearest scenes, nearest first, and (N, k) cosines in [-1, 1].

        A bank with fewer than k scenes gives all it has.
        """
        ...


@runtime_checkable
class SentenceBottleneck(Engine, Protocol):
    """Caption → embedding → a narrow code → embedding: a semantic bottleneck that writes no text."""

    def reconstruct_embeddings(self, captions: Texts) -> tuple[np.ndarray, np.ndarray]:
        """(N,) captions → (N, D) embeddings and (N, D) their reconstructions, neither the zero vector."""
        ...


@runtime_checkable
class SafetyClassifier(Engine, Protocol):
    """Is an image unsafe for work? docs/operator/safety.md describes how to fill the role."""

    def unsafe_probabilities(self, images: Images) -> np.ndarray:
        """(N,) RGB images → (N,) float64 in [0, 1]; 1 is unsafe. A value depends on its own image only."""
        ...


@runtime_checkable
class KindClassifier(Engine, Protocol):
    """What kind of image it is."""

    kinds: tuple[str, ...]  # K names, "photo" among them

    def kind_probabilities(self, images: Images) -> np.ndarray:
        """(N,) RGB images → (N, K) float64 in [0, 1], rows sum to 1. A row depends on its own image only."""
        ...


@runtime_checkable
class AestheticHead(Engine, Protocol):
    """How people would rate the looks of an image, from its CLIP embedding. No head is shipped (formulas.md
    §14.3)."""

    def aesthetic_scores(self, images: Images) -> np.ndarray:
        """(N,) RGB images → (N,) float64, nominally 1 to 10, not clipped. A value depends on its own image only."""
        ...


@runtime_checkable
class QualityJudge(Engine, Protocol):
    """How good a pair is, by a multimodal language model. None is shipped (formulas.md §15.10)."""

    def judge_pairs(self, images: Images, captions: Texts) -> np.ndarray:
        """(N,) RGB images, (N,) strings → (N,) float64 on the judge's own scale; NaN where it gave no number."""
        ...


@runtime_checkable
class CopyDescriptor(Engine, Protocol):
    """What an image shows, so that copies of it are near: cropped, filtered, written upon. None is shipped
    (docs/models/sscd.md)."""

    def describe_images(self, images: Images) -> np.ndarray:
        """(N,) images → (N, D) float32, unit length. A vector depends on its own image only."""
        ...


@runtime_checkable
class HyperbolicTextEncoder(Engine, Protocol):
    """Captions and reference images in one hyperbolic space (MERU, HYPE). None is shipped (formulas.md §15.12)."""

    curvature: float  # c > 0
    reference_images: np.ndarray  # (R, D) float32 tangent vectors at the origin

    def embed_texts(self, texts: Texts) -> np.ndarray:
        """(N,) strings → (N, D) float32 tangent vectors at the origin, not normalised."""
        ...


#: role name → contract: every protocol above under its own name, ImageTextEncoder as image_text_encoder. The names are
#: the keys of a profile, the parameter names of a method function and the files in engines/.
ROLES: dict[str, type] = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", contract.__name__).lower(): contract for contract in Engine.__subclasses__()
}

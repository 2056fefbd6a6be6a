"""The role word_vectors: a file in GloVe's text format, GloVe of a package, or MiniLM on single words as a stand-in."""

import gzip
import mmap
from pathlib import Path

import numpy as np

from curation_assets.core.roles import ModelIdentity, SentenceEncoder, Texts, WordVectors
from curation_assets.engines import EngineRequest, sentence_encoder
from curation_assets.engines.addresses import local_folder
from curation_assets.engines.needs import FOLDER_SCHEMES, RoleNeeds
from curation_assets.engines.packages import pinned_files
from curation_assets.stores.parquet import read_parquet

NEEDS = RoleNeeds(
    schemes=(*FOLDER_SCHEMES, "glove"),
    how_to_get=(
        "Rao et al. read GloVe 840B, glove.840B.300d.txt of nlp.stanford.edu/projects/glove (2 GB, unpacked 5.6 GB); "
        "name the file: roles: {word_vectors: 'path:/folder/glove.840B.300d.txt'}"
    ),
)


class VectorFile:
    """Vectors of a text file: a word and its numbers a line (a first line `count width`, as fastText writes, is fine).

    Only the offset of each line is kept in memory; numbers are read when a word is looked up. GloVe 840B (2.2 M words)
    so costs a scan of the file and an index, not 2.6 GB. Of a word listed twice the first line counts.
    """

    def __init__(self, identity: ModelIdentity, path: Path) -> None:
        """Raises ValueError for a file whose lines are not a word and numbers."""
        self.identity = identity
        self.path = path
        if path.stat().st_size == 0:
            raise ValueError(f"{path}: the file of word vectors is empty")
        with open(path, "rb") as stream:
            is_packed = path.suffix == ".gz"
            self.data: bytes | mmap.mmap = (
                gzip.decompress(stream.read()) if is_packed else mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            )
        start = 0
        first = self.data[: self._line_end(0)].split()
        if len(first) == 2:
            start = self._line_end(0) + 1
            first = self.data[start : self._line_end(start)].split()
        self.width = len(first) - 1
        if self.width < 2:
            raise ValueError(f"{path}: expected a word and its vector a line, got {bytes(self.data[:80])!r}")
        self.offsets: dict[str, int] = {}
        while start < len(self.data):
            end = self._line_end(start)
            blank = self.data.find(b" ", start, end)
            if blank > start:
                self.offsets.setdefault(bytes(self.data[start:blank]).decode("utf-8", "replace"), start)
            start = end + 1

    def _line_end(self, start: int) -> int:
        end = self.data.find(b"\n", start)
        return len(self.data) if end < 0 else end

    def word_vectors(self, words: Texts) -> tuple[np.ndarray, np.ndarray]:
        """(N,) words → (N, D) float64, zeros where unknown, and (N,) bool. The surface form, else lower case.

        Raises ValueError for a line that does not hold `width` numbers.
        """
        vectors = np.zeros((len(words), self.width))
        known = np.zeros(len(words), dtype=bool)
        for i, word in enumerate(words):
            start = self.offsets.get(word, self.offsets.get(word.lower()))
            if start is None:
                continue
            numbers = bytes(self.data[start : self._line_end(start)]).split(b" ")[1:]
            try:
                vector = np.array([float(number) for number in numbers if number.strip()])
            except ValueError:
                vector = np.zeros(0)
            if vector.shape != (self.width,):
                raise ValueError(
                    f"{self.path}: the vector of {word!r} is not {self.width} numbers but "
                    f"{bytes(self.data[start : start + 60])!r}; repair the line"
                )
            vectors[i], known[i] = vector, True
        return vectors, known


class VectorTable:
    """Vectors of a .npy array, read from the disk as they are looked up; words in a Parquet column `index`.

    The shipped GloVe of 400,000 words is all in lower case.
    """

    def __init__(self, identity: ModelIdentity, vectors: Path, words: Path) -> None:
        """Raises ValueError where there are not as many words as vectors."""
        self.identity = identity
        self.vectors = np.load(vectors, mmap_mode="r", allow_pickle=False)  # (V, D)
        listed = read_parquet(words, columns=["index"])["index"].to_list()
        if len(listed) != len(self.vectors):
            raise ValueError(f"{words} lists {len(listed)} words, {vectors} holds {len(self.vectors)} vectors")
        self.rows = {word: row for row, word in reversed(list(enumerate(listed)))}  # of a word listed twice the first

    def word_vectors(self, words: Texts) -> tuple[np.ndarray, np.ndarray]:
        """(N,) words → (N, D) float64, zeros where unknown, and (N,) bool. The surface form, else lower case."""
        rows = [self.rows.get(word, self.rows.get(word.lower(), -1)) for word in words]
        known = np.array([row >= 0 for row in rows], dtype=bool)
        vectors = np.zeros((len(words), self.vectors.shape[1]))
        vectors[known] = self.vectors[[row for row in rows if row >= 0]]
        return vectors, known


class SentenceWords:
    """A sentence encoder applied to single words. Known is what its vocabulary holds as one piece.

    A stand-in where no vector file is at hand: similarities are those of a sentence model, not GloVe's, so values are
    comparable among themselves and not with the paper's.
    """

    def __init__(self, identity: ModelIdentity, encoder: SentenceEncoder, vocabulary: frozenset[str]) -> None:
        self.identity = identity
        self.encoder = encoder
        self.vocabulary = vocabulary
        self.width = encoder.embed_sentences(["word"]).shape[1]
        self.cache: dict[str, np.ndarray] = {}  # at most one entry per word of the vocabulary

    def word_vectors(self, words: Texts) -> tuple[np.ndarray, np.ndarray]:
        """(N,) words → (N, D) float64, zeros where unknown, and (N,) bool. In lower case."""
        lowered = [word.lower() for word in words]
        known = np.array([word in self.vocabulary for word in lowered], dtype=bool)
        new = sorted({word for word in lowered if word in self.vocabulary and word not in self.cache})
        for word, vector in zip(new, self.encoder.embed_sentences(new), strict=True):
            # rounded, because the last bits of a vector depend on which words shared its batch
            self.cache[word] = np.round(vector.astype(np.float64), 5)
        vectors = np.zeros((len(words), self.width))
        for i in np.flatnonzero(known):
            vectors[i] = self.cache[lowered[i]]
        return vectors, known


def load(request: EngineRequest) -> WordVectors:
    """path:/vectors.txt (or .vec, .gz, or a folder with one such file); glove:6b-50d; embedded:minilm is a stand-in.

    Raises ValueError for a folder that holds no or several vector files.
    """
    if request.address.scheme == "glove":
        files = pinned_files(request.address.scheme, request.address.name)
        return VectorTable(
            request.identity,
            next(path for path in files.values() if path.suffix == ".npy"),
            next(path for path in files.values() if path.suffix == ".parquet"),
        )
    source = local_folder(request.address)
    if source.is_file():
        return VectorFile(request.identity, source)
    if request.address.text == "embedded:minilm":
        vocabulary = frozenset(word for word in (source / "vocab.txt").read_text(encoding="utf-8").split("\n") if word)
        whole_words = frozenset(word for word in vocabulary if word.isalpha())
        return SentenceWords(request.identity, sentence_encoder.load(request), whole_words)
    found = sorted(path for path in source.glob("*") if path.suffix in (".txt", ".vec", ".gz"))
    if len(found) != 1:
        raise ValueError(
            f"{request.address.text}: expected one .txt, .vec or .gz of word vectors in {source}, got {len(found)}"
        )
    return VectorFile(request.identity, found[0])

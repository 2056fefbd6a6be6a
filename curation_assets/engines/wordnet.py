"""The role wordnet: Princeton's dictionary files as they are distributed (formats wndb(5), morphy(7))."""

import mmap
from functools import cached_property, lru_cache
from pathlib import Path

from curation_assets.core.roles import ModelIdentity, Synset
from curation_assets.engines import EngineRequest
from curation_assets.engines.addresses import local_folder

FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
#: Endings that inflections have, and what stands in their place, in morphy's order.
ENDINGS: dict[str, tuple[tuple[str, str], ...]] = {
    "n": (
        ("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"),
        ("men", "man"), ("ies", "y"),
    ),
    "v": (("s", ""), ("ies", "y"), ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", "")),
    "a": (("er", ""), ("est", ""), ("er", "e"), ("est", "e")),
    "r": (),
}  # fmt: skip


class _PartOfSpeech:
    """Index, data and exceptions of one part of speech, read at the first look-up."""

    def __init__(self, folder: Path, pos: str) -> None:
        self.pos = pos
        self.paths = {kind: folder / f"{kind}.{FILES[pos]}" for kind in ("index", "data")}
        self.exception_path = folder / f"{FILES[pos]}.exc"

    @cached_property
    def index(self) -> dict[str, tuple[int, ...]]:
        """Word → offsets of its senses, most frequent first."""
        offsets = {}
        for line in self.paths["index"].read_text(encoding="utf-8").splitlines():
            if line and not line.startswith(" "):  # the licence is indented
                word, _, count, *rest = line.split()
                offsets[word] = tuple(int(offset) for offset in rest[-int(count) :])
        return offsets

    @cached_property
    def exceptions(self) -> dict[str, list[str]]:
        """Irregular form → base forms."""
        if not self.exception_path.is_file():
            return {}
        lines = (line.split() for line in self.exception_path.read_text(encoding="utf-8").splitlines())
        return {form: bases for form, *bases in (line for line in lines if line)}

    @cached_property
    def data(self) -> mmap.mmap:
        with open(self.paths["data"], "rb") as stream:
            return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)

    def base_forms(self, word: str) -> list[str]:
        """The forms that the index holds: the word itself and what it may be an inflection of."""

        def shortened(forms: list[str]) -> list[str]:
            return [
                form[: len(form) - len(old)] + new
                for form in forms
                for old, new in ENDINGS[self.pos]
                if form.endswith(old)
            ]

        def known(forms: list[str]) -> list[str]:
            return [form for form in dict.fromkeys(forms) if form in self.index]

        if word in self.exceptions:
            return known([word, *self.exceptions[word]])
        forms = shortened([word])
        bases = known([word, *forms])
        while forms and not bases:
            forms = shortened(forms)
            bases = known(forms)
        return bases

    def read(self, offset: int) -> Synset:
        """The sense at an offset. Raises ValueError where no line of the data file begins with that number."""
        end = self.data.find(b"\n", offset)
        line = self.data[offset:end].decode("utf-8") if 0 <= offset < len(self.data) else ""
        fields = line.partition("|")[0].split()
        if not fields or fields[0] != f"{offset:08d}":
            raise ValueError(f"{self.paths['data']}: no sense at offset {offset}")
        word_count = int(fields[3], 16)
        pointers = fields[4 + 2 * word_count :]
        targets: dict[str, list[int]] = {}
        for field in range(1, 1 + 4 * int(pointers[0]), 4):
            targets.setdefault(pointers[field], []).append(int(pointers[field + 1]))
        return Synset(
            offset,
            self.pos,
            tuple(fields[4 : 4 + 2 * word_count : 2]),
            int(fields[1]),
            tuple(targets.get("@", ())),
            tuple(targets.get("@i", ())),
        )


class WordNetFiles:
    """Senses by word and by offset; offsets are those of the installed version (ImageNet's ids: 3.0)."""

    def __init__(self, identity: ModelIdentity, folder: Path) -> None:
        self.identity = identity
        self.parts = {pos: _PartOfSpeech(folder, pos) for pos in FILES}
        self.synsets_of = lru_cache(maxsize=100_000)(self._synsets)

    def synsets(self, word: str, pos: str = "nvar") -> list[Synset]:
        """Senses of a word and of its base forms, nouns, verbs, adjectives, adverbs in turn; none if unknown.

        The order is that of NLTK's `synsets`, so the first one is what DataComp's text filter looks up.
        """
        return list(self.synsets_of(word.lower().replace(" ", "_"), pos))

    def _synsets(self, word: str, pos: str) -> tuple[Synset, ...]:
        return tuple(
            self.parts[part].read(offset)
            for part in pos
            for form in self.parts[part].base_forms(word)
            for offset in self.parts[part].index[form]
        )

    def synset(self, offset: int, pos: str = "n") -> Synset:
        """The sense at an offset. Raises ValueError where there is none."""
        return self.parts[pos].read(offset)

    def lemmas(self, pos: str = "nvar") -> list[str]:
        """All words of the indexes of these parts of speech, sorted, each once."""
        return sorted({word.replace("_", " ") for part in pos for word in self.parts[part].index})


def load(request: EngineRequest) -> WordNetFiles:
    """debian:wordnet-base, or path:/folder with data.*, index.* and *.exc.

    Raises ValueError for a folder that lacks some of them.
    """
    folder = local_folder(request.address)
    missing = [
        f"{kind}.{name}"
        for name in FILES.values()
        for kind in ("data", "index")
        if not (folder / f"{kind}.{name}").is_file()
    ]
    if missing:
        raise ValueError(f"{request.address.text}: {folder} lacks {', '.join(missing)} of WordNet's dictionary files")
    return WordNetFiles(request.identity, folder)

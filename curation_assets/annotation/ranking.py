"""Ranking an image's captions by hand: best first, ties allowed; one image's ranks are appended at once."""

from collections.abc import Sequence
from pathlib import Path

from curation_assets.annotation.ratings_log import AnswersLog, is_storable

HEADER = ("image", "caption", "rank", "rater", "time")
#: Of judgements of single captions: rating 1 is GOOD, 0 is BAD.
JUDGEMENT_HEADER = ("image", "caption", "rating", "rater", "time")
#: The four criteria of Compress & Align in the order in which they decide (formulas.md §9.1), in our words.
CRITERIA: dict[str, str] = {
    "accuracy": "says nothing that the image contradicts, invents nothing",
    "completeness": "names the main things in the image",
    "vividness": "says of them how many, how they look, what they do, how they stand to each other",
    "context": "tells place and mood",
}


def parse_order(typed: str, count: int) -> list[int]:
    """Ranks of `count` captions from an order such as "b a=d c": b 1, a and d 2, c 4.

    Raises ValueError unless every letter stands in it once.
    """
    groups = [group.split("=") for group in typed.lower().replace(" =", "=").replace("= ", "=").split()]
    letters = [letter for group in groups for letter in group]
    expected = [chr(ord("a") + i) for i in range(count)]
    if sorted(letters) != expected:
        raise ValueError(f"expected each of {', '.join(expected)} once, got {typed!r}")
    ranks, rank = [0] * count, 1
    for group in groups:
        for letter in group:
            ranks[ord(letter) - ord("a")] = rank
        rank += len(group)
    return ranks


class RankingLog(AnswersLog):
    """A ranking file (`rankings.read_rankings` reads it), open for appending."""

    def __init__(self, path: Path, header: Sequence[str] = HEADER) -> None:
        """Raises ValueError where `path` is a file of another kind."""
        super().__init__(path, header, "ranking")

    def ranked_by(self, rater: str) -> list[tuple[str, str]]:
        """(image, caption) that a rater has ranked, oldest first."""
        lines = (line.split("\t") for line in self.path.read_text(encoding="utf-8").split("\n")[1:])
        ranked = ((cells[0], cells[1]) for cells in lines if len(cells) == len(HEADER) and cells[3] == rater)
        return list(dict.fromkeys(ranked))

    def append(self, image: str, captions: Sequence[str], ranks: Sequence[int], rater: str) -> None:
        """Write all captions of one image and make them last; later ranks of an image replace earlier ones.

        Raises ValueError for texts that do not fit the file.
        """
        for text in (image, *captions):
            if not is_storable(text):
                raise ValueError(f"a ranking file holds texts of one line without tabs, got {text!r}")
        self.write(rater, *((image, text, str(rank), rater) for text, rank in zip(captions, ranks, strict=True)))

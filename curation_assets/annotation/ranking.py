"""Ranking an image's captions by hand: best first, ties allowed; one image's ranks are appended at once."""

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from curation_assets.annotation.ratings_log import check_rater, is_storable
from curation_assets.stores.atomic import write_text_atomically

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
KEYS = "type the letters best first, = between equals, such as  b a=d c  · s skip · q quit"


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


class RankingLog:
    """A ranking file (`rankings.read_rankings` reads it), open for appending. What is there is kept."""

    def __init__(self, path: Path, header: Sequence[str] = HEADER) -> None:
        """Raises ValueError where `path` is a file of another kind."""
        self.path = path
        if not path.exists() or path.stat().st_size == 0:
            write_text_atomically(path, "\t".join(header) + "\n")
        first = path.read_text(encoding="utf-8").split("\n", 1)[0]
        if first.split("\t") != list(header):
            raise ValueError(f"{path} is no ranking file: expected the header {' '.join(header)}, got {first[:80]!r}")
        self._drop_cut_line()

    def _drop_cut_line(self) -> None:
        """Cut off what a killed writer left of a line: no caller was given it as written."""
        data = self.path.read_bytes()
        if not data.endswith(b"\n"):
            os.truncate(self.path, data.rfind(b"\n") + 1)

    def ranked_by(self, rater: str) -> dict[str, set[str]]:
        """Image → its captions that a rater has ranked, the image ranked first in front."""
        by_image: dict[str, set[str]] = {}
        for line in self.path.read_text(encoding="utf-8").split("\n")[1:]:
            cells = line.split("\t")
            if len(cells) == len(HEADER) and cells[3] == rater:
                by_image.setdefault(cells[0], set()).add(cells[1])
        return by_image

    def left_for(self, rater: str, candidates: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, Sequence[str]]]:
        """Images of which a rater has not ranked every caption, in the candidates' order."""
        done = self.ranked_by(rater)
        return [(image, captions) for image, captions in candidates if set(captions) - done.get(image, set())]

    def append(self, image: str, captions: Sequence[str], ranks: Sequence[int], rater: str) -> None:
        """Write all captions of one image and make them last; later ranks of an image replace earlier ones.

        Raises ValueError for texts that do not fit the file.
        """
        check_rater(rater)
        for text in (image, *captions):
            if not is_storable(text):
                raise ValueError(f"a ranking file holds texts of one line without tabs, got {text!r}")
        time = datetime.now(UTC).isoformat(timespec="seconds")
        lines = [f"{image}\t{text}\t{rank}\t{rater}\t{time}\n" for text, rank in zip(captions, ranks, strict=True)]
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write("".join(lines))
            stream.flush()
            os.fsync(stream.fileno())


def rank_in_terminal(
    candidates: Sequence[tuple[str, Sequence[str]]],
    rater: str,
    log: RankingLog,
    console: Console,
    ask: Callable[[], str],
) -> int:
    """Ask for an order of every image's captions until all are ranked or the rater quits; how many were ranked.

    `candidates`: (image, its captions). `ask` returns one typed line and raises EOFError at the end.
    """
    console.print("[bold]Which caption is better? The first criterion that tells two apart decides.[/]")
    for number, (name, meaning) in enumerate(CRITERIA.items(), start=1):
        console.print(f"  {number}. {name}: {meaning}", highlight=False, markup=False)
    console.print(KEYS, style="dim", highlight=False, markup=False)
    waiting, count = log.left_for(rater, candidates), 0
    for position, (image, captions) in enumerate(waiting, start=1):
        console.print(Text(f"\n{position}/{len(waiting)}  open {image}", style="bold"))
        for letter, text in zip("abcdefghijklmnopqrstuvwxyz", captions, strict=False):
            console.print(f"  {letter}  {text}", highlight=False, markup=False)
        while True:
            try:
                typed = ask().strip()
            except EOFError:
                return count
            if typed in ("q", "s"):
                break
            try:
                log.append(image, captions, parse_order(typed, len(captions)), rater)
            except ValueError as error:
                console.print(str(error), highlight=False, markup=False)
                continue
            count += 1
            break
        if typed == "q":
            return count
    return count

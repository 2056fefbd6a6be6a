"""A few senses in the format of WordNet's dictionary files (wndb(5)), written with true byte offsets."""

from pathlib import Path

HEADER = "".join(f"  {number} a licence stands here, indented\n" for number in range(1, 4))
#: pos → (words, lexicographer file, pointers by first word of the target: '@' kind of, '@i' one of)
SENSES: dict[str, list[tuple[tuple[str, ...], int, dict[str, str]]]] = {
    "n": [
        (("entity",), 3, {}),
        (("animal", "beast"), 5, {"@": "entity"}),
        (("dog",), 5, {"@": "animal"}),
        (("goose",), 5, {"@": "animal"}),
        (("wolf",), 5, {"@": "animal"}),
        (("city",), 15, {"@": "entity"}),
        (("actor",), 18, {"@": "entity"}),
        (("Rome",), 15, {"@i": "city"}),
        (("Ada_Stone",), 18, {"@i": "actor"}),
        (("kite",), 6, {"@": "entity"}),
        (("crowd",), 14, {"@": "entity"}),
        (("January",), 28, {"@": "entity"}),
        (("run",), 4, {"@": "entity"}),
        (("girl", "miss"), 18, {"@": "entity"}),
    ],
    "v": [(("run",), 38, {}), (("wave",), 38, {})],
    "a": [(("red",), 0, {}), (("Roman",), 1, {})],
    "r": [(("fast",), 2, {})],
}
NAMES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}


def write_wordnet(folder: Path) -> dict[tuple[str, str], int]:
    """Writes data, index and exception files; (pos, first word in lower case) → offset."""
    folder.mkdir(parents=True, exist_ok=True)
    offsets: dict[tuple[str, str], int] = {}
    for pos, senses in SENSES.items():
        place = len(HEADER)
        for words, topic, pointers in senses:  # lines have the same length whatever the offsets are
            offsets[pos, words[0].lower()] = place
            place += len(_line(0, pos, words, topic, dict.fromkeys(pointers, 0)))
        data = "".join(
            _line(
                offsets[pos, words[0].lower()], pos, words, topic, {p: offsets[pos, to] for p, to in pointers.items()}
            )
            for words, topic, pointers in senses
        )
        index: dict[str, list[int]] = {}
        for words, _, _ in senses:
            for word in words:
                index.setdefault(word.lower(), []).append(offsets[pos, words[0].lower()])
        lines = [
            f"{word} {pos} {len(found)} 1 @ {len(found)} 0 {' '.join(f'{one:08d}' for one in found)}  \n"
            for word, found in sorted(index.items())
        ]
        (folder / f"data.{NAMES[pos]}").write_text(HEADER + data)
        (folder / f"index.{NAMES[pos]}").write_text(HEADER + "".join(lines))
    (folder / "noun.exc").write_text("geese goose\n")
    return offsets


def _line(offset: int, pos: str, words: tuple[str, ...], topic: int, pointers: dict[str, int]) -> str:
    said = " ".join(f"{word} 0" for word in words)
    led = "".join(f" {symbol} {target:08d} {pos} 0000" for symbol, target in pointers.items())
    return f'{offset:08d} {topic:02d} {pos} {len(words):02x} {said} {len(pointers):03d}{led} | a gloss; "said so"  \n'

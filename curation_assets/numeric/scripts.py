"""Which script a text is written in."""


def is_of_another_script(text: str) -> bool:
    """Whether fewer than half of a text's letters are Latin: what letters alone can tell of its language."""
    if text.isascii():
        return False
    letters = [letter for letter in text if letter.isalpha()]
    # Latin letters, with or without marks, end at U+024F; those beyond (Vietnamese) lie from U+1E00 to U+1EFF
    latin = sum(letter <= "\u024f" or "\u1e00" <= letter <= "\u1eff" for letter in letters)
    return 2 * latin < len(letters)

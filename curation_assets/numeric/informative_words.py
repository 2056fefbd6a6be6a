"""Words of a caption that may say something: placeholders, file names, emoji and repeated words do not count."""

import string

_PLACEHOLDERS = """
alt avatar background badge banner button caption cover default description dsc dscf dscn figure graphic header home
icon image images img link logo null photo photograph photos pic picture pictures placeholder preview screenshot
text thumbnail title undefined untitled
"""
#: Words that name the picture itself or a part of a page, not what is in the picture. They count where a caption has
#: more than FEW words.
PLACEHOLDERS = frozenset(_PLACEHOLDERS.split())
FILE_ENDINGS = (".avif", ".bmp", ".gif", ".heic", ".jpeg", ".jpg", ".png", ".svg", ".tif", ".tiff", ".webp")
FEW, MOST = 3, 10  # words
EDGES = string.punctuation + "“”‘’…"


def informative_words(caption: str) -> int:
    """Distinct words that hold a letter and name no image file, at most MOST; where there are no more than FEW, without
    PLACEHOLDERS.

    'dog dog' → 1, 'logo' → 0, 'IMG_2031' → 0, 'red-dog.jpg' → 0, 'a photo of two dogs' → 5.
    """
    words: set[str] = set()
    for token in caption.lower().split():
        word = token.strip(EDGES)
        if any(map(str.isalpha, word)) and not word.endswith(FILE_ENDINGS):
            words.add(word)
            if len(words) == MOST:
                return MOST
    if len(words) > FEW:
        return len(words)
    return sum("".join(filter(str.isalpha, word)) not in PLACEHOLDERS for word in words)

"""Texts that move a terminal's cursor, turn its direction or forge a line."""

import re

#: What no command may print, but as it is made visible; line feeds and tabs are looked at apart.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
FORGED = "kept by every policy"  # would begin a line
HOSTILE = [
    "a red car\x1b[31m parked \x1b]0;title\x07 in the street",
    "a cat \u202eeht no\u202c mat, \u2066and\u2069 a \u200fdog",
    "a horse \x9b31m in a \x90field\x9c",
    f"a brown dog\n{FORGED}\r{FORGED}\nin the snow",
    f"a wall\x85{FORGED}\u2028{FORGED}\u2029{FORGED}\x0b{FORGED}\x0c{FORGED}",
    "a boat\x00 on\x08 the\x7f lake",
]

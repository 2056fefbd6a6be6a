"""Personal data in captions: addresses and numbers that single out a person."""

import re
from collections.abc import Mapping

import numpy as np

from curation_assets.core.roles import Texts
from curation_assets.methods import Columns, Example, FileSetting, Method, Values
from curation_assets.numeric.personal_data import personal_data as kinds_of


def read_patterns(columns: Columns) -> dict[str, str]:
    """kind → regular expression, from a table with these columns. Raises ValueError for another, or a bad pattern."""
    if not {"kind", "pattern"} <= set(columns):
        raise ValueError(f"a table of patterns needs the columns kind and pattern, got {sorted(columns)}")
    for pattern in columns["pattern"]:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"pattern {pattern!r} is no regular expression: {error}") from error
    return dict(zip(columns["kind"], columns["pattern"], strict=True))


def personal_data(caption: Texts, patterns: Mapping[str, str] | None = None) -> Values:
    """1 where no personal data is found, else 0. Detail: kinds (email, phone_number, …), never the data itself.

    Patterns only: names and postal addresses are not found. The setting `path` names a table of further patterns
    (columns kind, pattern), which is where a user's own detector goes.
    """
    kinds = [kinds_of(text, patterns) for text in caption]
    return Values.of(np.array([float(not listed) for listed in kinds]), kinds=[", ".join(listed) for listed in kinds])


METHOD = Method(
    function=personal_data,
    unit="1 none found, 0 some",
    bounds=(0.0, 1.0),
    source="this project: patterns with Luhn's check for cards and ISO 13616's for IBANs",
    summary="1 where the caption has no e-mail address, telephone, card or account number, else 0.",
    no_planted_kind="no planted caption holds personal data",
    file_settings={"path": FileSetting("patterns", read_patterns)},
    example=Example(
        columns={"caption": ["a red kite", "write to ann@example.org", "card 4111 1111 1111 1111", "no. 4111 1111"]},
        value=[1.0, 0.0, 0.0, 1.0],
    ),
)

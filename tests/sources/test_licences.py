"""Licences as SPDX identifiers."""

import pytest

from curation_assets.sources.licences import spdx_of


@pytest.mark.parametrize(
    "text",
    [
        "cc-by-4.0",
        "CC-BY-4.0",
        " CC BY 4.0 ",
        "cc_by_4.0",
        "by-4.0",
        "https://creativecommons.org/licenses/by/4.0/",
        "http://www.creativecommons.org/licenses/by/4.0/legalcode",
    ],
)
def test_one_licence_has_one_identifier(text: str) -> None:
    assert spdx_of(text) == "cc-by-4.0"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CC0", "cc0-1.0"),
        ("https://creativecommons.org/publicdomain/zero/1.0/", "cc0-1.0"),
        ("http://creativecommons.org/licenses/by-sa/3.0/at/", "cc-by-sa-3.0-at"),
        ("https://creativecommons.org/licenses/by-nc/2.0/", "cc-by-nc-2.0"),
        ("MIT", "mit"),
        ("CC-BY-4.0 AND MIT", "cc-by-4.0 and mit"),
        ("NOASSERTION", None),
        ("All rights reserved", "All rights reserved"),
        ("4", "4"),
        ("((", "(("),
        ("https://creativecommons.org/licenses/by/", "https://creativecommons.org/licenses/by/"),
        ("x" * 5000, "x" * 5000),
        (None, None),
    ],
)
def test_what_is_no_licence_of_the_list_stays_as_it_is(text: str | None, expected: str | None) -> None:
    assert spdx_of(text) == expected


def test_a_page_speaks_where_the_name_is_none_of_the_list() -> None:
    page = "https://creativecommons.org/licenses/by/4.0/"
    assert spdx_of(None, page) == "cc-by-4.0"
    assert spdx_of("see the page", page) == "cc-by-4.0"
    assert spdx_of("mit", page) == "mit"
    assert spdx_of(None, "https://example.org/terms") is None

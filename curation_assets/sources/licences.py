"""Licences as people write them, as SPDX identifiers."""

import contextlib
import re
from functools import lru_cache

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from curation_assets.stores.web_addresses import canonical_url

_CREATIVE_COMMONS = re.compile(
    r"https?://(?:www\.)?creativecommons\.org/(?P<kind>licenses|publicdomain)/(?P<terms>[a-z+-]+)"
    r"(?:/(?P<version>\d\.\d))?(?:/(?P<port>[a-z]{2}(?=/|$)))?",
    re.IGNORECASE,
)
_VERSION = re.compile(r"(?<=[a-z0])(\d\.\d)$")
MAX_CHARACTERS = 64  # of an identifier
_CC0 = "cc0-1.0"


@lru_cache(maxsize=4096)
def spdx_of(text: str | None, url: str | None = None) -> str | None:
    """SPDX identifier in lower case of a licence's name or of its page; the text itself where it is none.

    'CC BY 4.0', 'cc-by-4.0' and 'https://creativecommons.org/licenses/by/4.0/' are cc-by-4.0. None without a text or a
    page that is known. (SPDX, the list in the package `packaging`.)
    """
    text = None if text == "NOASSERTION" else text  # SPDX's word for unknown
    for given in (text, url):
        found = None if given is None else _of_page(given) or (given is text and _of_name(given)) or None
        if found is not None:
            return found
    return text


def _of_page(url: str) -> str | None:
    with contextlib.suppress(ValueError):
        url = canonical_url(url)
    match = _CREATIVE_COMMONS.match(url.strip())
    if match is None:
        return None
    if match["kind"].lower() == "publicdomain":
        return _CC0 if match["terms"].lower() == "zero" else None
    parts = ["cc", match["terms"], match["version"] or "", match["port"] or ""]
    ported = _known("-".join(filter(None, parts)))
    return ported or _known("-".join(filter(None, parts[:3])))


def _of_name(text: str) -> str | None:
    if expression := _known(text.strip()):  # also of several: MIT AND CC-BY-4.0
        return expression
    name = re.sub(r"[\s_]+", "-", text.strip().lower())
    name = _VERSION.sub(r"-\1", name)  # cc-by4.0
    aliases = {"cc0": _CC0, "cc-0": _CC0, "cc-zero": _CC0, "cc0-1": _CC0, "apache-2": "apache-2.0"}
    return aliases.get(name) or _known(name) or (_known(f"cc-{name}") if name.startswith("by") else None)


def _known(name: str) -> str | None:
    if len(name) > MAX_CHARACTERS:
        return None
    try:
        return canonicalize_license_expression(name).lower()
    except (InvalidLicenseExpression, ValueError):
        return None

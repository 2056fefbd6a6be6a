"""One form of addresses, hosts and names, in which they are compared, limited, denied and counted.

By RFC 3986 §6.2.2 and the URL standard (https://url.spec.whatwg.org): what two spellings of one address share. It is no
address to ask (url_safety.py has those), and ids are made of addresses as they are (numeric/identity.py).
"""

import ipaddress
import re
import socket
import threading
import unicodedata
import urllib.parse
from functools import cache, lru_cache
from typing import NamedTuple

import idna
import polars as pl
from publicsuffixlist import PublicSuffixList

_MAX_HOST = 253  # characters
_PORTS = {"http": 80, "https": 443, "ftp": 21}
_BLANKS = "".join(map(chr, range(0x21)))
_LINE_BREAKS = str.maketrans("", "", "\t\r\n")  # browsers leave them out anywhere
_FINAL_DOTS = ".。．｡"  # what UTS 46 reads as a dot
_FEW_SLASHES = re.compile(rf"({'|'.join(_PORTS)}):[/\\]*", re.IGNORECASE)  # browsers take any number for two
NUMERIC_LABEL = re.compile(r"(0x[0-9a-f]*|[0-9]+)", re.IGNORECASE)
_UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")
#: Of what is written plainly, what stays so in path and query; in a query browsers encode an apostrophe.
_PATH_KEPT, _QUERY_KEPT = frozenset(b"!$&'()*+,;=:@/"), frozenset(b"!$&()*+,;=:@/?")
_HEX = r"%(?!2[DE]|3\d|4[1-9A-F]|5[\dAF]|6[1-9A-F]|7[\dAE])[\dA-F]{2}"  # of an octet that is not written plainly
#: Addresses that are in their one form; nine of ten are, and cost a tenth.
_IN_FORM = re.compile(
    r"https?://(?=[^/]{1,253}/)(?:[a-z0-9-]{1,63}\.)+[a-z]{2,63}"
    rf"(?:/(?:[\w~!$&'()*+,;=:@-]|{_HEX})(?:[\w.~!$&'()*+,;=:@-]++|{_HEX})*+)*+/?"
    rf"(?:\?(?:[\w.~!$&()*+,;=:@/?-]++|{_HEX})++)?",
    re.ASCII,
)


class Address(NamedTuple):
    """An address in parts, each in its one form."""

    scheme: str
    host: str  # an IPv6 address without brackets
    port: int | None  # None: the scheme's own
    path: str  # begins with /
    query: str

    @property
    def origin(self) -> str:
        """'https://example.org:8443'."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port is None else f":{self.port}")


def parsed_url(url: str) -> Address:
    """An address in parts, without user and fragment. Raises ValueError for what has no scheme, host or whole port."""
    text = _FEW_SLASHES.sub(r"\1://", url.translate(_LINE_BREAKS).strip(_BLANKS).partition("#")[0], count=1)
    before, _, query = text.partition("?")
    parts = urllib.parse.urlsplit(before.replace("\\", "/"))
    host = canonical_host(parts.hostname or "")
    if not parts.scheme or not host:
        raise ValueError(f"expected a URL such as https://host/path, got {url[:200]!r}")
    port = None if parts.port == _PORTS.get(parts.scheme) else parts.port
    path = without_dot_segments(one_escaping(parts.path, _PATH_KEPT))
    return Address(parts.scheme, host, port, path, one_escaping(query, _QUERY_KEPT))


def canonical_url(url: str) -> str:
    """The one form of an address. Raises what `parsed_url` raises."""
    if _IN_FORM.fullmatch(url):
        return url
    address = parsed_url(url)
    return address.origin + address.path + (f"?{address.query}" if address.query else "")


def is_same_url(left: str, right: str) -> bool:
    """Whether two texts are spellings of one address, or the same text."""
    try:
        return left == right or canonical_url(left) == canonical_url(right)
    except ValueError:
        return False


def without_dot_segments(path: str) -> str:
    """A path as browsers send it: `.` and `..` are resolved (RFC 3986 §5.2.4), also where a dot is written %2E."""
    kept: list[str] = []
    segments = path.removeprefix("/").split("/")
    for place, segment in enumerate(segments):
        dots = segment.replace("%2e", ".").replace("%2E", ".")
        if dots == "..":
            del kept[-1:]
        if dots not in (".", ".."):
            kept.append(segment)
        elif place == len(segments) - 1:
            kept.append("")
    return "/" + "/".join(kept)


def one_escaping(text: str, kept: frozenset[int]) -> str:
    """The text with one spelling of each octet: letters, digits and -._~ plain, octets of `kept` as
    they were written, all others as %XX in capitals (text that is not ASCII as UTF-8).
    """

    return _to_spell(kept).sub(_spelt, text.encode("utf-8", "surrogatepass")).decode("ascii")


@cache
def _to_spell(kept: frozenset[int]) -> re.Pattern[bytes]:
    """What may have to be written otherwise: %XX, and octets that do not stay plain."""
    return re.compile(rb"%([0-9A-Fa-f]{2})|([^" + re.escape(bytes(_UNRESERVED | kept)) + rb"])", re.DOTALL)


def _spelt(match: re.Match[bytes]) -> bytes:
    octet = int(match[1], 16) if match[1] else match[2][0]
    return bytes([octet]) if match[1] and octet in _UNRESERVED else b"%%%02X" % octet


# -- hosts ------------------------------------------------------------------------------------------------------------


def ascii_host(host: str) -> str:
    """A host name in ASCII, lower case, as it goes to the resolver: full-width digits and dots become plain ones.

    By UTS 46 as browsers have it, where ß stays a letter of its own. Raises ValueError for what is no host name.
    """
    if not host.isascii():
        mapped = idna.uts46_remap(host[: _MAX_HOST + 1], std3_rules=False, transitional=False)
        labels = [part if part.isascii() else f"xn--{part.encode('punycode').decode()}" for part in mapped.split(".")]
        host = ".".join(labels)
    if len(host.rstrip(".")) > _MAX_HOST:
        raise ValueError(f"a host name has at most {_MAX_HOST} characters")
    return host.encode("idna").decode("ascii").lower()  # an empty label, or one too long, is refused


@lru_cache(maxsize=4096)
def canonical_host(host: str) -> str:
    """The one form of a host: ASCII in lower case without its final dot, an address in its usual digits, one of IPv6
    without brackets. What is no host name is its text in lower case.
    """
    text = urllib.parse.unquote(host.strip().strip("[]")).rstrip(_FINAL_DOTS)
    if ":" in text:
        try:
            return str(ipaddress.IPv6Address(text))
        except ValueError:
            return text.lower()
    try:
        text = ascii_host(text)
        is_number = NUMERIC_LABEL.fullmatch(text.rpartition(".")[2])
        return socket.inet_ntoa(socket.inet_aton(text)) if is_number else text
    except (ValueError, OSError):
        return text.lower()


def host_and_port(text: str) -> tuple[str, int | None]:
    """'host' or 'host:port', an IPv6 host in brackets, in one form. Raises ValueError for another text."""
    parts = urllib.parse.urlsplit(f"//{text.strip()}")
    return canonical_host(parts.hostname or ""), parts.port


def host_of(url: str) -> str | None:
    """Host of a URL in its one form; None where it has none."""
    try:
        text = _FEW_SLASHES.sub(r"\1://", url.translate(_LINE_BREAKS).strip(_BLANKS), count=1).replace("\\", "/")
        return canonical_host(urllib.parse.urlsplit(text).hostname or "") or None
    except ValueError:
        return None


def hosts_of(url: pl.Expr) -> pl.Expr:
    """`host_of` each text of a column."""
    start = url.str.extract(r"^\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]*[^/\\?#]*", 0)  # there are few different ones
    return start.map_batches(_hosts, return_dtype=pl.String, is_elementwise=True)


def _hosts(starts: pl.Series) -> pl.Series:
    known = {start: host_of(start) for start in starts.drop_nulls().unique()}
    return starts.replace_strict(known, default=None, return_dtype=pl.String)


def domain_of(url: str) -> str | None:
    """Registered domain of a URL (img.shop.example.co.uk → example.co.uk) in its one form; an address stands for
    itself. None where the URL has no host.
    """
    host = host_of(url)
    return host if host is None or is_address(host) else str(_suffixes().privatesuffix(host) or host)


def is_address(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


_PARSING = threading.Lock()


def _suffixes() -> PublicSuffixList:
    with _PARSING:  # shards that are downloaded at once would each parse it
        return _parsed_suffixes()


@cache
def _parsed_suffixes() -> PublicSuffixList:
    return PublicSuffixList()


# -- names ------------------------------------------------------------------------------------------------------------


def canonical_name(name: str) -> str:
    """The one form of the name of a creator or source: without differences of case, blanks, composition and invisible
    characters; one that is an address as such. '' for a blank.
    """
    if "://" in name:
        try:
            return canonical_url(name)
        except ValueError:
            pass
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    visible = "".join(letter for letter in folded if unicodedata.category(letter) != "Cf")
    return " ".join(visible.split())

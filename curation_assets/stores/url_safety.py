"""Which addresses a download may touch: public web servers only, checked again at every redirect and connection.

A pool's URLs are written by strangers. Vetting the text is not enough: a redirect or a name server can point a
harmless-looking URL at this machine's own network afterwards (server-side request forgery, DNS rebinding). So the
connection itself (guarded_http.py) resolves the name once, checks every address, and connects to what it checked.
"""

import ipaddress
import re
import socket
import urllib.parse
from collections.abc import Sequence
from typing import Any

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_IPV4_COMPATIBLE = ipaddress.ip_network("::/96")
_NUMERIC_LABEL = re.compile(r"^(0x[0-9a-f]*|[0-9]+)$", re.IGNORECASE)
_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x20\x7f\\]")
#: Ports below 1024 other than these speak something else than HTTP (ssh, smtp, …).
LOW_PORTS = frozenset({80, 443})


class UrlRefused(ValueError):  # noqa: N818 - names what happened to the URL, as a reason does
    """A URL we will not open. `reason` is one short machine word."""

    def __init__(self, reason: str, url: str, expected: str) -> None:
        super().__init__(
            f"url_refused:{reason}: got {url[:200]!r}; expected {expected}; "
            "if the host is meant, name it in the pool's allow_hosts"
        )
        self.reason = reason


def is_public_address(text: str) -> bool:
    """Whether an IP address is one that is public on the internet.

    Addresses that carry an IPv4 address inside (mapped, compatible, 6to4, Teredo, NAT64) are as public as that one.
    """
    address = ipaddress.ip_address(text.split("%")[0])
    # A mapped or NAT64 address is only a way of writing (or reaching) the IPv4 address inside.
    is_wrapper = isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped is not None or address in _NAT64)
    if not is_wrapper and (
        not address.is_global or address.is_multicast or address.is_reserved or address.is_unspecified
    ):
        return False
    return all(is_public_address(str(inner)) for inner in _embedded_ipv4(address))


def _embedded_ipv4(address: Address) -> list[ipaddress.IPv4Address]:
    if isinstance(address, ipaddress.IPv4Address):
        return []
    inner_addresses = [inner for inner in (address.ipv4_mapped, address.sixtofour) if inner is not None]
    inner_addresses += list(address.teredo or ())
    if address in _NAT64 or address in _IPV4_COMPATIBLE:
        inner_addresses.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return inner_addresses


def is_allowed(host: str, port: int, allow_hosts: Sequence[str]) -> bool:
    """Exact match of host or host:port, case ignored; an IPv6 host is written in brackets."""
    shown = f"[{host}]" if ":" in host else host
    return any(entry.lower() in (shown.lower(), f"{shown.lower()}:{port}") for entry in allow_hosts)


def resolve_host(host: str, port: int) -> list[Any]:
    """What the name server answers, as socket.getaddrinfo gives it; it may take long."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def check_addresses(url: str, addresses: Sequence[Any]) -> None:
    """Refuse (UrlRefused) unless every address of a name is public."""
    for *_, socket_address in addresses:
        if not is_public_address(socket_address[0]):
            raise UrlRefused("private_address", url, f"a public address, but it resolves to {socket_address[0]}")


def vet_url(url: str, allow_hosts: Sequence[str] = (), *, resolve: bool = True) -> None:
    """Refuse a URL that is no plain public web address. `resolve=False` queries no name server.

    `allow_hosts`: 'host' or 'host:port' entries that may be private (a server of our own); their scheme and form
    are vetted all the same. Raises UrlRefused with reason malformed, scheme_not_allowed, userinfo, no_host,
    port_not_allowed, numeric_host_form, private_address or unresolvable_host.
    """
    if _FORBIDDEN_CHARACTERS.search(url):
        raise UrlRefused("malformed", url, "a URL without blanks, control characters or backslashes")
    try:
        parts = urllib.parse.urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").rstrip(".")
    except ValueError as error:
        raise UrlRefused("malformed", url, f"scheme://host[:port]/path ({error})") from error
    if parts.scheme not in ("http", "https"):
        raise UrlRefused("scheme_not_allowed", url, "http or https")
    if "@" in parts.netloc:
        raise UrlRefused("userinfo", url, "no user name or password before the host")
    if not host:
        raise UrlRefused("no_host", url, "a host")
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    if is_allowed(host, port, allow_hosts):
        return
    if port not in LOW_PORTS and port < 1024:
        raise UrlRefused("port_not_allowed", url, "port 80, 443 or one from 1024")
    try:
        literal = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        literal = None
    if literal is not None:
        if not is_public_address(str(literal)):
            raise UrlRefused("private_address", url, "a public address")
        return
    ascii_host = _ascii_host(url, host)
    # The resolver reads 2130706433, 0x7f.1 and 0177.0.0.1 as 127.0.0.1; no honest URL is written so.
    if _NUMERIC_LABEL.match(ascii_host.split(".")[-1]):
        raise UrlRefused("numeric_host_form", url, "a name, or an address in its usual form")
    if ascii_host == "localhost" or ascii_host.endswith((".localhost", ".local", ".internal")):
        raise UrlRefused("private_address", url, "a public name")
    if resolve:
        try:
            addresses = resolve_host(ascii_host, port)
        except (OSError, UnicodeError) as error:
            raise UrlRefused("unresolvable_host", url, f"a host that a name server knows ({error})") from error
        check_addresses(url, addresses)


def _ascii_host(url: str, host: str) -> str:
    """The host as it goes to the resolver: full-width digits and dots become plain ones before they are judged."""
    try:
        return host.encode("idna").decode("ascii").lower().rstrip(".")
    except UnicodeError as error:
        raise UrlRefused("malformed", url, f"a host name that IDNA can encode ({error})") from error


def ascii_url(url: str) -> str:
    """The URL with non-ASCII characters of path and query percent-encoded (UTF-8), as browsers send it."""
    if url.isascii():
        return url
    parts = urllib.parse.urlsplit(url)
    netloc = _ascii_host(url, parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    safe = "/%:=&?~#+!$,;'@()*[]"
    return urllib.parse.urlunsplit(
        (
            parts.scheme,
            netloc,
            urllib.parse.quote(parts.path, safe=safe),
            urllib.parse.quote(parts.query, safe=safe),
            "",
        )
    )

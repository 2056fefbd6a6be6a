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

from curation_assets.stores.web_addresses import (
    NUMERIC_LABEL,
    ascii_host,
    canonical_host,
    host_and_port,
    without_dot_segments,
)

#: IANA's registries of special-purpose addresses for IPv4 and IPv6 (2025-10) without those in `_CARRIERS`, multicast,
#: and what clouds answer their own machines on. Our own list: `ipaddress.is_global` differs between releases of Python.
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private use
        "100.64.0.0/10",  # shared by a provider; 100.100.100.200 is Alibaba Cloud's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's own services
        "169.254.0.0/16",  # link local; 169.254.169.254 is the metadata of most clouds
        "172.16.0.0/12",  # private use
        "192.0.0.0/24",  # protocol assignments; 192.0.0.192 is Oracle Cloud's metadata
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # multicast tunnels
        "192.88.99.0/24",  # relays of 6to4, deprecated
        "192.168.0.0/16",  # private use
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved; broadcast
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID, …
        "2001:db8::/32",  # documentation
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
)
#: What is public in IPv6 lies here. Outside: ::1, ::/96 (IPv4-compatible), 64:ff9b:1::/48, 100::/64, 5f00::/16,
#: fc00::/7 (fd00:ec2::254 is the metadata of AWS), fe80::/10, fec0::/10, ff00::/8.
_GLOBAL_UNICAST = ipaddress.ip_network("2000::/3")
#: IPv6 networks whose addresses carry an IPv4 address, and how many bits follow it: mapped, NAT64, 6to4.
_CARRIERS = tuple(
    (ipaddress.ip_network(network), bits)
    for network, bits in (("::ffff:0:0/96", 0), ("64:ff9b::/96", 0), ("2002::/16", 80))
)
_BLANKS = "".join(map(chr, range(0x21)))  # at the ends of a URL, browsers leave them out
_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\\]")
#: What browsers do not percent-encode (https://url.spec.whatwg.org/#percent-encoded-bytes), beside letters and digits.
#: A % stays, whatever follows it, so that nothing is encoded twice.
_PATH_SAFE = "!$%&'()*+,-./:;=@[]_|~"
_QUERY_SAFE = "!$%&()*+,-./:;=?@[]^_`{|}~"
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
    """Whether an IP address is one that is public on the internet; the same on every release of Python.

    A mapped, NAT64 or 6to4 address is as public as the IPv4 address that it carries.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    for network, bits in _CARRIERS:
        if address in network:
            address = ipaddress.IPv4Address(int(address) >> bits & 0xFFFFFFFF)
    if address.version == 6 and address not in _GLOBAL_UNICAST:
        return False
    return not any(address in network for network in _NOT_PUBLIC)


def is_allowed(host: str, port: int, allow_hosts: Sequence[str]) -> bool:
    """Whether a host is one of 'host' and 'host:port' entries, each in its one form; an IPv6 host is in brackets."""
    entries = map(host_and_port, allow_hosts)
    return any(canonical_host(host) == name and only in (None, port) for name, only in entries)


def resolve_host(host: str, port: int) -> list[Any]:
    """What the name server answers, as socket.getaddrinfo gives it; it may take long."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def check_addresses(url: str, addresses: Sequence[Any]) -> None:
    """Refuse (UrlRefused) unless every address of a name is public."""
    for *_, socket_address in addresses:
        if not is_public_address(socket_address[0]):
            raise UrlRefused("private_address", url, f"a public address, but it resolves to {socket_address[0]}")


def vet_url(url: str, allow_hosts: Sequence[str] = ()) -> str:
    """The URL as it is sent (`ascii_url`), where it is by its text a plain public web address; no name server is asked.

    `allow_hosts`: 'host' or 'host:port' entries that may be private (a server of our own); their scheme and form
    are vetted all the same. Raises UrlRefused with reason malformed, scheme_not_allowed, userinfo, no_host,
    port_not_allowed, numeric_host_form or private_address.
    """
    sent = ascii_url(url)
    try:
        parts = urllib.parse.urlsplit(sent)
        port = parts.port
        host = (parts.hostname or "").rstrip(".")
    except ValueError as error:
        raise UrlRefused("malformed", url, f"scheme://host[:port]/path ({error})") from error
    if parts.path:
        sent = urllib.parse.urlunsplit(parts._replace(path=without_dot_segments(parts.path)))
    if parts.scheme not in ("http", "https"):
        raise UrlRefused("scheme_not_allowed", url, "http or https")
    if "@" in parts.netloc:
        raise UrlRefused("userinfo", url, "no user name or password before the host")
    if not host:
        raise UrlRefused("no_host", url, "a host")
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    if is_allowed(host, port, allow_hosts):
        return sent
    if port not in LOW_PORTS and port < 1024:
        raise UrlRefused("port_not_allowed", url, "port 80, 443 or one from 1024")
    try:
        literal = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        literal = None
    if literal is not None and host not in url.lower():  # in other digits: no honest URL either
        raise UrlRefused("numeric_host_form", url, "a name, or an address in its usual form")
    if literal is not None:
        if not is_public_address(str(literal)):
            raise UrlRefused("private_address", url, "a public address")
        return sent
    try:
        host = ascii_host(host)
    except ValueError as error:
        raise UrlRefused("malformed", url, f"a host name ({error})") from error
    # The resolver reads 2130706433, 0x7f.1 and 0177.0.0.1 as 127.0.0.1; no honest URL is written so.
    if NUMERIC_LABEL.fullmatch(host.split(".")[-1]):
        raise UrlRefused("numeric_host_form", url, "a name, or an address in its usual form")
    if host == "localhost" or host.endswith((".localhost", ".local", ".internal")):
        raise UrlRefused("private_address", url, "a public name")
    return sent


def ascii_url(url: str) -> str:
    """The URL as browsers send it: no blanks at its ends, blanks and what is not ASCII in path and query
    percent-encoded (UTF-8), the host by IDNA, no fragment. What is encoded stays so. Raises UrlRefused('malformed').
    """
    text = url.strip(_BLANKS)
    if _FORBIDDEN_CHARACTERS.search(text):
        raise UrlRefused("malformed", url, "a URL without control characters or backslashes")
    try:
        parts = urllib.parse.urlsplit(text)
        netloc = parts.netloc
        if " " in netloc:
            raise ValueError("a blank in the host")
        if not netloc.isascii():
            user, at, _ = netloc.rpartition("@")
            netloc = user + at + ascii_host(parts.hostname or "") + (f":{parts.port}" if parts.port else "")
        path = urllib.parse.quote(parts.path, _PATH_SAFE, errors="replace")
        query = urllib.parse.quote(parts.query, _QUERY_SAFE, errors="replace")
    except ValueError as error:
        raise UrlRefused("malformed", url, f"scheme://host[:port]/path ({error})") from error
    return urllib.parse.urlunsplit((parts.scheme, netloc, path, query, ""))

"""Which addresses a download may touch: public web servers only, checked again at every redirect and connection.

A pool's URLs are written by strangers. Vetting the text is not enough: a redirect or a name server can point a
harmless-looking URL at this machine's own network afterwards (server-side request forgery, DNS rebinding). So the
connection itself resolves the name once, checks every address, and connects to what it checked.
"""

import http.client
import ipaddress
import re
import socket
import ssl
import string
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from curation_assets.stores.images import ImageRejected

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


def _is_allowed(host: str, port: int, allow_hosts: Sequence[str]) -> bool:
    """Exact match of host or host:port, case ignored; an IPv6 host is written in brackets."""
    shown = f"[{host}]" if ":" in host else host
    return any(entry.lower() in (shown.lower(), f"{shown.lower()}:{port}") for entry in allow_hosts)


def _resolve(host: str, port: int) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


def _check_addresses(url: str, addresses: Sequence[Any]) -> None:
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
    if _is_allowed(host, port, allow_hosts):
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
            addresses = _resolve(ascii_host, port)
        except (OSError, UnicodeError) as error:
            raise UrlRefused("unresolvable_host", url, f"a host that a name server knows ({error})") from error
        _check_addresses(url, addresses)


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


class GuardedOpener:
    """Opens vetted URLs for img2dataset, which calls `urlopen(request, timeout=…)` and then `read()`.

    Guards, per request: the scheme and host of the URL and of every redirect; the address of every connection, at
    the moment of connecting; the number of body bytes; the total time. No proxy, file, ftp or data URLs.
    `connect_to` maps the host of a URL to the 'address:port' to connect to instead (curl's --connect-to): a stable
    name for a local server.
    An answer that a retry cannot change (4xx, refusal, opt-out) is not requested twice.
    """

    def __init__(
        self,
        allow_hosts: Sequence[str] = (),
        connect_to: Mapping[str, str] | None = None,
        *,
        max_bytes: int,
        max_seconds: float,
    ) -> None:
        self.connect_to = {host.lower(): target for host, target in (connect_to or {}).items()}
        self.allow_hosts = (*allow_hosts, *self.connect_to)
        self.max_bytes = max_bytes
        self.max_seconds = max_seconds
        self._final: dict[str, Exception | _Unread] = {}
        self._tls = ssl.create_default_context()
        self._opener = urllib.request.OpenerDirector()
        for handler in (
            _GuardedHttpHandler(self),
            _GuardedHttpsHandler(self),
            _GuardedRedirects(self),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
        ):
            self._opener.add_handler(handler)

    def urlopen(self, request: urllib.request.Request, timeout: float) -> "GuardedResponse | _Unread":
        """Response as a context manager with `headers` and `read()`.

        Raises UrlRefused, urllib.error.URLError, TimeoutError, http.client.HTTPException.
        """
        url = request.full_url
        final = self._final.get(url)
        if isinstance(final, Exception):
            raise final
        if final is not None:
            return final
        try:
            vet_url(url, self.allow_hosts, resolve=False)
            request.full_url = ascii_url(url)
            response = self._opener.open(request, timeout=timeout)
        except (UrlRefused, urllib.error.HTTPError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # its body is of no use
            if isinstance(error, UrlRefused) or 400 <= error.code < 500:
                self._final[url] = error
            raise
        assert response is not None, f"no handler took {url}"
        return GuardedResponse(response, url, self)

    def remember_unread(self, url: str, headers: Any) -> None:
        """The body is not needed: img2dataset read an opt-out in the headers. The answer will not change."""
        self._final[url] = _Unread(headers)

    def connect(
        self, address: tuple[str, int], timeout: float | None = None, source_address: Any = None
    ) -> socket.socket:
        """Resolve, check all addresses, connect to the first that answers: no second look-up to be lied to in."""
        host, port = address
        url = f"{host}:{port}"
        target = self.connect_to.get(host.lower()) or self.connect_to.get(url.lower())
        if target is not None:
            target_host, _, target_port = target.rpartition(":")
            return socket.create_connection((target_host, int(target_port)), timeout, source_address)
        addresses = _resolve(host, port)
        if not _is_allowed(host, port, self.allow_hosts):
            _check_addresses(url, addresses)
        failure: OSError | None = None
        for family, kind, protocol, _, socket_address in addresses:
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(timeout)
                connection.connect(socket_address)
                return connection
            except OSError as error:
                connection.close()
                failure = error
        raise failure or OSError(f"{host} has no address")


class GuardedResponse:
    """A response whose body is read within the opener's limits."""

    def __init__(self, response: Any, url: str, opener: GuardedOpener) -> None:
        self.headers = response.headers
        self._response, self._url, self._opener = response, url, opener
        self._deadline = time.monotonic() + opener.max_seconds
        self._is_read = False

    def read(self) -> bytes:
        """The whole body. Raises ImageRejected('too_many_bytes'), TimeoutError, http.client.IncompleteRead."""
        self._is_read = True
        claimed = self.headers.get("Content-Length")
        expected = int(claimed) if claimed is not None and claimed.isdigit() else None
        if expected is not None and expected > self._opener.max_bytes:
            raise ImageRejected("too_many_bytes", f"{expected} bytes announced, at most {self._opener.max_bytes}")
        blocks, received = [], 0
        while True:
            # read1: what has arrived, so that a server that drips cannot hold us beyond the deadline
            block = self._response.read1(1 << 16)
            if not block:
                break
            blocks.append(block)
            received += len(block)
            if received > self._opener.max_bytes:
                raise ImageRejected("too_many_bytes", f"more than {self._opener.max_bytes} bytes")
            if time.monotonic() > self._deadline:
                raise TimeoutError(f"timed out: body not complete after {self._opener.max_seconds} s")
        if expected is not None and received < expected:
            raise http.client.IncompleteRead(b"", expected - received)
        return b"".join(blocks)

    def __enter__(self) -> "GuardedResponse":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._is_read:
            self._opener.remember_unread(self._url, self.headers)
        self._response.close()


class _Unread:
    """The headers of an earlier answer whose body is not needed; no network request."""

    def __init__(self, headers: Any) -> None:
        self.headers = headers

    def read(self) -> bytes:
        raise ImageRejected("unread", "the body was not fetched because the headers forbade it")

    def __enter__(self) -> "_Unread":
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _GuardedHttpHandler(urllib.request.HTTPHandler):
    def __init__(self, opener: GuardedOpener) -> None:
        super().__init__()
        self._guard = opener

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._connection, req)  # type: ignore[arg-type]

    def _connection(self, host: str, **options: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(host, **options)
        connection._create_connection = self._guard.connect  # type: ignore[attr-defined]
        return connection


class _GuardedHttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, opener: GuardedOpener) -> None:
        super().__init__()
        self._guard = opener

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(self._connection, req)  # type: ignore[arg-type]

    def _connection(self, host: str, **options: Any) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(host, context=self._guard._tls, **options)
        connection._create_connection = self._guard.connect  # type: ignore[attr-defined]
        return connection


class _GuardedRedirects(urllib.request.HTTPRedirectHandler):
    def __init__(self, opener: GuardedOpener) -> None:
        super().__init__()
        self._guard = opener

    def http_error_302(self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any) -> Any:
        location = headers.get("location") or headers.get("uri")
        if location:
            # quoted as the base class does, so that we vet what it will open
            quoted = urllib.parse.quote(location.strip(), encoding="iso-8859-1", safe=string.punctuation)
            vet_url(urllib.parse.urljoin(req.full_url, quoted), self._guard.allow_hosts, resolve=False)
        fp.close()  # the base class reads the body to its end, however long it is
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

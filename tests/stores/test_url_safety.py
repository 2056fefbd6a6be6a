"""Which URLs are opened: refused by their text, by what they resolve to, and by where they redirect."""

import ipaddress
import socket

import pytest

from curation_assets.stores.url_safety import (
    UrlRefused,
    ascii_url,
    check_addresses,
    is_public_address,
    resolve_host,
    vet_url,
)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///etc/passwd", "scheme_not_allowed"),
        ("ftp://example.com/a.jpg", "scheme_not_allowed"),
        ("data:image/png;base64,AAAA", "scheme_not_allowed"),
        ("gopher://example.com/", "scheme_not_allowed"),
        ("//example.com/a.jpg", "scheme_not_allowed"),
        ("a.jpg", "scheme_not_allowed"),
        ("", "scheme_not_allowed"),
        ("http:///a.jpg", "no_host"),
        ("http://user@example.com/", "userinfo"),
        ("http://example.com@127.0.0.1/", "userinfo"),
        ("http://example.com:80@127.0.0.1/", "userinfo"),
        ("http://exam ple.com/b.jpg", "malformed"),
        ("http://a..example/", "malformed"),
        (f"http://{'a' * 64}.example/", "malformed"),
        (f"http://{'ä.' * 200}example/", "malformed"),
        ("http://example.com\\@127.0.0.1/", "malformed"),
        ("http://example.com/\r\nHost: x", "malformed"),
        ("http://example.com:99999/", "malformed"),
        ("http://[::1/", "malformed"),
        ("http://example.com:22/", "port_not_allowed"),
        ("http://example.com:25/", "port_not_allowed"),
        ("http://127.0.0.1/", "private_address"),
        ("http://127.0.0.1:8080/", "private_address"),
        ("http://127.8.9.1/", "private_address"),
        ("http://10.0.0.1/", "private_address"),
        ("http://172.16.3.4/", "private_address"),
        ("http://192.168.1.1/", "private_address"),
        ("http://169.254.169.254/latest/meta-data/", "private_address"),
        ("http://100.64.0.1/", "private_address"),
        ("http://0.0.0.0/", "private_address"),
        ("http://224.0.0.1/", "private_address"),
        ("http://255.255.255.255/", "private_address"),
        ("http://240.0.0.1/", "private_address"),
        ("http://[::1]/", "private_address"),
        ("http://[::]/", "private_address"),
        ("http://[fe80::1]/", "private_address"),
        ("http://[fc00::1]/", "private_address"),
        ("http://[ff02::1]/", "private_address"),
        ("http://[::ffff:127.0.0.1]/", "private_address"),
        ("http://[::ffff:7f00:1]/", "private_address"),
        ("http://[::127.0.0.1]/", "private_address"),
        ("http://[64:ff9b::7f00:1]/", "private_address"),
        ("http://[2002:7f00:1::]/", "private_address"),
        ("http://localhost/", "private_address"),
        ("http://LOCALHOST./", "private_address"),
        ("http://a.localhost/", "private_address"),
        ("http://metadata.google.internal/", "private_address"),
        ("http://2130706433/", "numeric_host_form"),
        ("http://0x7f000001/", "numeric_host_form"),
        ("http://0x7f.1/", "numeric_host_form"),
        ("http://0177.0.0.1/", "numeric_host_form"),
        ("http://127.1/", "numeric_host_form"),
        ("http://１２７.0.0.1/", "numeric_host_form"),  # full-width digits: no usual form of an address
        ("http://127。0。0。1/", "numeric_host_form"),
    ],
)
def test_refused_by_text_alone(url: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("asked a name server"))
    with pytest.raises(UrlRefused) as refusal:
        vet_url(url)
    assert refusal.value.reason == reason
    assert str(refusal.value).startswith(f"url_refused:{reason}: got ")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/a.jpg",
        "HTTPS://EXAMPLE.COM:443/a.jpg?x=1#f",
        "http://example.com:8080/",
        "http://93.184.216.34/",
        "http://[2606:4700::1111]/",
        "http://[::ffff:8.8.8.8]/",
        "http://bücher.example/ä.jpg",
        "http://1and1.com/",
    ],
)
def test_public_urls_pass(url: str) -> None:
    vet_url(url)


def test_allow_list_is_exact() -> None:
    vet_url("http://127.0.0.1:8000/", ["127.0.0.1:8000"])
    vet_url("http://Localhost:8000/", ["localhost"])
    vet_url("http://[::1]:9/", ["[::1]"])
    vet_url("http://[::1]:9/", ["[0:0::1]:9"])
    vet_url("http://localhost.:8000/", ["LocalHost.:8000"])
    for entry in ("127.0.0.1:8001", "127.0.0", "27.0.0.1", "localhost"):
        with pytest.raises(UrlRefused):
            vet_url("http://127.0.0.1:8000/", [entry])
    with pytest.raises(UrlRefused):  # a host that is allowed is not allowed every scheme
        vet_url("file://127.0.0.1/etc/passwd", ["127.0.0.1"])


def answers(*addresses: str):
    """A name server that gives the same addresses to every question."""

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[tuple]:
        return [
            (socket.AF_INET6 if ":" in one else socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port))
            for one in addresses
        ]

    return getaddrinfo


def test_every_resolved_address_must_be_public(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", answers("93.184.216.34"))
    check_addresses("http://example.com/", resolve_host("example.com", 80))
    monkeypatch.setattr(socket, "getaddrinfo", answers("93.184.216.34", "10.0.0.1"))
    with pytest.raises(UrlRefused, match=r"resolves to 10\.0\.0\.1"):
        check_addresses("http://example.com/", resolve_host("example.com", 80))


def test_wrapped_addresses_are_as_public_as_what_they_wrap() -> None:
    assert is_public_address("64:ff9b::808:808")  # NAT64 of 8.8.8.8: how an IPv6-only network sees the web
    assert not is_public_address("64:ff9b::a00:1")  # of 10.0.0.1
    assert not is_public_address("fe80::1%eth0")


# First and last address of networks, by IANA's registries of special-purpose addresses and what clouds document.
PRIVATE_NETWORKS = """
0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 192.31.196.0/24
192.52.193.0/24 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4
240.0.0.0/4 255.255.255.255/32 168.63.129.16/32 100.100.100.200/32 169.254.169.254/32 192.0.0.192/32
::/128 ::1/128 ::/96 64:ff9b:1::/48 100::/64 100:0:0:1::/64 2001::/23 2001::/32 2001:1::1/128 2001:2::/48 2001:3::/32
2001:4:112::/48 2001:10::/28 2001:20::/28 2001:30::/28 2001:db8::/32 2620:4f:8000::/48 3fff::/20 5f00::/16 fc00::/7
fd00:ec2::254/128 fe80::/10 fec0::/10 ff00::/8 4000::/3 200::/7
"""
NEIGHBOURS = """
1.0.0.0 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 168.63.129.15 168.63.129.17
169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0 192.167.255.255 192.169.0.0
198.17.255.255 198.20.0.0 198.51.99.255 198.51.101.0 203.0.112.255 203.0.114.0 223.255.255.255 8.8.8.8
2000::1 2001:200::1 2001:4860:4860::8888 2606:4700::1111 2a00:1450:4001::1 3ffe::1 3fff:1000::1
"""


@pytest.mark.parametrize("network", PRIVATE_NETWORKS.split())
def test_special_purposes_are_not_public(network: str) -> None:
    listed = ipaddress.ip_network(network)
    for address in (listed[0], listed[-1], listed[listed.num_addresses // 2]):
        assert not is_public_address(str(address)), address
        if isinstance(address, ipaddress.IPv4Address):
            for carried in _carriers(address):
                assert not is_public_address(carried), carried


@pytest.mark.parametrize("address", NEIGHBOURS.split())
def test_their_neighbours_are_public(address: str) -> None:
    assert is_public_address(address)
    if ":" not in address:
        assert all(map(is_public_address, _carriers(ipaddress.IPv4Address(address))))


def _carriers(inner: ipaddress.IPv4Address) -> list[str]:
    """IPv6 addresses that reach an IPv4 address: mapped, NAT64, 6to4."""
    low, high = f"{int(inner) & 0xFFFF:x}", f"{int(inner) >> 16:x}"
    return [f"::ffff:{inner}", f"::ffff:{high}:{low}", f"64:ff9b::{high}:{low}", f"2002:{high}:{low}::1"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("http://bücher.example/äb%20c?q=ü", "http://xn--bcher-kva.example/%C3%A4b%20c?q=%C3%BC"),
        ("http://example.com/a%20b", "http://example.com/a%20b"),
        ("http://example.com/a b/c  d.jpg?x=1 2&y=3", "http://example.com/a%20b/c%20%20d.jpg?x=1%202&y=3"),
        ("  http://example.com/a.jpg\r\n", "http://example.com/a.jpg"),
        ("http://example.com/100% real.jpg", "http://example.com/100%%20real.jpg"),
        ("http://example.com/a%2Fb+c%zz", "http://example.com/a%2Fb+c%zz"),
        ("http://example.com/\"<>`{}|[]^'", "http://example.com/%22%3C%3E%60%7B%7D|[]%5E'"),
        ("http://example.com/?\"<>`{}|[]^'", "http://example.com/?%22%3C%3E`{}|[]^%27"),
        ("http://example.com/図 1.png?é#teil 2", "http://example.com/%E5%9B%B3%201.png?%C3%A9"),
        ("https://straße.example:8443/", "https://xn--strae-oqa.example:8443/"),  # not strasse.example, another owner's
        ("http://BÜCHER。Example/", "http://xn--bcher-kva.example/"),
        ("http://☃.example/", "http://xn--n3h.example/"),
        ("http://example.com:8080/~a/(b)!*,;=@:$&", "http://example.com:8080/~a/(b)!*,;=@:$&"),
    ],
)
def test_urls_are_encoded_as_browsers_do(given: str, sent: str) -> None:
    assert ascii_url(given) == sent
    assert ascii_url(sent) == sent
    assert vet_url(given) == sent


def test_dots_of_a_path_are_resolved_before_it_is_sent() -> None:
    for path in ("/open/../closed/1.jpg", "/open/%2e%2E/./closed/1.jpg", "/../closed/1.jpg"):
        assert vet_url(f"http://example.com{path}?a=../b") == "http://example.com/closed/1.jpg?a=../b"
    assert vet_url("http://example.com/a/..") == "http://example.com/"
    assert vet_url("http://example.com/a//b/...") == "http://example.com/a//b/..."


def test_an_allowed_host_may_be_written_either_way() -> None:
    for entry in ("bücher.internal", "xn--bcher-kva.internal", "bücher.internal:80"):
        vet_url("http://bücher.internal/a b", [entry])

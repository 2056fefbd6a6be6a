"""Which URLs are opened: refused by their text, by what they resolve to, and by where they redirect."""

import socket

import pytest

from curation_assets.stores.url_safety import UrlRefused, ascii_url, is_public_address, vet_url


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
        ("http://example.com/a b.jpg", "malformed"),
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
        vet_url(url, resolve=False)
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
    vet_url(url, resolve=False)


def test_allow_list_is_exact() -> None:
    vet_url("http://127.0.0.1:8000/", ["127.0.0.1:8000"])
    vet_url("http://Localhost:8000/", ["localhost"])
    vet_url("http://[::1]:9/", ["[::1]"])
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
    vet_url("http://example.com/")
    monkeypatch.setattr(socket, "getaddrinfo", answers("93.184.216.34", "10.0.0.1"))
    with pytest.raises(UrlRefused, match=r"resolves to 10\.0\.0\.1"):
        vet_url("http://example.com/")

    def unknown(*_: object, **__: object) -> list[tuple]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UrlRefused, match="unresolvable_host"):
        vet_url("http://example.com/")


def test_wrapped_addresses_are_as_public_as_what_they_wrap() -> None:
    assert is_public_address("64:ff9b::808:808")  # NAT64 of 8.8.8.8: how an IPv6-only network sees the web
    assert not is_public_address("64:ff9b::a00:1")  # of 10.0.0.1
    assert not is_public_address("fe80::1%eth0")


def test_non_ascii_urls_are_encoded_as_browsers_do() -> None:
    assert ascii_url("http://bücher.example/ä b%20c?q=ü".replace(" ", "")) == (
        "http://xn--bcher-kva.example/%C3%A4b%20c?q=%C3%BC"
    )
    assert ascii_url("http://example.com/a%20b") == "http://example.com/a%20b"

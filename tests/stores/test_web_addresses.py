"""Spellings of one address, host and name: one form of them, wherever they are compared; what differs stays apart."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.stores.denylist import Denylist, add_to_denylist
from curation_assets.stores.url_safety import ascii_url
from curation_assets.stores.web_addresses import (
    canonical_host,
    canonical_name,
    canonical_url,
    domain_of,
    host_of,
    hosts_of,
    is_same_url,
    parsed_url,
)


def with_host(write: Callable[[str], str], *, with_port: bool = False) -> Callable[[str], str]:
    """A spelling that writes the host anew, and its port although it is the scheme's own."""

    def spelling(url: str) -> str:
        parts = urlsplit(url)
        port = parts.port or (with_port and (443 if parts.scheme == "https" else 80))
        return urlunsplit(parts._replace(netloc=write(parts.hostname or "") + (f":{port}" if port else "")))

    return spelling


def with_path(write: Callable[[str], str]) -> Callable[[str], str]:
    return lambda url: urlunsplit(urlsplit(url)._replace(path=write(urlsplit(url).path)))


def every(letter: str, written: str) -> Callable[[str], str]:
    return lambda text: text.replace(letter, written)


#: Each writes a URL otherwise, and means the same.
SPELLINGS: dict[str, Callable[[str], str]] = {
    "scheme in capitals": lambda url: urlsplit(url).scheme.upper() + url[len(urlsplit(url).scheme) :],
    "host in capitals": with_host(str.upper),
    "the scheme's own port": with_host(str, with_port=True),
    "no port after the colon": lambda url: url if urlsplit(url).port else with_host(lambda host: f"{host}:")(url),
    "the host's final dot": with_host(lambda host: f"{host}."),
    "final dot and port": with_host(lambda host: f"{host}.", with_port=True),
    "a final dot of another script": with_host(lambda host: f"{host}。"),
    "dots of the host full-width": with_host(every(".", "．")),
    "letters of the host full-width": with_host(every("e", "ｅ")),
    "host as Unicode": with_host(lambda host: host.encode().decode("idna")),
    "host percent-encoded": with_host(every("e", "%65")),
    "user and word": with_host(lambda host: f"user:w%40rd@{host}"),
    "letters of the path in hex": with_path(every("a", "%61")),
    "hex digits in small letters": with_path(every("%C3%A9", "%c3%a9")),
    "path as Unicode": every("%C3%A9", "é"),
    "tilde and hyphen in hex": with_path(lambda path: path.replace("~", "%7e").replace("-", "%2D")),
    "a dot segment": with_path(lambda path: f"/.{path}"),
    "a segment and back": with_path(lambda path: f"/other/..{path}"),
    "dot segments in hex": with_path(lambda path: f"/x/%2E%2e/%2e{path}"),
    "above the root": with_path(lambda path: f"/../..{path}"),
    "backslashes": lambda url: url.partition("?")[0].replace("/", "\\") + url[len(url.partition("?")[0]) :],
    "a fragment": lambda url: f"{url}#a/../b?c",
    "blanks around": lambda url: f" \t{url}\r\n",
    "line breaks inside": lambda url: url.replace("://", ":\n//\t"),
    "a single slash": lambda url: url.replace("://", ":/", 1),
    "many slashes": lambda url: url.replace("://", ":////", 1),
}
HOSTS = ("example.org", "images.example.org", "xn--e1afmkfd.xn--p1ai", "xn--bcher-kva.example", "a-b.e_e.co.uk")
SEGMENTS = ("a", "banana", "Caf%C3%A9", "~joe", "a-b", "IMG_0001.jpg", "x%2Fy", "(1)", "a+b", "50%25", "..a", "a;b=1")
QUERIES = ("", "a=1&b=2", "q=caf%C3%A9", "u=http://x/y?z", "%7B%7D", "q=%27a%27")


@st.composite
def addresses(draw: st.DrawFn) -> str:
    """Addresses in their one form."""
    segments = draw(st.lists(st.sampled_from(SEGMENTS), max_size=4))
    port = draw(st.sampled_from(["", ":8443"]))
    query = draw(st.sampled_from(QUERIES))
    scheme, host = draw(st.sampled_from(["http", "https"])), draw(st.sampled_from(HOSTS))
    return f"{scheme}://{host}{port}/{'/'.join(segments)}" + (f"?{query}" if query else "")


@given(url=addresses(), others=st.lists(addresses(), max_size=5), again=st.sampled_from(sorted(SPELLINGS)))
@settings(max_examples=50, deadline=None)
def test_every_spelling_of_an_address_has_one_form(url: str, others: list[str], again: str) -> None:
    assert canonical_url(url) == url
    for name, spelling in SPELLINGS.items():
        written = spelling(url)
        assert canonical_url(written) == url, (name, written)
        assert host_of(written) == urlsplit(url).hostname, (name, written)
        assert is_same_url(written, url)
    both = SPELLINGS[again](SPELLINGS["letters of the path in hex"](url))
    assert canonical_url(both) == url, both
    for other in others:
        assert is_same_url(url, other) == (url == other)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_list_knows_every_spelling_whichever_it_was_given(name: str, tmp_path: Path) -> None:
    """The URL by `url`, its host by `domain`; asked and given in either spelling."""
    url = "https://images.example.org/a/Caf%C3%A9~-/1.jpg?b=%C3%A9"
    written = SPELLINGS[name](url)
    rows = pl.DataFrame({"sample_id": ["0" * 32] * 3, "url": [url, written, "https://example.com/a"]})
    hosts = (host_of(written), "Images.example.ORG.", "example.org.")
    for number, entry in enumerate([("url", url), ("url", written), *(("domain", host) for host in hosts)]):
        home = tmp_path / str(number)
        add_to_denylist(home, [entry])  # type: ignore[list-item]
        assert Denylist.load(home).denied(rows).to_list() == [True, True, False], entry
        assert Denylist.load(home).entries_of(rows) == {(entry[0], *Denylist.load(home).hashes[entry[0]])}


@pytest.mark.parametrize("name", SPELLINGS)
def test_lists_of_earlier_versions_know_what_they_knew(name: str) -> None:
    """They hashed a URL as it is sent, with dots, ports and a user as they were written."""
    written = SPELLINGS[name]("https://images.example.org/a/Caf%C3%A9~-/1.jpg?b=%C3%A9")
    try:
        parts = urlsplit(ascii_url(written))
    except ValueError:
        parts = urlsplit(written.strip())
    earlier = urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path, parts.query, ""))
    digest = hashlib.sha256(f"salt\0url\0{earlier}".encode()).hexdigest()
    listed = Denylist(("salt",), {"url": {digest: None}})
    assert listed.has("url", written)
    assert not listed.has("url", "https://images.example.org/other.jpg")
    jane = hashlib.sha256("salt\0creator\0jane\u200b doe".encode()).hexdigest()
    assert Denylist(("salt",), {"creator": {jane: None}}).has("creator", "Jane\u200b  DOE")


def test_what_is_recognised_as_in_its_form_is_what_the_long_way_gives() -> None:
    rng, recognised = random.Random(3986), 0
    hosts = ["http://a.example", "https://b-c.example.co.uk", "http://A.example", "http://1.2", "http://a.example:80"]
    pieces = ["a", "B", "1", ".", "..", "/", "%41", "%20", "%2e", "%2F", "%C3%A9", "%c3", "?", "=", "&", "'", "~", "-",
              "_", "%7E", "%5F", "%", "//", ":", "@", "+", "é", " ", "#"]  # fmt: skip
    for _ in range(5_000):
        url = f"{rng.choice(hosts)}/{''.join(rng.choices(pieces, k=rng.randrange(7)))}"
        address = parsed_url(url)
        slow = address.origin + address.path + (f"?{address.query}" if address.query else "")
        assert canonical_url(url) == slow, url
        recognised += url == slow
        assert canonical_url(slow) == slow, url
    assert recognised > 500


DIFFERENT = """
http://example.org/a https://example.org/a http://example.org:8080/a http://www.example.org/a http://example.org/A
http://example.org/a/ http://example.org/a?b http://example.org/a?b=1&c=2 http://example.org/a?c=2&b=1
http://example.org/a%2Fb http://example.org/a/b http://example.org//a http://example.org/a+b http://example.org/a%20b
http://example.org/a%3Fb http://example.org/%C3%A9 http://example.org/e%CC%81 http://straße.example/ http://strasse.example/
"""


def test_addresses_that_differ_stay_apart() -> None:
    urls = DIFFERENT.split()
    assert len({canonical_url(url) for url in urls}) == len(urls)
    for text in ("", "a.jpg", "example.org/a", "http://", "http://:80/", "http://a:b/", "http://[::1/", "mailto:a@b.c"):
        with pytest.raises(ValueError, match=r"."):
            canonical_url(text)
        assert is_same_url(text, text)
        assert not is_same_url(text, "http://example.org/")


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("пример.рф", "xn--e1afmkfd.xn--p1ai"),
        ("ПРИМЕР。РФ.", "xn--e1afmkfd.xn--p1ai"),
        ("XN--E1AFMKFD.XN--P1AI", "xn--e1afmkfd.xn--p1ai"),
        ("straße.example", "xn--strae-oqa.example"),  # not strasse.example, another owner's
        ("[2001:DB8:0:0::1]", "2001:db8::1"),
        ("2001:db8::0.0.0.1", "2001:db8::1"),
        ("127.0.0.1.", "127.0.0.1"),
        ("0x7F.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("1.2.3.4.5", "1.2.3.4.5"),
        ("a..example", "a..example"),
        (f"{'A' * 64}.example.", f"{'a' * 64}.example"),
        ("[no address:", "no address:"),
        ("", ""),
    ],
)
def test_hosts_have_one_form(written: str, host: str) -> None:
    assert canonical_host(written) == host
    assert canonical_host(host) == host


def test_hosts_and_registered_domains_of_addresses() -> None:
    expected = (
        ("http://a.b.shop.example.co.uk/x", "a.b.shop.example.co.uk", "example.co.uk"),
        ("https://Example.COM:8080/", "example.com", "example.com"),
        ("http://mine.github.io/", "mine.github.io", "mine.github.io"),  # a suffix of many owners
        ("http://www.example.nosuchtld/", "www.example.nosuchtld", "example.nosuchtld"),
        ("http://localhost:3000/", "localhost", "localhost"),
        ("http://co.uk/", "co.uk", "co.uk"),
        ("http://127.0.0.1:80/", "127.0.0.1", "127.0.0.1"),
        ("http://[2606:4700::1111]/", "2606:4700::1111", "2606:4700::1111"),
        ("http://[2606:4700:0:0::1111]:80/", "2606:4700::1111", "2606:4700::1111"),
        ("http://www.example.com./", "www.example.com", "example.com"),
        ("http://www.пример.рф/", "www.xn--e1afmkfd.xn--p1ai", "xn--e1afmkfd.xn--p1ai"),
        ("http://img.例.公司.cn/", "img.xn--fsq.xn--55qx5d.cn", "xn--fsq.xn--55qx5d.cn"),
        ("https://user:word@host.example/x", "host.example", "host.example"),
        ("//images.example/a@b", "images.example", "images.example"),
        ("http://a.example?b@c.example", "a.example", "a.example"),
        ("no url", None, None),
        ("images/1.jpg", None, None),
        ("http://[::1/", None, None),
        ("", None, None),
    )
    for url, host, domain in expected:
        assert (host_of(url), domain_of(url)) == (host, domain), url
    urls = pl.DataFrame({"url": [*(url for url, _, _ in expected), None]})
    assert urls.select(hosts_of(pl.col("url"))).to_series().to_list() == [*(host for _, host, _ in expected), None]


def test_names_of_creators_have_one_form() -> None:
    for name in ("Jane Doe", " JANE\tdoe ", "Jane\u00a0Doe", "Jane\u200b Doe\ufeff", "Ｊａｎｅ Doe", "ja\u00adne doe"):
        assert canonical_name(name) == "jane doe"
    assert canonical_name("Ju\u0308rgen") == canonical_name("JÜRGEN") != canonical_name("Jurgen")
    assert canonical_name("HTTPS://Photos.example:443/People/%7Ejane") == "https://photos.example/People/~jane"
    assert canonical_name(" \u200b ") == ""

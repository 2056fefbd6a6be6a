"""Declarations about training: the drafts' examples, hostile files, slow twins, and a site that declares everywhere."""

import gzip
import json
import random
import re
import string
import time
import urllib.parse
from datetime import UTC, datetime, timedelta
from email.message import Message
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from curation_assets.core.json_files import read_json
from curation_assets.sources.download.content_usage import forbids_training, preferences, signals_no_training
from curation_assets.sources.download.download import (
    DOWNLOADS_SCHEMA,
    RECEIPT_FILE,
    DownloadSettings,
    download_shard,
    image_fetcher,
    write_receipt,
)
from curation_assets.sources.download.fetch_shard import MAX_MESSAGE
from curation_assets.sources.download.image_fetch import Found
from curation_assets.sources.download.opt_outs import DEFAULTS, header_signals
from curation_assets.sources.download.path_patterns import PathPattern, path_of
from curation_assets.sources.download.reasons import NotFetched
from curation_assets.sources.download.robots import Rules
from curation_assets.sources.download.tdmrep import MAX_BYTES, TdmRules
from curation_assets.stores.content_hash import config_sha256
from curation_assets.stores.provenance import FETCHED
from curation_assets.stores.rights_signals import LETTERS, MAX_SIGNALS, Signal
from tests.support.marked_images import SIGNED, VOCABULARY, image, jpeg_with_xmp, xmp
from tests.support.raw_server import Answer, RawServer, Visit, reply

AGENTS = ("mybot", "curation_assets", "img2dataset")
SITE = "http://x.example"


def values(signals: list[Signal], kind: str) -> list[tuple[str, bool]]:
    return [(one.value, one.is_no) for one in signals if one.kind == kind]


def of_robots(text: str, path: str, kind: str = "content-usage") -> list[tuple[str, bool]]:
    return values(Rules(text, AGENTS).signals(SITE + path, f"{SITE}/robots.txt"), kind)


def of_headers(*headers: tuple[str, str]) -> list[Signal]:
    message = Message()
    for name, value in headers:
        message[name] = value
    return header_signals(message, words=("noai",), agents=AGENTS)


# -- Content-Usage ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("train-ai=y, search=n", {"train-ai": "y", "search": "n"}),  # vocab §6
        ('train-ai=y, train-ai, search=n, search="n"', {"train-ai": None, "search": None}),  # §6.5.1: the last counts
        ("train-ai;allow=n, train-ai=y", {"train-ai": "y"}),  # §6.5.2
        ('train-ai;has;parameters="?"', {"train-ai": None}),
        ("train-ai=n;x=1;y", {"train-ai": "n"}),
        ("train-ai=y,train-ai=n", {"train-ai": "n"}),
        ("  train-ai=n \t", {"train-ai": "n"}),
        ("other=(a \"b\" 1.5;q);z, train-ai=n, *k=?0", {"other": None, "train-ai": "n", "*k": None}),
        ("a=:aGk=:, b=@1659578233, c=%\"f%c3%bc\", d=-1", {"a": None, "b": None, "c": None, "d": None}),
        ("", {}),
    ],
)  # fmt: skip
def test_dictionaries_are_read(text: str, expected: dict[str, str | None]) -> None:
    assert preferences(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Train-AI=n", "train-ai=n,", "train-ai=n;", "train-ai==n", "train-ai = n", "train-ai=n search=y", ",train-ai=n",
        "train-ai=é", "train-ai=n, a=1.2345", "train-ai=n, a=1234567890123456", 'train-ai=n, a="x',
        "train-ai=n, a=(1", "train-ai=n, a=(1,2)", 'train-ai=n, a=%"%ff"', "train-ai=n, a=:=:", "train-ai=n, a=?2",
        "=n",
    ],
)  # fmt: skip
def test_what_is_no_dictionary_says_nothing(text: str) -> None:
    with pytest.raises(ValueError, match="no Dictionary of RFC 9651"):
        preferences(text)
    assert not forbids_training(text)
    assert values(of_headers(("Content-Usage", text)), "content-usage") == [(text.strip(), False)]  # kept as written


def test_several_header_lines_are_one_dictionary() -> None:
    assert values(of_headers(("Content-Usage", "train-ai=n"), ("content-usage", "search=y")), "content-usage") == [
        ("train-ai=n, search=y", True)
    ]
    assert values(of_headers(("Content-Usage", "train-ai=n"), ("Content-Usage", "train-ai=y")), "content-usage") == [
        ("train-ai=n, train-ai=y", False)
    ]


def test_the_example_of_the_attachment_draft() -> None:
    """draft-ietf-aipref-attach-05 §3.4."""
    text = """User-Agent: *
Allow: /
Disallow: /never/
Content-Usage: / train-ai=n
Content-Usage: /ai-ok/ train-ai=y

User-Agent: ExampleBot
Allow: /
Content-Usage: / train-ai=y
"""
    assert of_robots(text, "/test") == [("train-ai=n", True)]
    assert of_robots(text, "/ai-ok/test") == [("train-ai=y", False)]
    rules = Rules(text, AGENTS)
    assert [rules.allow(f"{SITE}{path}") for path in ("/test", "/never/test", "/ai-ok/test")] == [True, False, True]
    ours = Rules(text, ("examplebot", "img2dataset"))
    assert values(ours.signals(f"{SITE}/never/test", ""), "content-usage") == [("train-ai=y", False)]


def test_paths_of_content_usage() -> None:
    def one(rules: str, path: str) -> list[str]:
        return [value for value, _ in of_robots(f"User-agent: *\n{rules}", path)]

    usual = (
        "Content-Usage: / train-ai=y\ncontent-usage :\t/img/ \t train-ai=n # ours\nCONTENT-USAGE:/img/*.png$ search=n\n"
    )
    assert one(usual, "/a") == ["train-ai=y"]
    assert one(usual, "/img/a.jpg") == ["train-ai=n"]
    assert one(usual, "/img/a.png") == ["search=n"]
    assert one(usual, "/img/a.png?x") == ["train-ai=n"]
    assert one("Content-Usage: train-ai=n", "/any") == ["train-ai=n"]  # no path: all of the site
    assert one("Content-Usage: /a%20b/ train-ai=n", "/a b/c") == ["train-ai=n"]
    assert one("Content-Usage: /%7Ejoe/ train-ai=n", "/~joe/1") == ["train-ai=n"]
    assert one("Content-Usage: /é train-ai=n", "/%C3%A9/1") == ["train-ai=n"]
    assert one("Content-Usage: /a%2Fb train-ai=n", "/a/b") == []
    assert one("Content-Usage: /A train-ai=n", "/a") == []
    assert one("Content-Usage: /a", "/a") == [""]
    equal = "Content-Usage: /a train-ai=y\nContent-Usage: /a train-ai=n\nContent-Usage: / train-ai=y\n"
    assert of_robots(f"User-agent: *\n{equal}", "/a") == [("train-ai=y", False), ("train-ai=n", True)]  # any no
    other = "User-agent: someone\nContent-Usage: / train-ai=n\n\nUser-agent: *\nUser-agent: x\nAllow: /\n"
    assert of_robots(other, "/") == []
    assert of_robots("Content-Usage: / train-ai=n\n", "/") == []  # of no group
    split = (
        "User-agent: img2dataset\nSitemap: https://x.example/s.xml\nUser-agent: mybot\nContent-Usage: / train-ai=n\n"
    )
    assert of_robots(split, "/") == [("train-ai=n", True)]


# -- Content Signals, RSL, TDMRep -------------------------------------------------------------------------------------


def test_content_signals() -> None:
    managed = "User-agent: *\nContent-signal: search=yes,ai-train=no\nAllow: /\n"
    assert of_robots(managed, "/a", "content-signal") == [("search=yes,ai-train=no", True)]
    for text, is_no in (
        ("ai-train=no", True),
        ("AI-Train = No", True),
        ("search=yes, ai-input=no, ai-train=yes", False),
        ("ai-train=yes, ai-train=no", True),
        ("train-ai=no", False),
        ("ai-train", False),
        ("", False),
    ):
        assert signals_no_training(text) == is_no
    assert values(of_headers(("Content-Signal", "ai-train=no")), "content-signal") == [("ai-train=no", True)]


def test_licences_of_rsl() -> None:
    """RSL 1.0: of the whole server whatever the group; in a Link header by relation and type."""
    text = "License: https://a.example/l.xml\n\nUser-agent: Googlebot\nLicense: https://b.example/l.xml\nAllow: /\n"
    assert of_robots(text, "/a", "rsl") == [("https://a.example/l.xml", True), ("https://b.example/l.xml", True)]
    links = [
        '<https://e.example/a,b.xml>; rel="license"; type="application/rsl+xml", <https://e.example/x>; rel=license',
        '<https://e.example/c>; type=application/rsl+xml; title="a, <b>"; rel="next License"',
        '<https://e.example/d>; rel="nolicense"; type="application/rsl+xml"',
    ]
    found = values(of_headers(*(("Link", link) for link in links)), "rsl")
    assert found == [("https://e.example/a,b.xml", True), ("https://e.example/c", True)]


def of_tdmrep(content: Any, path: str) -> list[tuple[str, bool]]:
    text = content if isinstance(content, str) else json.dumps(content)
    return values(TdmRules(text).signals(f"{SITE}{path}", "file"), "tdmrep")


def test_the_example_of_the_tdmrep_report() -> None:
    rules = [
        {"location": "/directory-a/", "tdm-reservation": 1},
        {"location": "/directory-b/html/", "tdm-reservation": 1, "tdm-policy": "https://provider.com/policies/policy.json"},
        {"location": "/directory-b/images/*.jpg", "tdm-reservation": 0},
    ]  # fmt: skip
    assert of_tdmrep(rules, "/directory-a/x.pdf") == [("1", True)]
    assert of_tdmrep(rules, "/directory-b/html/1") == [("1 https://provider.com/policies/policy.json", True)]
    assert of_tdmrep(rules, "/directory-b/images/a/1.jpg") == [("0", False)]
    assert of_tdmrep(rules, "/other") == []
    assert of_tdmrep([{"location": "/path/foo-%24", "tdm-reservation": 1}], "/path/foo-$") == [("1", True)]
    first = [{"location": "/a/b", "tdm-reservation": 0}, {"location": "/", "tdm-reservation": "1"}]
    for written, value, is_no in ((True, "true", True), (False, "false", False), ("TRUE", "true", True)):
        assert of_tdmrep([{"location": "/", "tdm-reservation": written}], "/") == [(value, is_no)]
        assert values(of_headers(("TDM-Reservation", value)), "tdmrep") == [(value, is_no)]
    assert [of_tdmrep(first, path) for path in ("/a/b/c", "/a")] == [[("0", False)], [("1", True)]]


def test_files_of_tdmrep_that_cannot_be_read_reserve_nothing() -> None:
    for text in ("", "<!doctype html><p>not found", "not found"):  # no such file, as many servers say it
        assert of_tdmrep(text, "/") == []
    sound = [{"location": "/", "tdm-reservation": 1}]
    for odd in (
        *[[row, *sound] for row in (1, None, {}, {"location": "/"}, {"location": 1, "tdm-reservation": 1})],
        sound,
    ):
        assert of_tdmrep(odd, "/") == [("1", True)]
    for value in (2, None, [1], "yes"):
        assert of_tdmrep([{"location": "/", "tdm-reservation": value}], "/") == []
    for text in ('{"location": "/", "tdm-reservation": 1}', "[{]", "[" * 100_000, "[" + " " * MAX_BYTES + "]"):
        ((value, is_no),) = of_tdmrep(text, "/")
        assert value.startswith("unreadable: ")
        assert not is_no


# -- twins ------------------------------------------------------------------------------------------------------------


@cache
def slow_pattern(text: str) -> tuple[re.Pattern[str], int]:
    """RFC 9309 by a regular expression over percent-encoded letters; and the pattern's length."""
    end = text.endswith("$")
    pieces = [spelt(piece) for piece in text.removesuffix("$").split("*")]
    return re.compile(".*".join(map(re.escape, pieces)) + ("" if not end else r"\Z"), re.DOTALL), (
        sum(map(len, pieces)) + len(pieces) - 1 + end
    )


def spelt(text: str) -> str:
    """Every octet but the unreserved ones, / and ? as %XX."""
    letters = []
    while text:
        if re.match("%[0-9a-fA-F]{2}", text):
            octet, text = chr(int(text[1:3], 16)), text[3:]
            letters.append(octet if octet in string.ascii_letters + string.digits + "-._~" else f"%{ord(octet):02X}")
        else:
            letters.append(urllib.parse.quote(text[0], safe="/?"))
            text = text[1:]
    return "".join(letters)


def slow_usage(text: str, path: str) -> list[tuple[str, bool]]:
    """Content-Usage of a robots.txt, group by group, as the drafts say it."""
    groups: list[tuple[list[str], list[tuple[str, str]]]] = []
    expects_agents = False
    for line in text.splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        field, _, value = (part.strip() for part in line.partition(":"))
        if field.lower() == "user-agent":
            if not expects_agents:
                groups.append(([], []))
            groups[-1][0].append(value.lower())
            expects_agents = True
        elif field.lower() != "sitemap":
            expects_agents = False
            if groups and field.lower() == "content-usage":
                groups[-1][1].append(
                    (value.split()[0], " ".join(value.split()[1:])) if value[:1] == "/" else ("/", value)
                )
    named = [agent for agent in AGENTS if any(agent in names for names, _ in groups)]
    ours = named[0] if named else "*"
    rules = [rule for names, rules in groups if ours in names for rule in rules]
    matching = [
        (slow_pattern(pattern)[1], value) for pattern, value in rules if slow_pattern(pattern)[0].match(spelt(path))
    ]
    longest = max((length for length, _ in matching), default=0)
    return [
        (value, slow_no(value)) for value in dict.fromkeys(value for length, value in matching if length == longest)
    ]


def slow_no(text: str) -> bool:
    """A Dictionary of the few forms that the random texts have, split by hand."""
    last = None
    for member in text.split(","):
        key, _, value = member.strip().partition("=")
        if not re.fullmatch(r"[a-z*][a-z0-9_.*-]*", key.split(";")[0]) or (not value and "=" in member):
            return False
        if key.split(";")[0] == "train-ai":
            last = value.split(";")[0] if ";" not in key else None
    return last == "n"


def test_ten_thousand_random_robots_txt_against_a_slow_twin() -> None:
    rng = random.Random(9309)
    paths = [
        "/",
        "/a",
        "/a/b",
        "/a/*",
        "/*b",
        "/a$",
        "/*/b$",
        "/%61",
        "/a%2Fb",
        "/é",
        "/a?b=*",
        "/**b",
        "/A",
        "/a/b/c.jpg",
    ]
    prefs = [
        "train-ai=n",
        "train-ai=y",
        "search=n",
        "train-ai=n,train-ai=y",
        "Train-AI=n",
        "train-ai",
        "train-ai;a=n",
        "=n",
    ]
    fields = [
        "User-agent: ",
        "Content-Usage: ",
        "Allow: ",
        "Sitemap: ",
        "content-usage : ",
        "Content-Signal: ",
        "#",
        "",
    ]
    for number in range(10_000):
        lines = []
        for _ in range(rng.randint(1, 9)):
            field = rng.choice(fields)
            if field.startswith("User"):
                lines.append(field + rng.choice([*AGENTS, "*", "*", "*", "other", "IMG2Dataset"]))
            elif field.lower().startswith("content-u"):
                lines.append(
                    field + rng.choice([f"{rng.choice(paths)} ", f"{rng.choice(paths)}\t ", ""]) + rng.choice(prefs)
                )
            elif field:
                lines.append(field + rng.choice(["/x", "https://x.example/s.xml", "ai-train=yes # no"]))
            else:
                lines.append("")
        text = "\n".join(lines)
        path = rng.choice(
            ["/", "/a", "/a/b", "/a/b/c.jpg", "/%61/b", "/a%2fb", "/%C3%A9", "/é", "/a?b=1", "/xb", "/A/b"]
        )
        assert of_robots(text, path) == slow_usage(text, path), (number, text, path)


def test_ten_thousand_random_headers_against_a_slow_twin() -> None:
    """Dictionaries put together from pieces whose meaning is known, and broken in one letter."""
    rng = random.Random(9651)
    items = [
        "n",
        "y",
        "no",
        '"n"',
        '"a\\"b, train-ai=n"',
        "1",
        "-2.5",
        "?1",
        ":bg==:",
        "@5",
        "(n y)",
        '(1 "a";b=1 )',
        '%"n%c3%a9"',
    ]
    keys = ["train-ai", "train-ai", "search", "*x", "a_b.c-9"]
    for number in range(10_000):
        members, last = [], None
        for _ in range(rng.randint(0, 4)):
            key, item = rng.choice(keys), rng.choice([*items, None])
            parameters = "".join(rng.choice(["", "", ";q", "; q=n", ';q="x,y"']) for _ in range(2))
            members.append(key + ("" if item is None else f"={item}") + parameters)
            last = item if key == "train-ai" else last
        text = rng.choice(["", " "]) + rng.choice([", ", ",", "\t,  "]).join(members)
        assert forbids_training(text) == (last == "n"), (number, text)
        assert preferences(text).get("train-ai") == (last if last in ("n", "y", "no") else None)
        broken = text + rng.choice([",", ";", "=", " x", "é", '"', "(", ";Q", ", A", ", a=", ",,b"])
        if not members and broken.strip() in (" x", "x"):
            continue  # a member by itself
        assert not forbids_training(broken), (number, broken)


def test_patterns_made_to_be_slow_are_not() -> None:
    began = time.process_time()
    path = path_of(f"{SITE}/{'a' * 8000}")
    for pattern in ("/" + "*a" * 100_000, "/" + "a*" * 3999 + "b$", "*" * 100_000 + "$"):
        PathPattern(pattern).matches(path)
    text = "User-agent: *\n" + "Content-Usage: /*a*a*a*a*b train-ai=n\n" * 12_000
    assert of_robots(text[: 500 * 1024], "/" + "a" * 2000) == []
    for hostile in ("train-ai=(" + "a " * 50_000, "a;" + "b;" * 50_000, 'a="' + "\\" * 99_999, "a=:" + "b" * 99_999):
        assert not forbids_training(hostile)
    assert of_headers(("Link", "<" * 60_000), ("Link", "<a>;" + "rel=license;" * 5000)) == []
    assert time.process_time() - began < 20


# -- a site that declares everywhere ----------------------------------------------------------------------------------

NO_XMP = f"{VOCABULARY}DMI-PROHIBITED-GENAIMLTRAINING"
ROBOTS = b"""License: https://x.example/rsl.xml
User-agent: *
Disallow: /robots
Content-Usage: /usage/ train-ai=n
Content-Usage: /usage/open train-ai=y
Content-Signal: /signal ai-train=no
"""
TDM = [{"location": "/tdm/open", "tdm-reservation": 0}, {"location": "/tdm/", "tdm-reservation": 1}]


def colour(number: int) -> dict[str, Any]:
    return {"colour": (number * 7 % 256, number * 31 % 256, 99)}


def declaring_site() -> dict[str, tuple[Answer, str | None]]:
    """Path → its answer, and which name of `opt_outs` forbids it besides rsl, which is of the whole site."""
    rsl = '<https://x.example/other.xml>; rel="license"; type="application/rsl+xml"'
    plain = image("JPEG")
    rows: dict[str, tuple[Answer, str | None]] = {
        "/plain.jpg": (reply(200, plain), None),
        "/robots/1.jpg": (reply(200, plain), "robots"),
        "/usage/1.jpg": (reply(200, plain), "train-ai"),
        "/usage/open.jpg": (reply(200, plain), None),
        "/usage/open-but.jpg": (reply(200, plain, Content_Usage="train-ai=n"), "train-ai"),  # several speak: any no
        "/signal/1.jpg": (reply(200, plain), "content-signal"),
        "/tdm/1.jpg": (reply(200, plain), "tdmrep"),
        "/tdm/open.jpg": (reply(200, plain), None),
        "/tdm/2.jpg": (reply(200, plain, TDM_Reservation="0"), None),  # the header supersedes the file
        "/header/tdm.jpg": (reply(200, plain, TDM_Reservation="1", TDM_Policy="https://x.example/p"), "tdmrep"),
        "/header/usage.jpg": (reply(200, plain, Content_Usage="search=y, train-ai=n"), "train-ai"),
        "/header/unknown.jpg": (reply(200, plain, Content_Usage="TRAIN-AI=n"), None),
        "/header/signal.jpg": (reply(200, plain, Content_Signal="ai-train=no"), "content-signal"),
        "/header/rsl.jpg": (reply(200, plain, Link=rsl), None),
        "/header/noai.jpg": (reply(200, plain, X_Robots_Tag="noai"), "x-robots-tag"),
        "/image/xmp.jpg": (reply(200, jpeg_with_xmp(xmp(NO_XMP))), "image"),
        "/image/allowed.jpg": (reply(200, jpeg_with_xmp(xmp(f"{VOCABULARY}DMI-ALLOWED"))), None),
        "/image/c2pa.jpg": (reply(200, (SIGNED / "signed.jpeg").read_bytes()), "image"),
        "/image/c2pa.png": (reply(200, (SIGNED / "signed.png").read_bytes()), "image"),
        "/moved.jpg": (reply(302, Location="/header/noai.jpg"), "x-robots-tag"),
        "/missing.jpg": (reply(404), "missing"),
    }
    return rows


def serving(rows: dict[str, tuple[Answer, str | None]]) -> RawServer:
    robots = reply(200, gzip.compress(ROBOTS), Content_Encoding="gzip")
    tdm = reply(200, json.dumps(TDM).encode())
    return RawServer(
        {"/robots.txt": robots, "/.well-known/tdmrep.json": tdm, **{path: row[0] for path, row in rows.items()}}
    )


def rows_of(server: RawServer, paths: list[str]) -> pl.DataFrame:
    ids = [f"{number:032x}" for number in range(len(paths))]
    urls = [server.url(path) for path in paths]
    return pl.DataFrame({"sample_id": ids, "source_row": range(len(paths)), "url": urls, "caption": paths})


POLICIES: dict[str, dict[Any, Any]] = {
    "all ignored": dict.fromkeys(DEFAULTS, "ignore"),
    "all recorded": dict.fromkeys(DEFAULTS, "record"),
    "defaults": {},
    "all refused": dict.fromkeys(DEFAULTS, "refuse"),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_each_row_of_a_site_that_declares_everywhere_ends_as_its_policy_says(policy: str, tmp_path: Path) -> None:
    site = declaring_site()
    settings = DownloadSettings(opt_outs=POLICIES[policy], domain_requests_per_second=None, threads=4)
    with serving(site) as server:
        began = datetime.now(UTC)
        frame = download_shard(
            rows_of(server, list(site)), tmp_path, "toy-000000", settings=settings, allow_hosts=(server.host,)
        )
        ended = datetime.now(UTC)
        for row, (path, (_, name)) in zip(frame.iter_rows(named=True), site.items(), strict=True):
            found = [(one["kind"], one["value"]) for one in row["rights_signals"]]
            if policy == "all refused" and name != "robots":
                expected = "opt_out"  # by the licence of the whole site
            elif name == "missing":
                expected = "download_http_404"
            elif policy in ("all ignored", "all recorded") or name is None:
                expected = None
            else:
                expected = "robots_txt" if name == "robots" else "opt_out"
            assert row["reason"] == expected, (path, row["message"])
            if expected is None:
                assert began - timedelta(seconds=1) <= row["fetched_at"] <= ended
            assert (row["fetched_at"] is not None) == (
                expected is None or (path.startswith("/image/") and policy != "all refused")
            )
            if policy == "all ignored":
                assert found == []
                continue
            assert ("rsl", "https://x.example/rsl.xml") in found
            if expected == "opt_out":  # the exact signal in the detail
                assert any(f"forbidden by {kind} {value} (" in row["message"] for kind, value in found), row["message"]
            if name not in (None, "missing"):  # also where the licence of the whole site refuses it before
                kinds = {"content-usage" if name == "train-ai" else name}
                assert kinds <= {kind for kind, _ in found}, path
            for one in row["rights_signals"]:
                assert began - timedelta(seconds=1) <= one["checked_at"] <= ended
                assert one["where"] in (
                    "header",
                    "XMP",
                    "C2PA",
                    server.url("/robots.txt"),
                    server.url("/.well-known/tdmrep.json"),
                )
        if policy == "all ignored":
            assert not {"/robots.txt", "/.well-known/tdmrep.json"} & set(server.requests)
        by_path = dict(zip(site, frame.iter_rows(named=True), strict=True))
        if policy == "all recorded":
            found = {
                path: [(one["kind"], one["value"]) for one in row["rights_signals"]] for path, row in by_path.items()
            }
            licence = ("rsl", "https://x.example/rsl.xml")
            assert found["/plain.jpg"] == [licence]
            assert found["/usage/open-but.jpg"] == [
                ("content-usage", "train-ai=y"),
                licence,
                ("content-usage", "train-ai=n"),
            ]
            assert found["/tdm/2.jpg"] == [licence, ("tdmrep", "0"), ("tdmrep", "1")]
            assert found["/header/tdm.jpg"] == [licence, ("tdmrep", "1 https://x.example/p")]
            assert found["/header/unknown.jpg"] == [licence, ("content-usage", "TRAIN-AI=n")]
            assert found["/image/xmp.jpg"] == [licence, ("image", NO_XMP)]
            assert found["/header/rsl.jpg"] == [licence, ("rsl", "https://x.example/other.xml")]
            assert found["/robots/1.jpg"][0] == ("robots", "disallows /robots/1.jpg for the agent *")
            assert by_path["/plain.jpg"]["content_type"] is None or "/" in by_path["/plain.jpg"]["content_type"]


def test_an_origin_that_says_no_in_five_places_is_recorded_with_all_five(tmp_path: Path) -> None:
    """Counts per kind are true: what refuses a row first hides no other declaration. A path that robots.txt disallows
    is not requested; its server's tdmrep.json is read."""
    robots = b"User-agent: *\nDisallow: /closed\nContent-Usage: / train-ai=n\nContent-Signal: / ai-train=no\n"
    answers = {
        "/robots.txt": reply(200, robots),
        "/.well-known/tdmrep.json": reply(200, b'[{"location": "/", "tdm-reservation": true}]'),
        "/1.jpg": reply(200, jpeg_with_xmp(xmp(NO_XMP)), X_Robots_Tag="noai"),
        "/moved.jpg": reply(302, Location="/1.jpg"),
        "/missing.jpg": reply(404),
        "/closed.jpg": reply(200, image()),
    }
    site = [("content-usage", "train-ai=n"), ("content-signal", "ai-train=no"), ("tdmrep", "true")]
    paths = ["/1.jpg", "/moved.jpg", "/missing.jpg", "/closed.jpg"]
    with RawServer(answers) as server:
        rows = rows_of(server, paths)
        frame = download_shard(rows, tmp_path, "toy-000000", settings=DownloadSettings(), allow_hosts=(server.host,))
        assert "/closed.jpg" not in server.requests
    assert frame["reason"].to_list() == ["opt_out", "opt_out", "opt_out", "robots_txt"]
    assert all("forbidden by content-usage train-ai=n (" in message for message in frame["message"][:3])
    recorded = [[(one["kind"], one["value"]) for one in of_row] for of_row in frame["rights_signals"].to_list()]
    everything = sorted([*site, ("x-robots-tag", "noai"), ("image", NO_XMP)])
    assert [sorted(one) for one in recorded[:2]] == [everything, everything]
    assert sorted(recorded[2]) == sorted(site[:2])
    assert sorted(recorded[3]) == sorted([("robots", "disallows /closed.jpg for the agent *"), *site])
    assert frame["fetched_at"].null_count() == 4, "nothing of them is kept"


def test_no_kind_of_signal_crowds_out_another_and_texts_are_bounded(tmp_path: Path) -> None:
    robots = b"User-agent: *\n" + b"".join(b"Content-Usage: / x%d=y\n" % number for number in range(99))
    answers = {
        "/robots.txt": reply(200, robots),
        "/1.jpg": reply(200, jpeg_with_xmp(xmp(NO_XMP)), Content_Type="image/" + "j" * 60_000),
        "/2.jpg": lambda visit: visit.send(b"HTTP/9 " + b"x" * 60_000 + b"\r\n\r\n"),
    }
    with RawServer(answers) as server:
        rows, settings = rows_of(server, ["/1.jpg", "/2.jpg"]), DownloadSettings(opt_outs={"image": "record"})
        frame = download_shard(rows, tmp_path, "toy-000000", settings=settings, allow_hosts=(server.host,))
    assert frame["status"].to_list() == ["kept", "failed"]
    kinds = [one["kind"] for one in frame["rights_signals"][0]]
    assert (kinds.count("content-usage"), kinds.count("image")) == (MAX_SIGNALS, 1)
    assert frame["content_type"][0] == ("image/" + "j" * 60_000)[:LETTERS]
    assert len(frame["message"][1]) <= MAX_MESSAGE
    assert max(path.stat().st_size for path in (tmp_path / "toy-000000").glob("*.json")) < 10_000


def test_content_type_and_time_are_kept_where_a_download_is_reused_and_older_ones_stay(tmp_path: Path) -> None:
    answers = {
        "/1.jpg": reply(200, image(), Content_Type="image/jpeg"),
        "/2.jpg": reply(200, image(), X_Robots_Tag="noai"),
    }
    with RawServer(answers) as server:
        rows = rows_of(server, ["/1.jpg", "/2.jpg"])

        def download() -> pl.DataFrame:
            return download_shard(rows, tmp_path, "toy-000000", settings=DownloadSettings(), allow_hosts=(server.host,))

        first = download()
        assert first["content_type"].to_list() == ["image/jpeg", None]
        assert first.schema == DOWNLOADS_SCHEMA
        requests = len(server.requests)
        time.sleep(0.01)
        assert download().equals(first)
        assert len(server.requests) == requests
        # a home of an earlier version: no such columns, the same request
        table = tmp_path / "toy-000000" / "000000.parquet"
        pl.read_parquet(table).drop(FETCHED).write_parquet(table)
        receipt = read_json(table.with_name(RECEIPT_FILE), dict, advice="")
        write_receipt(table.parent, receipt["request_sha256"])
        old = download()
        assert len(server.requests) == requests
        assert old.drop(FETCHED).equals(first.drop(FETCHED))
        assert all(old[name].null_count() == 2 for name in FETCHED)


def test_settings_that_say_what_they_said_before_have_the_hash_of_before() -> None:
    """By version 0.3.0 of 26 November 2026, before there were opt_outs: what it downloaded is not fetched again."""
    known = {
        "fbb45b5bdce5e59081d18aeecc56babd48da09e2aa2554e1ca5ae0b221fcbd1a": {},
        "cc561cd9e191bb94f15b01422354128e29da1f62f23e0b2446e7c6268278379e": {
            "obey_tdm_reservation": False,
            "timeout_seconds": 2.0,
        },
    }
    for digest, given in known.items():
        assert config_sha256(DownloadSettings(**given).config()) == digest
        same = DownloadSettings(**given, opt_outs={"rsl": "record", "image": "refuse"})
        assert config_sha256(same.config()) == digest
        assert config_sha256(DownloadSettings(**given, opt_outs={"image": "record"}).config()) != digest


def test_the_option_takes_known_names_and_treatments() -> None:
    with pytest.raises(
        ValueError, match=r"opt_outs has no 'train_ai'; did you mean 'train-ai'\? known: content-signal, "
    ):
        DownloadSettings(opt_outs={"train_ai": "refuse"})
    for wrong in ("obey", True):
        with pytest.raises(ValueError, match=r"opt_outs\.rsl must be one of ignore, record, refuse, got"):
            DownloadSettings(opt_outs={"rsl": wrong})
    assert DownloadSettings(opt_outs={"rsl": "refuse"}).treatments == {**DEFAULTS, "rsl": "refuse"}
    off = DownloadSettings(obey_robots_txt=False, obey_tdm_reservation=False, opt_outs={"robots": "refuse"})
    assert (off.treatments["robots"], off.treatments["tdmrep"]) == ("ignore", "ignore")


def test_site_files_that_are_too_large_or_never_end_or_fail_hold_nobody() -> None:
    def endless(visit: Visit) -> None:
        visit.send(b"HTTP/1.1 200 OK\r\n\r\n[")
        while True:
            visit.send(b" " * (1 << 16))

    large = json.dumps([{"location": f"/{number}", "tdm-reservation": 1} for number in range(200_000)]).encode()
    assert len(large) > 8_000_000
    for answer, signal in (
        (reply(200, large), "unreadable"),
        (endless, "unreadable"),
        (reply(500), None),
        (reply(404), None),
    ):
        with RawServer({"/.well-known/tdmrep.json": answer, "/a": reply(200, image())}) as server:
            fetcher = image_fetcher(DownloadSettings(), (server.host,), None, None)
            found = Found()
            assert fetcher.fetch(server.url("/a"), found) == image()
            assert [one.value.partition(":")[0] for one in found.signals] == ([signal] if signal else [])


def test_robots_txt_that_is_down_stops_those_who_obey_it() -> None:
    with RawServer({"/robots.txt": reply(503), "/a": reply(200, image())}) as server:
        hosts = (server.host,)
        with pytest.raises(NotFetched, match="robots_txt_unreachable"):
            image_fetcher(DownloadSettings(), hosts, None, None).fetch(server.url("/a"))
        reading = image_fetcher(DownloadSettings(opt_outs={"robots": "record"}), hosts, None, None)
        assert reading.fetch(server.url("/a")) == image()

"""The takedown feed: who holds a copy takes out what its origin took down; what is no whole feed is refused."""

import hashlib
import io
import itertools
import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import webdataset as wds

from curation_assets.core.settings import load_settings
from curation_assets.core.table_names import PROVENANCE, SUBSETS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.identity import pack_uids
from curation_assets.operations.releases import create_release, verify_release
from curation_assets.operations.takedown import begin_takedown, finish_takedown
from curation_assets.operations.takedown_feeds import fetched_feed
from curation_assets.outputs.explore import _drawn
from curation_assets.outputs.exports.huggingface import export_huggingface
from curation_assets.outputs.exports.lists import export_keys, export_npy
from curation_assets.outputs.exports.subset import find_subset
from curation_assets.outputs.exports.taken_down import take_out
from curation_assets.outputs.exports.webdataset import export_webdataset
from curation_assets.outputs.holders import EXPORT_FLAG
from curation_assets.outputs.options import OutputsOptions
from curation_assets.outputs.registry import ExportRecord, record_export, recorded_exports
from curation_assets.sources.declaration import add_pool, load_pool, save_pool
from curation_assets.stores.denylist import Denylist, Kind, add_entries, add_to_denylist, normalised
from curation_assets.stores.releases import list_releases
from curation_assets.stores.takedown_feed import MAX_LINE, read_feed, write_feed
from tests.support.command import curate as in_process
from tests.support.hostile_sources import tar_bytes
from tests.support.id_lists import read_subset
from tests.support.killing import Killed, killed_at_rename
from tests.support.lineage_pools import bring_up_to_date, finished_photos, jpeg

EXPORTS = {"webdataset": export_webdataset, "hf": export_huggingface, "npy": export_npy, "keys": export_keys}


def taken_down(ctx: PoolContext) -> list[str]:
    """Take three kept samples down, by id, URL and image; returns their ids, sorted."""
    rows = find_subset(ctx, "icc").rows[1:4].to_dicts()
    home = ctx.settings.home
    add_to_denylist(home, [("uid", rows[0]["sample_id"])])
    url = ("url", rows[1]["url"])
    add_to_denylist(home, [url, ("sha256", rows[2]["image_sha256"])], {url: "copyright"})  # type: ignore[list-item, dict-item]
    apply(ctx)
    return sorted(row["sample_id"] for row in rows)


def apply(ctx: PoolContext) -> None:
    tables = tables_of(ctx)
    begun = begin_takedown(ctx, tables)
    assert begun is not None
    bring_up_to_date(ctx.settings)
    certificate, _ = finish_takedown(ctx, tables, begun)
    assert certificate["left"] == []


def bytes_of(*folders: Path) -> dict[str, bytes]:
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {str(path): path.read_bytes() for path in files if "/dagster/" not in str(path)}


def checked_manifest(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "manifest.json").read_text())
    for one in content["files"]:  # type: ignore[attr-defined]
        data = (folder / one["path"]).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (one["sha256"], one["bytes"]), one["path"]
    return content


def curate(*arguments: object) -> str:
    result = in_process(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_who_holds_a_release_and_exports_follows_the_feed_and_a_second_time_changes_nothing(tmp_path: Path) -> None:
    origin = finished_photos(tmp_path / "origin")
    home, other = origin.settings.home, tmp_path / "other"
    create_release(origin, tables_of(origin), "icc", "v1")
    subset = find_subset(origin, "icc")
    kept = subset.sample_ids
    lists = tmp_path / "twice.npy"
    np.save(lists, pack_uids(sorted([*kept, *kept])))  # every sample counts twice
    for name in ("webdataset", "hf", "npy"):
        EXPORTS[name](find_subset(origin, str(lists)), tmp_path / name)  # type: ignore[operator]
    flagged = export_npy(subset, tmp_path / "flagged").parent
    shutil.copytree(home / "releases", other / "releases")
    recorded = next(one for one in recorded_exports(home) if one.folder == str(flagged))
    record_export(other, recorded)
    rows = {row["sample_id"]: row for row in subset.rows.to_dicts()}
    images = {row["sample_id"]: row["image_sha256"] for row in subset.rows.to_dicts()}

    ids = taken_down(origin)
    feed = tmp_path / "feed.jsonl"
    assert "5 entries" in curate("takedown", "feed", "--out", feed, "--home", home)  # 3 ids, 1 URL, 1 image
    text = feed.read_text()
    assert not any(rows[one][name] in text for one in ids for name in ("url", "caption", "image_sha256"))
    assert not any(one in text for one in ids)
    again = tmp_path / "again.jsonl"
    write_feed(home, again)
    assert again.read_bytes() == feed.read_bytes()

    folders = [tmp_path / name for name in ("webdataset", "hf", "npy")]
    call = [
        "takedown",
        "apply",
        "--feed",
        feed,
        "--home",
        other,
        *(word for one in folders for word in ("--export", one)),
    ]
    curate(*call)
    left = [one for one in kept if one not in ids]
    assert len(left) == len(kept) - 3 > 0
    following = [one for one in list_releases(other) if one.withdrawn is None]
    assert [verify_release(one.folder) for one in following] == [[]]
    assert read_subset(following[0].folder / "subset.npy") == left
    mine = next(one for one in list_releases(home) if one.withdrawn is None)
    assert pl.read_parquet(following[0].ledger_paths).equals(pl.read_parquet(mine.ledger_paths))
    for folder in folders:
        content = checked_manifest(folder)
        n = len(left)
        assert content["counts"] == {"asked": n + 3, "written": n, "missing": 3, "entries": 2 * n}, folder
        assert content["subset"]["missing"] == {"dropped:takedown": 3}  # type: ignore[index]
        missing = pl.read_csv(folder / "missing.tsv", separator="\t")
        assert missing.rows() == [(one, 2, "dropped:takedown") for one in ids]
        assert read_subset(folder / "sample_ids.npy") == sorted([*left, *left])
        assert json.loads((folder / EXPORT_FLAG).read_text())["sample_ids"] == ids
    assert read_subset(tmp_path / "npy" / "sample_ids.parquet") == sorted([*left, *left])
    tars = [str(path) for path in sorted((tmp_path / "webdataset").glob("*.tar"))]
    samples = list(wds.WebDataset(tars, shardshuffle=False))
    assert sorted(json.loads(one["json"])["uid"] for one in samples) == sorted([*left, *left])
    assert {hashlib.sha256(one["jpg"]).hexdigest() for one in samples} == {images[one] for one in left}
    assert json.loads((tmp_path / "webdataset" / "sizes.json").read_text()) == {"00000000.tar": 2 * len(left)}
    stats = json.loads((tmp_path / "webdataset" / "00000000_stats.json").read_text())
    assert stats["successes"] == stats["status_dict"]["success"] == 2 * len(left)
    table = pq.read_table(tmp_path / "hf" / "data")
    assert sorted(table["sample_id"].to_pylist()) == left
    assert b"Image" in table.schema.metadata[b"huggingface"]
    assert "3 samples were taken out of this copy" in (tmp_path / "hf" / "README.md").read_text()
    for folder in folders[:2]:
        for one in json.loads((folder / "croissant.json").read_text())["distribution"]:
            if "sha256" in one:
                data = (folder / one["contentUrl"]).read_bytes()
                assert one["sha256"] == hashlib.sha256(data).hexdigest()
                assert one["contentSize"] == f"{len(data)} B"
    needles = [rows[one][name].encode() for one in ids for name in ("caption", "url")]
    held = bytes_of(*folders)
    assert not any(needle in data for needle in needles for name, data in held.items() if not name.endswith(".parquet"))
    assert sorted(json.loads((flagged / EXPORT_FLAG).read_text())["sample_ids"]) == ids
    assert read_subset(flagged / "sample_ids.npy") == kept, "an export that nobody names is flagged, not rewritten"

    before = bytes_of(other, *folders, flagged)
    output = curate(*call)
    assert "0 of 5 entries" in output
    assert bytes_of(other, *folders, flagged) == before


def test_a_pool_of_another_home_follows_the_feed(tmp_path: Path) -> None:
    origin, other = finished_photos(tmp_path / "origin"), finished_photos(tmp_path / "other")
    ids = taken_down(origin)
    feed = tmp_path / "feed.jsonl"
    write_feed(origin.settings.home, feed)
    salt, entries = fetched_feed(str(feed))
    assert add_entries(other.settings.home, salt, entries) == 5
    assert add_entries(other.settings.home, salt, entries) == 0
    apply(other)
    taken = pl.col("reason") == "takedown"
    for ctx in (origin, other):
        assert sorted(ctx.store.scan("raw/samples").filter(taken).collect()["sample_id"]) == ids
    # what was found here goes on to those who follow this home, with its reason; the other entries are the origin's
    passed_on = tmp_path / "passed_on.jsonl"
    assert write_feed(other.settings.home, passed_on) == 3
    second_salt, second = fetched_feed(str(passed_on))
    assert second_salt != salt
    assert sorted(str(one.reason) for one in second) == ["None", "None", "copyright"]
    assert add_entries(origin.settings.home, salt, entries) == 0, "its own feed"
    content = json.loads((origin.settings.home / "takedown" / "denylist.json").read_text())
    assert not any("salt" in entry for entry in content["entries"])


def test_an_entry_of_before_has_no_reason(tmp_path: Path) -> None:
    add_to_denylist(tmp_path, [("url", "http://a.example/1.jpg")])
    path = tmp_path / "takedown" / "denylist.json"
    content = json.loads(path.read_text())
    assert set(content["entries"][0]) == {"kind", "hash", "added_at", "is_found"}
    del content["seal"], content["entries"][0]["added_at"]
    path.write_text(json.dumps(content))
    write_feed(tmp_path, tmp_path / "feed.jsonl")
    header, entry = map(json.loads, (tmp_path / "feed.jsonl").read_text().splitlines())
    assert (header["as_of"], entry["added_at"], entry["reason"]) == (None, None, None)
    assert read_feed((tmp_path / "feed.jsonl").read_bytes(), "feed")[1][0].kind == "url"


def test_a_home_with_nothing_to_tell_writes_no_feed_and_a_list_keeps_its_salt(tmp_path: Path) -> None:
    for kind, name in ((None, None), ("creator", "Jane")):  # names stay here
        add_to_denylist(tmp_path, [(kind, name)] if kind and name else [])  # type: ignore[list-item]
        with pytest.raises(ValueError, match="nothing to tell"):
            write_feed(tmp_path, tmp_path / "feed.jsonl")
    assert not (tmp_path / "feed.jsonl").exists()
    salts = []
    for domain in ("bad.example", "worse.example"):
        add_to_denylist(tmp_path, [("domain", domain)])
        write_feed(tmp_path, tmp_path / "feed.jsonl")
        salts.append(fetched_feed(str(tmp_path / "feed.jsonl"))[0])
    assert salts[0] == salts[1]


def test_a_changed_salt_is_refused_and_one_that_got_in_does_not_keep_the_right_one_out(
    tmp_path: Path, whole: bytes
) -> None:
    rows = pl.DataFrame({"sample_id": ["0" * 32], "url": ["http://a.example/1.jpg"]})
    salt, entries = read_feed(whole, "feed")
    for place in range(len(salt)):
        digit = "0" if salt[place] != "0" else "1"
        with pytest.raises(ValueError, match="a salt and lines of the sha256"):
            read_feed(with_header(whole, salt=salt[:place] + digit + salt[place + 1 :]), "feed")
    add_entries(tmp_path, "0" * 32, entries)  # of a feed of format 1, whose salt nothing protects
    assert not Denylist.load(tmp_path).denied(rows).any()
    assert add_entries(tmp_path, salt, entries) == len(entries)
    assert Denylist.load(tmp_path).denied(rows).all()
    assert add_entries(tmp_path, salt, entries) == 0


def test_a_feed_of_format_1_is_read_too(whole: bytes) -> None:
    body = whole.partition(b"\n")[2]
    older = with_header(whole, format="curation_takedown_feed/1", sha256=hashlib.sha256(body).hexdigest())
    assert read_feed(older, "feed") == read_feed(whole, "feed")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    home = tmp_path_factory.mktemp("home")
    add_to_denylist(home, [("url", f"http://a.example/{n}.jpg") for n in range(20)])
    write_feed(home, home / "feed.jsonl")
    return (home / "feed.jsonl").read_bytes()


def with_entry(data: bytes, **changed: object) -> bytes:
    """The feed with its first entry changed, and a header that fits."""
    first, *lines = data.splitlines()
    body = b"".join(line + b"\n" for line in [json.dumps(json.loads(lines[0]) | changed).encode(), *lines[1:]])
    return fitting(json.loads(first), body)


def fitting(header: dict[str, object], body: bytes) -> bytes:
    """A feed whose header has the number of its lines and the sha256 of itself and them."""
    covered = {name: value for name, value in header.items() if name != "sha256"} | {"entries": body.count(b"\n")}
    digest = hashlib.sha256(json.dumps(covered, sort_keys=True).encode() + b"\n" + body).hexdigest()
    return json.dumps(covered | {"sha256": digest}).encode() + b"\n" + body


def with_header(data: bytes, **changed: object) -> bytes:
    first, _, body = data.partition(b"\n")
    return json.dumps(json.loads(first) | changed).encode() + b"\n" + body


HOSTILE = {
    "empty": (lambda data: b"", "JSON object"),
    "binary": (lambda data: bytes(range(256)) * 40, "at most|JSON object"),
    "one huge line": (lambda data: b"[" * 50_000_000, f"at most {MAX_LINE} bytes"),
    "deep": (lambda data: b"[" * 1000 + b"]" * 1000 + b"\n", "JSON object|bytes"),
    "not text": (lambda data: b"\xff\xfe" + data, "JSON object"),
    "web page": (lambda data: b"<html>moved</html>", "JSON object"),
    "another format": (lambda data: with_header(data, format="curation_takedown_feed/3"), "feed/2"),
    "a number for a format": (lambda data: with_header(data, format=1), "feed/2"),
    "a byte order mark": (lambda data: b"\xef\xbb\xbf" + data, "JSON object"),
    "UTF-16": (lambda data: data.decode().encode("utf-16-le"), "JSON object"),
    "no entry": (lambda data: fitting(json.loads(data.partition(b"\n")[0]), b""), "at least one entry, got none"),
    "another date": (lambda data: with_header(data, as_of="2020-01-01T00:00:00+00:00"), "sha256"),
    "more keys": (lambda data: with_header(data, url="http://a.example/"), "JSON object with as_of"),
    "salt": (lambda data: with_header(data, salt="abc"), "salt of 32"),
    "salt of another type": (lambda data: with_header(data, salt=["a"] * 32), "salt of 32"),
    "cut between lines": (lambda data: b"".join(data.splitlines(keepends=True)[:-1]), "20 whole lines.*got 19"),
    "cut in a line": (lambda data: data[:-30], "20 whole lines"),
    "without the last line break": (lambda data: data[:-1], "20 whole lines"),
    "header alone": (lambda data: data.partition(b"\n")[0], "20 whole lines"),
    "a count of another type": (lambda data: with_header(data, entries=20.0), "whole lines"),
    "twice": (lambda data: data + data, "20 whole lines"),
    "a bit": (lambda data: data[:-90] + bytes([data[-90] ^ 1]) + data[-89:], "sha256"),
    "lines changed places": (
        lambda data: with_entry(data, **json.loads(data.splitlines()[2])),
        "order of kind and hash, each once",
    ),
    "kind": (lambda data: with_entry(data, kind="creator"), "kind to be domain or sha256"),
    "kind of another type": (lambda data: with_entry(data, kind={}), "kind to be"),
    "plain text": (lambda data: with_entry(data, hash="http://a.example/1.jpg"), "hash to be 64 hex"),
    "upper case": (lambda data: with_entry(data, hash="A" * 64), "hash to be"),
    "date": (lambda data: with_entry(data, added_at="yesterday"), "added_at to be"),
    "reason": (lambda data: with_entry(data, reason="<script>"), "reason to be .*got '<script>'"),
    "a long line": (lambda data: with_entry(data, reason="x" * 5000), f"at most {MAX_LINE} bytes"),
    "a field more": (lambda data: with_entry(data, caption="a dog"), "JSON object with added_at"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_whole_feed_is_refused_whole(tmp_path: Path, whole: bytes, name: str) -> None:
    spoil, words = HOSTILE[name]
    feed = tmp_path / "feed.jsonl"
    feed.write_bytes(spoil(whole))
    with pytest.raises(ValueError, match=f"(?s)no takedown feed: expected.*({words}).*nothing was applied"):
        fetched_feed(str(feed))
    good = tmp_path / "good.jsonl"
    good.write_bytes(whole)
    result = in_process("takedown", "apply", "--feed", good, "--feed", feed, home=tmp_path / "home")
    assert result.exit_code == 1
    assert "nothing was applied" in result.output
    assert not (tmp_path / "home" / "takedown").exists(), "the good one neither"


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("http://a.example/feed", "https URL"),
        ("ftp://a.example/feed", "https URL"),
        ("https://127.0.0.1/feed", "private_address"),
        ("https://169.254.169.254/latest", "private_address"),
        ("https://user:word@a.example/feed", "userinfo"),
    ],
)
def test_feeds_come_from_public_servers_alone(place: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fetched_feed(place)


def test_a_folder_or_no_file_is_no_feed(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match="no file"):
            fetched_feed(str(place))


# -- exports of others ------------------------------------------------------------------------------------------------


def test_taking_out_that_was_killed_is_finished_by_the_next(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path / "home")
    home, subset = ctx.settings.home, find_subset(ctx, "icc")
    originals = [EXPORTS[name](subset, tmp_path / f"original_{name}") for name in ("webdataset", "hf")]  # type: ignore[operator]
    taken = subset.sample_ids[1:3]
    add_to_denylist(home, [("uid", one) for one in taken])
    for original in originals:
        undisturbed = tmp_path / "undisturbed"
        shutil.copytree(original, undisturbed)
        assert take_out(home, undisturbed) == taken
        for number in itertools.count():
            folder = tmp_path / "killed"
            shutil.copytree(original, folder)
            with pytest.MonkeyPatch.context() as monkeypatch:
                killed_at_rename(number, monkeypatch)
                try:
                    take_out(home, folder)
                    was_killed = False
                except Killed:
                    was_killed = True
            take_out(home, folder)
            assert checked_manifest(folder)["counts"]["missing"] == 2  # type: ignore[index]
            again, once = (
                {path.name: path for path in one.rglob("*") if ".tmp-" not in path.name}
                for one in (folder, undisturbed)
            )
            assert again.keys() == once.keys(), number
            same = [name for name in once if name.endswith((".tar", ".parquet", ".npy", ".tsv", "sizes.json"))]
            assert all(again[name].read_bytes() == once[name].read_bytes() for name in same)
            shutil.rmtree(folder)
            if not was_killed:
                break
        assert number > 1, "no kill came"
        shutil.rmtree(undisturbed)
        assert number > 6


@pytest.mark.parametrize("kind", ["webdataset", "hf", "npy"])
def test_a_rewritten_export_states_what_is_left_and_no_id(tmp_path: Path, kind: str) -> None:
    """Counts and domains of the samples left; the row that was taken out is the one on which the cut fell."""
    ctx = finished_photos(tmp_path / "home")
    home, subset = ctx.settings.home, find_subset(ctx, "icc")
    assert subset.ledger is not None
    taken = subset.ledger.cut.cuts[-1].boundary_id
    rows = subset.rows.filter(pl.col("sample_id") != taken)
    out = EXPORTS[kind](subset, tmp_path / kind)  # type: ignore[operator]
    folder = out if out.is_dir() else out.parent
    add_to_denylist(home, [("uid", str(taken))])
    shutil.copytree(folder, tmp_path / "older")  # as an earlier version wrote it
    content = json.loads((folder / "manifest.json").read_text())
    older = {name: content[name] for name in content if name != "card"}
    (tmp_path / "older" / "manifest.json").write_text(json.dumps(older))
    assert take_out(home, folder) == take_out(home, tmp_path / "older") == [taken]
    facts = checked_manifest(folder)["subset"]  # type: ignore[index]
    assert str(taken) not in (folder / "manifest.json").read_text()
    assert (facts["samples"], facts["entries"]) == (rows.height, rows.height)
    hosts = rows.select(pl.col("url").str.extract("//([^/]+)/")).to_series().value_counts()
    assert {one["domain"]: one["samples"] for one in facts["domains"]} == (
        {} if kind == "npy" else dict(hosts.iter_rows())
    )
    if kind == "hf":
        shards = dict(rows["shard"].value_counts().iter_rows())
        assert {one["shard"]: one["samples"] for one in facts["shards"]} == shards
        card = (folder / "README.md").read_text()
        listed = dict(re.findall(r"(?m)^\| ([a-z0-9.-]+) \| (\d+) \|(?: `[0-9a-f]{64}` \|)?$", card))
        assert listed == {name: str(count) for name, count in [*hosts.iter_rows(), *shards.items()]}
        assert f"\n{rows.height} image–text pairs kept from pool" in card
        assert "\nNot in this export: 1 × `dropped:takedown` (" in card
        header, _, rest = (tmp_path / "older" / "README.md").read_text().partition("\n---\n")
        assert card.startswith(f"{header}\n---\n")
        assert rest.startswith("\n## Taken down\n\n1 samples were taken out of this copy")
    for path in folder.glob("croissant.json"):
        assert json.loads(path.read_text())["description"].startswith(f"{rows.height} samples of ")


def test_only_whole_exports_are_rewritten(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path / "home")
    home, subset = ctx.settings.home, find_subset(ctx, "icc")
    out = export_webdataset(subset, tmp_path / "out")
    keys = export_keys(subset, tmp_path / "keys").parent
    add_to_denylist(home, [("uid", subset.sample_ids[0])])

    def refused(folder: Path, words: str) -> None:
        before = bytes_of(folder)
        with pytest.raises((ValueError, OSError), match=words):
            take_out(home, folder)
        assert bytes_of(folder) == before

    refused(keys, "has no ids")
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, "no file of an export")
    content = json.loads((out / "manifest.json").read_text())

    def with_manifest(**changed: object) -> Path:
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(out, folder)
        (folder / "manifest.json").write_text(json.dumps(content | changed))
        return folder

    files = content["files"]
    for bad in ([], [{"path": "00000000.tar"}], None, [*files, {"path": 1}], [3]):
        refused(with_manifest(files=bad), "is damaged|does not list")
    (tmp_path / "outside.parquet").write_bytes((out / "00000000.parquet").read_bytes())
    refused(with_manifest(files=[*files, {"path": "../outside.parquet", "sha256": "0" * 64}]), "no file of an export")
    refused(with_manifest(files=[{**files[0], "sha256": "0" * 64}, *files[1:]]), "is not what manifest.json lists")
    more = with_manifest()
    (more / "notes.txt").write_text("a copy of a caption")
    refused(more, r"does not list notes\.txt")
    refused(with_manifest(counts={}), "is damaged")
    linked = with_manifest()
    (linked / "00000000.parquet").unlink()
    (linked / "00000000.parquet").symlink_to(tmp_path / "outside.parquet")
    refused(linked, "no file of an export")
    changed = with_manifest()
    with tarfile.open(changed / "00000000.tar", "a") as tar:
        tar.addfile(tarfile.TarInfo("more.txt"), io.BytesIO())
    refused(changed, r"00000000\.tar is not what")
    assert take_out(home, with_manifest()) == subset.sample_ids[:1]


def test_a_creator_leaves_the_credits_and_all_files_of_an_export(tmp_path: Path) -> None:
    creators = ["Ann", "Eve\nof two lines", None, "=Ann()"]
    members = {}
    for number, creator in enumerate(creators):
        members |= {f"{number}.jpg": jpeg(number), f"{number}.txt": f"a caption of number {number}".encode()}
        facts = {"author": creator, "page_url": f"https://site{number}.example/page", "license": "cc0-1.0"}
        members[f"{number}.json"] = json.dumps(facts).encode()
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "0.tar").write_bytes(tar_bytes(members))
    settings = load_settings(tmp_path / "home", "embedded")
    add_pool(settings, "p", tmp_path / "tars")
    ctx = PoolContext.open(settings, "p")
    run_with_upstream(ctx, PROVENANCE)
    rows = ctx.store.scan(PROVENANCE).collect()
    np.save(tmp_path / "all.npy", pack_uids(sorted(rows["sample_id"])))
    for name, kind, value, taken in (
        ("webdataset", "creator", "ann", {0}),
        ("hf", "domain", "site1.example", {0, 1}),  # the creator is on the list already
        ("npy", "creator", "=ann()", {0, 1, 3}),
    ):
        out = tmp_path / name
        EXPORTS[name](find_subset(ctx, str(tmp_path / "all.npy")), out)  # type: ignore[operator]
        add_to_denylist(other := tmp_path / "other", [(kind, value)])  # type: ignore[list-item]
        ids = {rows["sample_id"][at] for at in taken}
        assert set(take_out(other, out)) == ids
        credited = pl.read_csv(out / "CREDITS.csv")
        left = [at for at in range(4) if at not in taken]
        assert sorted(credited["sample_id"]) == sorted(rows["sample_id"][at] for at in left)
        assert checked_manifest(out)["credited"] == len(left)
        texts = [path.read_bytes() for path in out.rglob("*") if path.suffix in (".tar", ".csv", ".json")]
        needles = [f"site{at}.example".encode() for at in taken]
        assert not any(needle in text for needle in needles for text in texts)
        assert take_out(other, out) == []


def test_an_export_of_this_home_stays_whole_for_verify(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path / "home")
    home, subset = ctx.settings.home, find_subset(ctx, "icc")
    out = export_webdataset(subset, tmp_path / "out")
    add_to_denylist(home, [("url", subset.rows["url"][0])])
    assert take_out(home, out) == [subset.rows["sample_id"][0]], "found by what its tables say"
    record: ExportRecord = recorded_exports(home)[-1]
    digest = hashlib.sha256((out / "manifest.json").read_bytes()).hexdigest()
    assert (record.samples, record.manifest_sha256) == (subset.rows.height - 1, digest)


def test_cards_state_where_the_feed_is_once_it_is_set(tmp_path: Path) -> None:
    ctx = finished_photos(tmp_path / "home")
    settings, url = ctx.settings, "https://data.example/takedowns.jsonl"
    for name, feed in (("before", None), ("after", url)):
        pool = load_pool(settings, "photos")
        save_pool(settings, replace(pool, options=replace(pool.options, takedown_feed=feed)))
        out = export_huggingface(find_subset(PoolContext.open(settings, "photos"), "icc"), tmp_path / name)
        found = {path.name for path in out.iterdir() if path.is_file() and url in path.read_text(errors="replace")}
        assert found == ({"README.md", "croissant.json", "manifest.json"} if feed else set())


@pytest.mark.parametrize(("kind", "value"), [("creator", "ann"), ("domain", "site0.example"), ("source", "agency")])
def test_who_is_listed_by_name_or_page_is_in_no_subset_or_export_before_the_list_is_applied(
    tmp_path: Path, kind: Kind, value: str
) -> None:
    members = {}
    for number, creator in enumerate(("Ann", "Eve", "Zoe")):
        members |= {f"{number}.jpg": jpeg(number), f"{number}.txt": f"a caption of number {number}".encode()}
        facts = {"author": creator, "page_url": f"https://site{number}.example/page"}
        members[f"{number}.json"] = json.dumps(facts | ({} if number else {"source": "agency"})).encode()
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / "0.tar").write_bytes(tar_bytes(members))
    settings = load_settings(tmp_path / "home", "embedded")
    add_pool(settings, "p", tmp_path / "tars", options={"policies": ["random"], "fraction": 1.0})
    ctx = PoolContext.open(settings, "p")
    for is_listed in (False, True):
        if is_listed:
            add_to_denylist(settings.home, [(kind, value)])
        run_with_upstream(ctx, PROVENANCE, SUBSETS)
        listed = ctx.store.scan(PROVENANCE).filter(pl.col("creator") == "Ann").collect()["sample_id"][0]
        assert (listed in read_subset(ctx.store.asset_path(SUBSETS) / "random.npy")) is not is_listed
        assert find_subset(ctx, "random").rows.height == 3 - is_listed
        assert _drawn(ctx, 10)[0].height == 3 - is_listed


# -- creators, sources, pages -----------------------------------------------------------------------------------------


def test_rows_are_known_by_creator_source_and_the_domain_of_their_page(tmp_path: Path) -> None:
    rows = pl.DataFrame(
        {
            "sample_id": [f"{n:032x}" for n in range(5)],
            "url": ["http://cdn.example/1.jpg", None, None, "http://bad.example/x", None],
            "source_url": [None, "https://www.bad.example/page", None, None, None],
            "creator": [None, None, "  JANE  Döe ", "Jane Doe", None],
            "source": ["a", "a", "a", "a", "Flickr 2"],
        }
    )
    for kind, value, expected in (
        ("creator", "Jane Do\u0308e", [2]),
        ("source", "flickr  2", [4]),
        ("domain", "bad.example", [1, 3]),
        ("source", "flickr", []),
    ):
        home = tmp_path / value
        add_to_denylist(home, [(kind, value)], {(kind, value): "privacy"})  # type: ignore[list-item, dict-item]
        listed = Denylist.load(home)
        assert np.flatnonzero(listed.denied(rows)).tolist() == expected, (kind, value)
        assert set(listed.reasons(rows).drop_nulls()) == ({"privacy"} if expected else set())
        if kind == "domain":
            assert write_feed(home, home / "feed.jsonl") == 1
        else:
            with pytest.raises(ValueError, match="nothing to tell"):  # names stay here
                write_feed(home, home / "feed.jsonl")
        assert value not in (home / "takedown" / "denylist.json").read_text()
    for kind in ("creator", "source"):
        with pytest.raises(ValueError, match=f"name of a {kind}"):
            normalised(kind, " \t")  # type: ignore[arg-type]


def test_the_command_checks_reasons_and_kinds(tmp_path: Path) -> None:
    def add(*words: str) -> tuple[int, str]:
        result = in_process("takedown", "add", *words, home=tmp_path)
        return result.exit_code, result.output

    assert add("--creator", "Jane", "--source", "web", "--reason", "privacy")[1].startswith("2 added")
    assert add("--creator", "JANE ")[1].startswith("0 added")
    code, output = add("--creator", "Jane", "--reason", "dislike")
    assert code == 1
    assert "copyright" in output
    assert "--creator" in add()[1]
    assert {entry["reason"] for entry in json.loads((tmp_path / "takedown/denylist.json").read_text())["entries"]} == {
        "privacy"
    }


@pytest.mark.parametrize(
    "url", ["", "example.org", "ftp://a/b", "https://a b", "https://a/)[x](javascript:1)", "https://a\nb"]
)
def test_the_feed_of_a_card_is_a_url(url: str) -> None:
    with pytest.raises(ValueError, match="takedown_feed must be a URL"):
        OutputsOptions(takedown_feed=url)

"""curate summary: forms that are filled in from a release, with statements that give every number again."""

import dataclasses
import hashlib
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
import yaml
from typer.testing import Result

from curation_assets.audit.release_provenance import OF_RELEASES
from curation_assets.core.settings import Settings, load_settings
from curation_assets.core.validation import fields_of
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations.releases import affected_releases, create_release, verify_release, withdraw
from curation_assets.operations.summaries import DOMAINS, SUMMARY_JSON, SUMMARY_MD, Summary, write_summary
from curation_assets.outputs.exports.croissant import check_croissant
from curation_assets.outputs.summary.declared import Declared, blank_declared, read_declared
from curation_assets.outputs.summary.document import TO_BE_PROVIDED
from curation_assets.outputs.summary.eu_gpai import image_bin, text_bin
from curation_assets.outputs.summary.facts import Facts
from curation_assets.outputs.summary.forms import FORMS, get_form
from curation_assets.sources.declaration import add_pool, load_pool, save_pool
from curation_assets.stores.denylist import add_to_denylist
from curation_assets.stores.releases import (
    Release,
    list_releases,
    read_release,
    release_folder,
    release_folders,
    summaries_folder,
)
from tests.conftest import FinishedPool
from tests.support.command import curate as in_process
from tests.support.lineage_pools import (
    OPTIONS,
    bring_up_to_date,
    caption_of,
    jpeg,
    write_tar,
)
from tests.support.raw_server import RawServer, reply
from tests.support.summaries import answer, check_statements

SHARDS, PER_SHARD = 2, 12
OWN_LICENCE = range(2, 12)  # rows with a licence of their own
SOURCES = (
    {"name": "wiki", "url": "https://wiki.example", "licence": "cc-by-4.0", "obtained": "public",
     "collected_from": "2025-01", "collected_to": "2025-03", "description": "Pages {with} braces"},
    {"name": "agency", "obtained": "licensed", "licence": "proprietary", "collected_from": "2024-11",
     "collected_to": "2024-12"},
    {"name": "sketches", "obtained": "synthetic", "collected_from": "1871-01", "collected_to": "2371-01",
     "licence": "mit"},
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a pool of three declared sources, up to its ledgers: its tars name two of them per sample."""
    home = tmp_path_factory.mktemp("made")
    for shard in range(SHARDS):
        numbers = range(shard * PER_SHARD, (shard + 1) * PER_SHARD)
        rows = [
            (f"{n:06d}", f"http://host{n % 5}.example/{n}.jpg", " " if n == 1 else caption_of(n), jpeg(n))
            for n in numbers
        ]
        facts = {f"{n:06d}": {"source": "wiki" if n % 3 else "agency", "creator": f"Ann {n % 2}"} for n in numbers}
        for n in OWN_LICENCE:
            facts.get(f"{n:06d}", {})["licence"] = "All rights | <b>reserved</b>"
        write_tar(home / "tars" / f"{shard:06d}.tar", rows, facts)
    settings = load_settings(home, "embedded")
    add_pool(settings, "photos", home / "tars", options=OPTIONS)
    save_pool(settings, dataclasses.replace(load_pool(settings, "photos"), sources=SOURCES))
    bring_up_to_date(settings)
    return home


@pytest.fixture
def ctx(made: Path, tmp_path: Path) -> PoolContext:
    home = tmp_path / "home"
    shutil.copytree(made, home, symlinks=True)
    settings = load_settings(home, "embedded")
    save_pool(settings, dataclasses.replace(load_pool(settings, "photos"), source=str(home / "tars")))
    return PoolContext.open(settings, "photos")


def release_of(ctx: PoolContext, name: str = "v1") -> Release:
    return create_release(ctx, tables_of(ctx), "icc", name)


def written(ctx: PoolContext, release: Release, form: str = "eu-gpai", *, is_sme: bool = False) -> Summary:
    home = ctx.settings.home
    return write_summary(home, release, get_form(form), home / "summary.yaml", is_sme=is_sme)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def curate(home: Path, *arguments: object) -> Result:
    return in_process(*arguments, home=home)


def fill_in(home: Path, **but: str | None) -> None:
    """Every key of summary.yaml, but for those given otherwise."""
    said = {name: f"said of {name}" for name in fields_of(Declared)} | but
    (home / "summary.yaml").write_text(yaml.safe_dump(said))


# -- what it says


@pytest.mark.parametrize("form", sorted(FORMS))
def test_the_statement_beside_each_number_gives_it(
    form: str, ctx: PoolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = release_of(ctx)
    assert check_statements(release, written(ctx, release, form), monkeypatch) > 20


@pytest.mark.parametrize("form", sorted(FORMS))
def test_every_form_has_its_date_and_claims_nothing(form: str, ctx: PoolContext) -> None:
    summary = written(ctx, release_of(ctx), form)
    text = (summary.folder / SUMMARY_MD).read_text()
    content = json.loads((summary.folder / SUMMARY_JSON).read_text())
    assert f"Template of {FORMS[form].date}" in text
    assert content["template"]["date"] == FORMS[form].date
    for said in (text, content["notice"]):
        assert "never legal advice" in said
        assert "never an attestation" in said
    assert str(ctx.settings.home) not in text + json.dumps(content)
    assert FORMS["eu-gpai"].date == "24 July 2025"


def test_the_two_sources_with_their_licences_rows_and_periods(ctx: PoolContext) -> None:
    release = release_of(ctx)
    summary = written(ctx, release)
    kept = pl.read_parquet(release.ledger_paths).filter(verdict="kept")
    numbers = kept["source_row"] + kept["shard"].str.slice(-6).cast(pl.Int64) * PER_SHARD
    for name, is_of in (("wiki", numbers % 3 != 0), ("agency", numbers % 3 == 0)):
        found = {one["name"].partition(" ")[0]: one["value"] for one in answer(summary, f"Source {name}")["numbers"]}
        assert found["sources.kept"] == is_of.sum()
    wiki = answer(summary, "Source wiki")["text"]
    assert all(said in wiki for said in ("https://wiki.example", "cc-by-4.0", "2025-01 to 2025-03", "{with} braces"))
    (licences,) = answer(summary, "Licences as recorded with the rows")["tables"]
    expected = Counter(
        "All rights | <b>reserved</b>" if n in OWN_LICENCE else "cc-by-4.0" if n % 3 else "proprietary" for n in numbers
    )
    assert {row["licence"]: row["kept"] for row in licences["rows"]} == expected
    assert len(expected) == 3
    shown = (summary.folder / SUMMARY_MD).read_text()
    assert "All rights \\| \\<b\\>reserved\\</b\\>" in shown
    assert "<b>" not in shown
    assert answer(summary, "Crawler: names, behaviour")["text"].startswith("This program opened no URL")
    assert answer(summary, "Latest date of acquisition")["text"] == "2025-03, as sources state."


def test_a_source_that_nobody_described_is_to_be_provided(ctx: PoolContext) -> None:
    save_pool(ctx.settings, dataclasses.replace(load_pool(ctx.settings, "photos"), sources=SOURCES[:1]))
    bring_up_to_date(ctx.settings)
    ctx = PoolContext.open(ctx.settings, "photos")
    summary = written(ctx, release_of(ctx))
    assert answer(summary, "How source agency was obtained")["kind"] == "missing"
    assert "2.1 How source agency was obtained: sources of the pool" in summary.missing


def test_size_bins() -> None:
    assert [text_bin(words) for words in (0, 749_999_999, 750_000_000, 7_500 * 10**9)] == [
        "less than 1 billion tokens",
        "less than 1 billion tokens",
        "1 billion to 10 trillion tokens",
        "more than 10 trillion tokens",
    ]
    assert [image_bin(images) for images in (999_999, 10**6, 10**9)] == [
        "less than 1 million images",
        "1 million to 1 billion images",
        "more than 1 billion images",
    ]


@pytest.mark.slow
def test_a_source_without_kept_rows_is_in_no_answer(ctx: PoolContext) -> None:
    """The pool declares sketches, synthetic, of 1871 to 2371, under MIT, and no row is of it."""
    release = release_of(ctx)
    for form in FORMS:
        summary = written(ctx, release, form)
        said = json.loads((summary.folder / SUMMARY_JSON).read_text())["sections"]
        assert not any(word in json.dumps(said) for word in ("sketches", "1871-", "2371-"))
    used = answer(written(ctx, release), "Used: synthetic data sets")["text"]
    assert (
        used == f"No: none of the {release.counts['kept']} kept rows of this release is of a source that is "
        "declared so."
    )
    croissant = json.loads((summaries_folder(release) / "croissant-rai" / "croissant.json").read_text())
    assert croissant["rai:hasSyntheticData"] is False
    assert croissant["rai:dataCollectionType"] == ["Secondary Data analysis"]
    kept = pl.read_parquet(release.folder / "provenance.parquet").join(
        pl.read_parquet(release.ledger_paths).filter(verdict="kept"), on=["shard", "source_row"], how="semi",
    )  # fmt: skip
    assert {*croissant["license"].split(", ")} == {name or "none on record" for name in kept["licence"]}


def test_public_data_sets_large_ones_apart_with_modalities(ctx: PoolContext) -> None:
    release = release_of(ctx)
    summary = written(ctx, release)
    used = answer(summary, "Used: publicly available data sets")
    numbers = {one["name"].partition(" ")[0]: one["value"] for one in used["numbers"]}
    assert used["text"].startswith(f"Yes. Kept rows: {numbers['sources.kept']}; sources: 1; modalities: image (")
    assert numbers["sources.kept_images"] == numbers["sources.kept_captions"] == numbers["sources.kept"] > 0
    assert "wiki (100.0% of the bytes of images, 100.0% of the words)" in answer(
        summary, "Large public data sets")["text"]  # fmt: skip
    assert answer(summary, "Signatory of the Code of Practice")["key"] == "code_of_practice"
    assert "C(2025) 8311 of 5 December 2025" in (summary.folder / SUMMARY_MD).read_text()
    assert answer(summary, "Used: user data")["text"].startswith("No:")
    assert answer(summary, "Domains")["text"].startswith("0 kept rows are of sources that are declared as crawled")
    assert (summary.folder / DOMAINS).read_text() == "rank,domain,rows,image_bytes,words,undeclared\n"


#: Four sources; of domain big.example nearly everything is private. A fifth is in no declaration at first.
ROWS_OF = {
    "shop": ["big", "c1", "c1", "c2", "пример", "xn--e1afmkfd", *(f"d{n}" for n in range(12))],
    "vault": ["big"] * 30,
    "wiki": ["open"] * 8,
    "agency": ["licensed"] * 8,
    "found": ["c1", "f1"] * 4,
}
OBTAINED = {"shop": "crawled", "vault": "private", "wiki": "public", "agency": "licensed"}


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    """A pool of tars with ROWS_OF, of which a policy keeps 70 %; up to its ledgers."""
    home = tmp_path_factory.mktemp("crawled")
    hosts = [(source, host) for source, names in ROWS_OF.items() for host in names]
    rows, facts = [], {}
    for number, (source, host) in enumerate(hosts):
        suffix = "рф" if host in ("пример", "xn--e1afmkfd") else "example"
        suffix = "xn--p1ai" if host.startswith("xn--") else suffix
        url = f"http://www.{host}.{suffix}/{number}.jpg"
        rows.append((f"{number:06d}", url, caption_of(number), jpeg(number)))
        facts[f"{number:06d}"] = {"source": source}
    write_tar(home / "tars" / "000000.tar", rows, facts)
    settings = load_settings(home, "embedded")
    add_pool(settings, "photos", home / "tars", options=OPTIONS | {"fraction": 0.7})
    declare(settings, OBTAINED)
    return bring_up_to_date(settings)


def declare(settings: Settings, obtained: Mapping[str, str]) -> None:
    sources = tuple({"name": name, "obtained": how} for name, how in obtained.items())
    save_pool(settings, dataclasses.replace(load_pool(settings, "photos"), sources=sources))


def recounted(ctx: PoolContext, release: Release, *sources: str) -> dict[str, list[int]]:
    """What a program of its own counts, domain by domain, the largest first."""
    script = Path(__file__).parents[1] / "support" / "recount_domains.py"
    words = [sys.executable, "-I", script, release.folder, ctx.settings.home / "tars", *sources]
    done = subprocess.run([*map(str, words)], check=True, capture_output=True, encoding="utf-8")
    found = json.loads(done.stdout)
    order = sorted(found, key=lambda name: (-found[name][1], -found[name][2], -found[name][0], name))
    return {name: found[name] for name in order}


@pytest.mark.slow
@pytest.mark.parametrize("is_sme", [False, True])
def test_domains_are_those_of_the_kept_rows_that_were_crawled(
    crawled: PoolContext, is_sme: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sources declared as crawled, and of found, which nobody has declared."""
    release = release_of(crawled, f"r{is_sme:d}")
    summary = written(crawled, release, is_sme=is_sme)
    expected = recounted(crawled, release, "shop", "found")
    undeclared = recounted(crawled, release, "found")
    assert len(expected) > 10
    count = -(-len(expected) // (20 if is_sme else 10))
    lines = [
        f"{rank},{name},{','.join(map(str, expected[name]))},{undeclared.get(name, [0])[0]}"
        for rank, name in enumerate(list(expected)[:count], start=1)
    ]
    found = (summary.folder / DOMAINS).read_text().splitlines()
    assert found == ["rank,domain,rows,image_bytes,words,undeclared", *lines]
    counted = [one["value"] for one in answer(summary, "Domains")["numbers"]]
    rows, of_undeclared = (sum(rows for rows, *_ in one.values()) for one in (expected, undeclared))
    assert counted == [rows, of_undeclared, len(expected), count, 0]
    assert recounted(crawled, release, "vault")["big.example"][0] > expected.get("big.example", [0])[0]
    check_statements(release, summary, monkeypatch)
    assert answer(summary, "How source found was obtained")["kind"] == "missing"


def test_every_count_of_the_summary_counts_the_domains_of_crawled_sources_alone(crawled: PoolContext) -> None:
    release = release_of(crawled, "every")
    tables = Facts(release, Declared()).counts
    expected = recounted(crawled, release, "shop", "found")
    assert {row["domain"]: [row["rows"], row["image_bytes"], row["words"]] for row in tables["domains"].to_dicts()} == (
        expected
    )


@pytest.mark.slow
def test_a_crawled_source_in_tars_asks_for_its_crawlers(crawled: PoolContext, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(crawled.settings.home, home, symlinks=True)
    settings = load_settings(home, "embedded")
    save_pool(settings, dataclasses.replace(load_pool(settings, "photos"), source=str(home / "tars")))
    declare(settings, OBTAINED | {"found": "public"})
    ctx = bring_up_to_date(settings)
    release = release_of(ctx)
    keys = ("crawler_names", "crawler_behaviour", "crawler_purpose", "collection_period")
    fill_in(home, **dict.fromkeys(keys))
    refused = curate(home, "summary", release.name, "--template", "eu-gpai", "--final")
    assert refused.exit_code == 1
    assert "4 answers are left" in refused.output
    assert all(key in refused.output for key in keys)
    fill_in(home)
    assert curate(home, "summary", release.name, "--template", "eu-gpai", "--final").exit_code == 0
    listed = json.loads((summaries_folder(release) / "eu-gpai" / SUMMARY_JSON).read_text())
    assert listed["to_be_provided"] == []


@pytest.mark.slow
def test_the_version_and_the_date_change_with_the_answers(ctx: PoolContext) -> None:
    release, home = release_of(ctx), ctx.settings.home

    def content() -> tuple[int, str, str]:
        summary = written(ctx, release)
        read = json.loads((summary.folder / SUMMARY_JSON).read_text())
        text = (summary.folder / SUMMARY_MD).read_text()
        assert f"Version {read['version']} of release" in text
        assert f"last updated {read['last_update']}" in text
        assert answer(summary, "Version of the summary")["text"] == str(read["version"])
        return read["version"], read["last_update"], text

    version, date, text = content()
    assert (version, date) == (1, release.created_at)
    assert content() == (version, date, text)
    fill_in(home)
    changed = content()
    assert changed[0] == 2
    assert changed[1] > date
    assert content() == changed
    withdraw(home, "photos", [pl.read_parquet(release.folder / "subset.parquet")["sample_id"][0]])
    release = list_releases(home)[-1]
    assert content()[:2] == (3, release.created_at)


# -- what was fetched


@pytest.mark.slow
def test_a_pool_of_urls_names_its_crawler_and_the_times_of_its_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 12
    answers = {f"/{n}.jpg": reply(200, jpeg(n), Content_Type="image/jpeg") for n in range(count)}
    answers["/3.jpg"] = reply(200, jpeg(3), X_Robots_Tag="noai")
    with RawServer({"/robots.txt": reply(200, b"User-agent: *\nAllow: /\n"), **answers}) as server:
        urls = [server.url(f"/{n}.jpg") for n in range(count)]
        rows = {"url": urls, "caption": [caption_of(n) for n in range(count)], "source": ["shop", "web"] * (count // 2)}
        pl.DataFrame(rows).write_parquet(tmp_path / "urls.parquet")
        settings = load_settings(tmp_path / "home", "embedded")
        add_pool(settings, "web", tmp_path / "urls.parquet", allow_hosts=(server.host,), options=OPTIONS)
        ctx = bring_up_to_date(settings, "web")
    release = release_of(ctx)
    summary = written(ctx, release)
    assert "user agent:" in answer(summary, "Crawler: names, behaviour")["text"]
    provenance = pl.read_parquet(release.folder / "provenance.parquet")
    ledger = pl.read_parquet(release.ledger_paths)
    joined = ledger.join(provenance.drop("uid_high", "uid_low"), on=["shard", "source_row"])
    kept = joined.filter(pl.col("verdict") == "kept")
    assert kept.height > 0
    times = [f"{moment:%Y-%m-%dT%H:%M:%SZ}" for moment in (kept["fetched_at"].min(), kept["fetched_at"].max())]
    assert [number["value"] for number in answer(summary, "Period of collection")["numbers"]] == [*times, 0]
    assert answer(summary, "Latest date of acquisition")["text"].startswith(times[1])
    found = answer(summary, "Reservations found")
    assert found["numbers"][1]["value"] == 1000
    assert found["numbers"][0]["value"] == 1 == joined.filter(pl.col("reason").str.starts_with("opt_out")).height
    (signals,) = found["tables"]
    assert {row["kind"]: (row["rows"], row["refused"], row["kept"]) for row in signals["rows"]} == {
        "x-robots-tag": (1, 1, 0)
    }
    check_statements(release, summary, monkeypatch)
    assert release.about["download"]["user_agent"] in answer(summary, "Crawler: names, behaviour")["text"]


# -- the same bytes


@pytest.mark.slow
def test_the_same_release_gives_the_same_bytes_twice_and_in_a_fresh_home(ctx: PoolContext, tmp_path: Path) -> None:
    release, home = release_of(ctx), ctx.settings.home
    fill_in(home)
    first = {form: bytes_of(written(ctx, release, form).folder) for form in FORMS}
    assert {form: bytes_of(written(ctx, release, form).folder) for form in FORMS} == first
    fresh = tmp_path / "another machine"
    shutil.copytree(release.folder, fresh / "releases" / "photos" / "v1")
    shutil.copy(home / "summary.yaml", fresh / "summary.yaml")
    shutil.rmtree(home)
    for form, files in first.items():
        shown = curate(fresh, "summary", "v1", "--template", form, "--final")
        assert shown.exit_code == 0, shown.output
        assert bytes_of(fresh / "releases" / "photos" / "v1.summary" / form) == files
    assert set(first["eu-gpai"]) == {SUMMARY_MD, SUMMARY_JSON, DOMAINS}
    assert verify_release(fresh / "releases" / "photos" / "v1") == []


def test_summaries_are_no_releases(ctx: PoolContext) -> None:
    release, home = release_of(ctx), ctx.settings.home
    written(ctx, release)
    assert release_folders(home) == [release.folder]
    assert list_releases(home) == [release]
    assert verify_release(release.folder) == []
    with pytest.raises(ValueError, match=r"does not end in \.summary"):
        release_folder(home, "photos", "v1.summary")


# -- what only a provider can attest


@pytest.mark.slow
def test_what_is_missing_is_listed_and_final_refuses_it(ctx: PoolContext) -> None:
    release_of(ctx)
    home = ctx.settings.home
    draft = curate(home, "summary", "v1", "--template", "eu-gpai")
    assert draft.exit_code == 0, draft.output
    text = (home / "releases/photos/v1.summary/eu-gpai" / SUMMARY_MD).read_text()
    assert f"**Provider name.** **{TO_BE_PROVIDED}** (`provider_name` of summary.yaml)" in text
    refused = curate(home, "summary", "v1", "--template", "eu-gpai", "--final")
    assert refused.exit_code == 1
    for line in ("1.1 Provider name: provider_name", "image_content_types (a draft is there, to be confirmed)"):
        assert line in refused.output
    fill_in(home, market_date=None)
    one = curate(home, "summary", "v1", "--template", "eu-gpai", "--final")
    assert one.exit_code == 1
    assert "1 answers are left" in one.output
    assert "market_date" in one.output
    fill_in(home)
    assert curate(home, "summary", "v1", "--template", "eu-gpai", "--final").exit_code == 0


def test_summary_yaml_is_begun_once_and_unknown_keys_are_refused(ctx: PoolContext, tmp_path: Path) -> None:
    home = ctx.settings.home
    assert curate(home, "summary", "--init").exit_code == 0
    assert (home / "summary.yaml").read_text() == blank_declared()
    assert read_declared(home / "summary.yaml") == Declared()
    again = curate(home, "summary", "--init")
    assert again.exit_code == 1
    assert "never overwritten" in again.output
    other = tmp_path / "other.yaml"
    other.write_text("provider_nam: Us\n")
    with pytest.raises(
        ValueError, match=r"other.yaml: there is no setting 'provider_nam'; did you mean 'provider_name'"
    ):
        read_declared(other)
    other.write_text("market_date: 2026-12-01\n")
    assert read_declared(other).market_date == "2026-12-01"
    other.write_text("market_date: [1]\n")
    with pytest.raises(ValueError, match="market_date"):
        read_declared(other)
    release_of(ctx)
    absent = curate(home, "summary", "v1", "--declared", tmp_path / "absent.yaml")
    assert "no file" in absent.output
    assert "give a RELEASE" in curate(home, "summary").output
    assert "did you mean 'eu-gpai'" in curate(home, "summary", "v1", "--template", "eu-gpia").output


# -- takedowns, damage


@pytest.mark.slow
def test_a_takedown_removes_the_summary_and_bumps_the_next_ones_version(ctx: PoolContext) -> None:
    release, home = release_of(ctx), ctx.settings.home
    summary = written(ctx, release)
    kept = pl.read_parquet(release.folder / "subset.parquet")["sample_id"]
    withdraw(home, "photos", [kept[0]])
    assert not summaries_folder(release).exists()
    old, new = list_releases(home)
    refused = curate(home, "summary", "v1")
    assert refused.exit_code == 1
    assert "use 'v1.1'" in refused.output
    following = json.loads((written(ctx, new).folder / SUMMARY_JSON).read_text())
    assert (following["version"], following["earlier"]) == (2, "v1")
    assert "that of release `v1`" in (summaries_folder(new) / "eu-gpai" / SUMMARY_MD).read_text()
    taken = answer(written(ctx, new), "Takedowns")
    assert taken["numbers"][0]["value"] == 1
    # A folder that is put back, from a copy, goes with the next takedown.
    summary.folder.mkdir(parents=True)
    (summary.folder / DOMAINS).write_text("rank,domain\n1,left.example\n")
    assert [one.name for one in affected_releases(home, "photos", ["9" * 32])] == ["v1"]
    withdraw(home, "photos", ["9" * 32])
    assert not summaries_folder(old).exists()


def test_releases_that_are_damaged_stale_or_too_old_are_refused_with_what_to_do(ctx: PoolContext) -> None:
    release, home = release_of(ctx), ctx.settings.home
    kept = pl.read_parquet(release.folder / "subset.parquet")["sample_id"]
    add_to_denylist(home, [("uid", kept[0])])
    stale = curate(home, "summary", "v1")
    assert stale.exit_code == 1
    assert "lists 1 samples of the denylist" in stale.output
    assert "curate takedown apply --pool photos" in stale.output
    provenance = release.folder / "provenance.parquet"
    provenance.chmod(0o644)
    data = provenance.read_bytes()
    provenance.write_bytes(data[:-1])
    damaged = curate(home, "summary", "v1")
    assert damaged.exit_code == 1
    assert "provenance.parquet was changed" in damaged.output
    provenance.unlink()
    dataclasses.replace(release, files={k: v for k, v in release.files.items() if k != provenance.name}).write()
    old = curate(home, "summary", "v1")
    assert old.exit_code == 1
    assert "a version before 0.4" in old.output
    assert "curate release create icc NAME" in old.output
    assert not summaries_folder(read_release(release.folder)).exists()


@pytest.mark.slow
def test_what_an_earlier_version_did_not_record_is_not_claimed(
    ctx: PoolContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release of 0.3: no columns of comparisons and mixtures, and counts of all rows in release.json."""
    release = release_of(ctx)
    path = release.folder / "provenance.parquet"
    path.chmod(0o644)
    pl.read_parquet(path).drop(OF_RELEASES.names()[1:]).write_parquet(path)  # caption_source was there
    entry = {"benchmark": "val", "sha256": "ab", "items": 5, "items_not_compared": {}, "rows": 24, "found": 2,
             "rows_not_compared": 0, "dropped": 0, "methods": {"caption": "13 words of the caption in a row"},
             "statement": "checked against val"}  # fmt: skip
    about = {name: value for name, value in release.about.items() if name not in ("mixture", "has_hash_lists")}
    facts = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size}
    release = dataclasses.replace(
        release, about={**about, "decontamination": [entry]}, files={**release.files, path.name: facts}
    )
    release.write()
    for form in FORMS:
        summary = written(ctx, release, form)
        check_statements(release, summary, monkeypatch)
        said = answer(summary, "Decontamination")["text"]
        assert "by 13 words" not in said
        assert said.endswith("kept rows it is not on record which were compared, and how.")
    withdraw(ctx.settings.home, "photos", [pl.read_parquet(release.folder / "subset.parquet")["sample_id"][0]])
    following = list_releases(ctx.settings.home)[-1]
    assert "not on record which were compared" in (following.folder / "card.md").read_text()


# -- Croissant


def test_mlcroissant_validates_and_reads_the_properties(ctx: PoolContext) -> None:
    import mlcroissant as mlc

    fill_in(ctx.settings.home)
    release = release_of(ctx)
    path = written(ctx, release, "croissant-rai").folder / "croissant.json"
    content = json.loads(path.read_text())
    check_croissant(content)
    metadata = mlc.Dataset(content).metadata
    assert metadata.data_use_cases == ["said of use_cases"]
    assert metadata.data_collection_type == ["Secondary Data analysis"]
    assert metadata.annotations_per_item == "said of annotators"
    assert "languages: en" in metadata.data_biases[0]
    assert "No value was filled in" in metadata.data_imputation_protocol
    named = {name.removeprefix("rai:") for name in content if name.startswith("rai:")}
    assert named >= {
        "dataCollection", "dataCollectionType", "dataCollectionMissingData", "dataCollectionRawData",
        "dataCollectionTimeFrame", "dataPreprocessingProtocol", "dataManipulationProtocol", "dataImputationProtocol",
        "dataAnnotationProtocol", "annotationsPerItem", "machineAnnotationTools", "dataBiases", "dataUseCases",
        "dataLimitations", "dataSocialImpact", "personalSensitiveInformation", "dataReleaseMaintenancePlan",
        "hasSyntheticData",
    }  # fmt: skip
    hashes = {one["contentUrl"]: one["sha256"] for one in content["distribution"]}
    assert hashes == {name: facts["sha256"] for name, facts in release.files.items() if name.endswith(".parquet")}
    assert content["rai:dataCollectionTimeFrame"] == ["2024-11", "2025-03"]


def test_the_export_of_a_release_has_the_same_properties(ctx: PoolContext, tmp_path: Path) -> None:
    fill_in(ctx.settings.home)
    summary = written(ctx, release_of(ctx), "croissant-rai")
    exported = curate(ctx.settings.home, "export", "hf", "--release", "v1", "--out", tmp_path / "out")
    assert exported.exit_code == 0, exported.output
    ours, theirs = (
        json.loads((folder / "croissant.json").read_text()) for folder in (summary.folder, tmp_path / "out")
    )
    own = {"rai:dataCollection", "rai:dataManipulationProtocol", "rai:dataReleaseMaintenancePlan"}
    same = {name for name in ours if name.startswith("rai:")} - own
    assert {name: theirs[name] for name in same} == {name: ours[name] for name in same}
    assert len(same) == 15
    front = yaml.safe_load((tmp_path / "out" / "README.md").read_text().split("---")[1])
    assert front["rai"] == {name.removeprefix("rai:"): theirs[name] for name in theirs if name.startswith("rai:")}


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(FORMS))
def test_the_release_of_a_run_answers_every_form(
    form: str, finished_pool: FinishedPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    shutil.copytree(finished_pool.settings.home, home, symlinks=True)
    ctx = PoolContext.open(load_settings(home, "embedded"), "tiny")
    release = release_of(ctx)
    fill_in(home)
    summary = written(ctx, release, form)
    assert check_statements(release, summary, monkeypatch) > 20
    assert bytes_of(written(ctx, release, form).folder) == bytes_of(summary.folder)
    assert summary.missing == []

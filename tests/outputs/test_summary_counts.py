"""The counts of dbt_like_sql/summary/ against a slow, obvious twin, in frames and in files."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from curation_assets.audit.release_provenance import OF_RELEASES
from curation_assets.flow.sql import COUNTS, load_models
from curation_assets.outputs.summary.counts import counts, statements

SOURCES = [{"name": "wiki", "obtained": "crawled"}, {"name": "shop", "obtained": "private"}, {"name": "unused"}]
KINDS = ("tdmrep", "content-usage", "image")
REASONS = ("below_cut:signals.icc", "below_cut:signals.icc:concept full: logo", "prefilter:signals.english", "opt_out",
           "opt_out:tdmrep 1", "quarantined")  # fmt: skip


def random_rows(rows: int = 400, seed: int = 3) -> tuple[pl.DataFrame, pl.DataFrame]:
    """A ledger and its provenance in another order, with everything that may be unknown unknown at times."""
    rng = np.random.default_rng(seed)
    began = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def some(values: tuple[Any, ...], share: float = 0.8) -> list[Any]:
        return [values[rng.integers(len(values))] if rng.random() < share else None for _ in range(rows)]

    def signals() -> list[dict[str, Any]]:
        when = began + timedelta(hours=int(rng.integers(100)))
        return [
            {"kind": KINDS[rng.integers(3)], "value": "n", "where": "header", "checked_at": when}
            for _ in range(rng.integers(4))
        ]

    reason = [REASONS[rng.integers(len(REASONS))] if rng.random() < 0.5 else None for _ in range(rows)]
    verdict = ["kept" if one is None else "failed" if "opt" in one else "dropped" for one in reason]
    shards = pl.Enum(["000000", "000001", "000002"])
    keys = {"shard": pl.Series([f"{n % 3:06d}" for n in range(rows)], dtype=shards), "source_row": range(rows)}
    ledger = pl.DataFrame(
        {
            **keys,
            "verdict": pl.Series(verdict, dtype=pl.Enum(["kept", "dropped", "failed"])),
            "reason": pl.Series(reason, dtype=pl.Enum(REASONS)),
        }
    )
    words = dict.fromkeys(("kind", "value", "where"), pl.String)
    signal = pl.Struct({**words, "checked_at": pl.Datetime("us", "UTC")})
    provenance = pl.DataFrame(
        {
            **keys,
            "source": some(("wiki", "shop", "found"), 1),
            "licence": some(("cc0-1.0", "cc-by-4.0", "Alle Rechte | ours")),
            "creator": some(("Ann", "Ben")),
            "domain": some(tuple(f"d{n}.example" for n in range(45))),
            "language": some(("en", "de")),
            "fetched_at": some(tuple(began + timedelta(seconds=n) for n in range(99))),
            "content_type": some(("image/png", "image/jpeg")),
            "image_bytes": some(tuple(range(100, 120))),
            "caption_source": some(("raw", "generated 0")),
            "caption_words": pl.Series(some(tuple(range(1, 9))), dtype=pl.Int32),
            "compared_by": some(("pdq", "pdq caption", "")),
            "benchmark": some(("val", "test"), 0.1),
            "mixture_group": some(("wiki", "shop")),
            "entries": some(tuple(range(4))),
            "rights_signals": pl.Series([signals() if rng.random() < 0.7 else None for _ in range(rows)],
                                        dtype=pl.List(signal)),
        },
        schema_overrides={"fetched_at": pl.Datetime("us", "UTC")},
    )  # fmt: skip
    return ledger, provenance.sample(fraction=1, shuffle=True, seed=seed)


def joined(ledger: pl.DataFrame, provenance: pl.DataFrame) -> list[dict[str, Any]]:
    return ledger.join(provenance, on=["shard", "source_row"]).to_dicts()


def stamp(times: list[datetime]) -> list[str | None]:
    known = [one for one in times if one is not None]
    return [f"{one:%Y-%m-%dT%H:%M:%SZ}" for one in (min(known), max(known))] if known else [None, None]


@pytest.fixture(scope="module")
def rows() -> tuple[pl.DataFrame, pl.DataFrame]:
    return random_rows()


@pytest.fixture(scope="module")
def made(rows: tuple[pl.DataFrame, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    return counts(*rows, sources=SOURCES)


def test_totals(rows: tuple[pl.DataFrame, pl.DataFrame], made: dict[str, pl.DataFrame]) -> None:
    every = joined(*rows)
    kept = [row for row in every if row["verdict"] == "kept"]
    states = Counter(row["verdict"] for row in every)
    first, last = stamp([row["fetched_at"] for row in kept])
    expected = {"rows": len(every), **{state: states[state] for state in ("kept", "dropped", "failed")}}
    for column, name in (("image_bytes", "kept_images"), ("caption_words", "kept_captions")):
        expected[name] = sum(row[column] is not None for row in kept)
    expected |= {"kept_image_bytes": sum(row["image_bytes"] or 0 for row in kept)}
    expected |= {"kept_words": sum(row["caption_words"] or 0 for row in kept)}
    for column in ("source", "domain", "creator", "language"):
        expected[f"kept_{column}s"] = len({row[column] for row in kept} - {None})
    for column in ("licence", "creator", "domain", "language", "fetched_at"):
        expected[f"kept_without_{column}"] = sum(row[column] is None for row in kept)
    assert made["totals"].to_dicts() == [{**expected, "earliest_fetched_at": first, "latest_fetched_at": last}]


def test_sources(rows: tuple[pl.DataFrame, pl.DataFrame], made: dict[str, pl.DataFrame]) -> None:
    every = joined(*rows)
    assert {row["source"] for row in made["sources"].to_dicts()} == {"wiki", "shop", "found"}
    for counted in made["sources"].to_dicts():
        mine = [row for row in every if row["source"] == counted["source"]]
        kept = [row for row in mine if row["verdict"] == "kept"]
        first, last = stamp([row["fetched_at"] for row in kept])
        assert counted == {
            "source": counted["source"],
            "obtained": {"wiki": "crawled", "shop": "private"}.get(counted["source"]),
            "rows": len(mine),
            "kept": len(kept),
            "kept_images": sum(row["image_bytes"] is not None for row in kept),
            "kept_image_bytes": sum(row["image_bytes"] or 0 for row in kept),
            "kept_captions": sum(row["caption_words"] is not None for row in kept),
            "kept_words": sum(row["caption_words"] or 0 for row in kept),
            "kept_without_domain": sum(row["domain"] is None for row in kept),
            "kept_fetched": sum(row["fetched_at"] is not None for row in kept),
            "kept_without_fetched_at": sum(row["fetched_at"] is None for row in kept),
            "earliest_fetched_at": first,
            "latest_fetched_at": last,
        }


def test_licences_of_sources_comparisons_and_mixtures(
    rows: tuple[pl.DataFrame, pl.DataFrame], made: dict[str, pl.DataFrame]
) -> None:
    every = joined(*rows)
    kept = [row for row in every if row["verdict"] == "kept"]
    licences = Counter((row["source"], row["licence"]) for row in kept)
    assert {row[:2]: row[2] for row in made["source_licences"].rows()} == dict(licences)
    compared = Counter((row["compared_by"], row["benchmark"]) for row in every)
    of_kept = Counter((row["compared_by"], row["benchmark"]) for row in kept)
    assert {row[:2]: row[2:] for row in made["decontamination"].rows()} == {
        key: (count, of_kept[key]) for key, count in compared.items()
    }
    groups = {row["mixture_group"] for row in every} - {None}
    assert {row["mixture_group"]: row["entries"] for row in made["mixture"].to_dicts()} == {
        group: sum(row["entries"] or 0 for row in kept if row["mixture_group"] == group) for group in groups
    }


@pytest.mark.parametrize("table", ["licences", "languages", "content_types"])
def test_groups(table: str, rows: tuple[pl.DataFrame, pl.DataFrame], made: dict[str, pl.DataFrame]) -> None:
    column, every = table.removesuffix("s"), joined(*rows)
    found = {row.pop(column): row for row in made[table].to_dicts()}
    assert set(found) == {row[column] for row in every}
    for group, counted in found.items():
        mine = [row for row in every if row[column] == group]
        kept = [row for row in mine if row["verdict"] == "kept"]
        first, last = stamp([row["fetched_at"] for row in kept])
        assert counted == {
            "rows": len(mine),
            "kept": len(kept),
            "kept_image_bytes": sum(row["image_bytes"] or 0 for row in kept),
            "kept_words": sum(row["caption_words"] or 0 for row in kept),
            "earliest_fetched_at": first,
            "latest_fetched_at": last,
        }


def test_reasons_shards_and_signals(rows: tuple[pl.DataFrame, pl.DataFrame], made: dict[str, pl.DataFrame]) -> None:
    every = joined(*rows)
    kinds = Counter((row["verdict"], (row["reason"] or "").removesuffix(":concept full: logo")) for row in every)
    assert {(row["verdict"], row["reason"] or ""): row["rows"] for row in made["reasons"].to_dicts()} == dict(kinds)
    for shard in made["shards"].to_dicts():
        mine = [row["verdict"] for row in every if row["shard"] == shard["shard"]]
        kept = mine.count("kept")
        assert (shard["rows"], shard["kept"], shard["kept_share"]) == (len(mine), kept, round(kept / len(mine), 6))
    chosen = {(row["caption_source"], row["rows"], row["kept"]) for row in made["captions"].to_dicts()}
    by_source = Counter((row["caption_source"], row["verdict"] == "kept") for row in every)
    assert chosen == {(one, by_source[one, True] + by_source[one, False], by_source[one, True]) for one, _ in by_source}
    for kind in made["signals"].to_dicts():
        mine = [row for row in every if any(one["kind"] == kind["kind"] for one in row["rights_signals"] or [])]
        refused = sum((row["reason"] or "").startswith("opt_out") for row in mine)
        checked = [one["checked_at"] for row in mine for one in row["rights_signals"] if one["kind"] == kind["kind"]]
        found = tuple(kind[name] for name in ("rows", "refused", "earliest_checked_at", "latest_checked_at"))
        assert found == (len(mine), refused, *stamp(checked))
        assert kind["kept"] == sum(row["verdict"] == "kept" for row in mine)
    assert [row["kind"] for row in made["signals"].to_dicts()] == sorted(KINDS)


def brute_force_domains(every: list[dict[str, Any]], sources: set[str]) -> list[tuple[str, int, int, int, int]]:
    """(domain, rows, image_bytes, words, undeclared) of kept rows of these sources, the largest first."""
    found: dict[str, list[int]] = {}
    for row in every:
        if row["verdict"] == "kept" and row["domain"] is not None and row["source"] in sources:
            sums = found.setdefault(row["domain"], [0, 0, 0, 0])
            counted = (1, row["image_bytes"] or 0, row["caption_words"] or 0, row["source"] == "found")
            for place, value in enumerate(counted):
                sums[place] += value
    return sorted(((name, *sums) for name, sums in found.items()), key=lambda one: (-one[2], -one[3], -one[1], one[0]))


def test_domains_by_size(rows: tuple[pl.DataFrame, pl.DataFrame], made: dict[str, pl.DataFrame]) -> None:
    """Of what was crawled and of what nobody declared; without any declaration of all."""
    columns = ("domain", "rows", "image_bytes", "words", "undeclared")
    for table, sources in ((made["domains"], {"wiki", "found"}), (counts(*rows)["domains"], {"wiki", "shop", "found"})):
        expected = brute_force_domains(joined(*rows), sources)
        assert table.select(columns[:4]).rows() == [one[:4] for one in expected]
        count = len(expected)
        assert 40 < count <= 45
        assert table["rank"].to_list() == list(range(1, count + 1))
        assert table["is_top_tenth"].to_list() == [True] * 5 + [False] * (count - 5)  # 4.1 to 4.5: no domain is cut
        assert table["is_top_twentieth_or_1000"].to_list() == [True] * 3 + [False] * (count - 3)
    assert made["domains"].select(columns).rows() == brute_force_domains(joined(*rows), {"wiki", "found"})


def test_no_more_than_1000_domains_are_asked_of_small_companies() -> None:
    rows = 20_050  # a twentieth is 1,002.5
    keys = {"shard": ["000000"] * rows, "source_row": range(rows)}
    ledger, provenance = random_rows(10)
    ledger = pl.DataFrame({**keys, "verdict": ["kept"] * rows, "reason": None},
                          schema_overrides={"reason": pl.String})  # fmt: skip
    provenance = pl.concat([provenance.drop("shard", "source_row").head(1)] * rows).with_columns(
        pl.Series("shard", keys["shard"]),
        pl.Series("source_row", keys["source_row"]),
        pl.Series("domain", [f"d{n}.example" for n in range(rows)]),
    )
    domains = counts(ledger, provenance)["domains"]
    assert (domains["is_top_tenth"].sum(), domains["is_top_twentieth_or_1000"].sum()) == (2005, 1000)


def test_files_give_what_frames_give_and_so_does_a_pasted_statement(
    rows: tuple[pl.DataFrame, pl.DataFrame],
    made: dict[str, pl.DataFrame],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ledger = [tmp_path / "ledger" / f"{number}.parquet" for number in range(3)]
    for path, (_, part) in zip(ledger, rows[0].group_by("shard", maintain_order=True), strict=True):
        part.write_parquet(path, mkdir=True)
    files = (ledger, tmp_path / "provenance.parquet")
    rows[1].write_parquet(files[1])
    (tmp_path / "release.json").write_text(json.dumps({"about": {"sources": SOURCES}}))
    from_files = counts(*files, sources=SOURCES)
    monkeypatch.chdir(tmp_path)
    assert made.keys() == from_files.keys() == statements().keys()
    for name, table in made.items():
        assert_frame_equal(from_files[name], table, categorical_as_str=True, check_dtypes=False)
        assert_frame_equal(duckdb.sql(statements()[name].text).pl(), from_files[name])


def test_rows_that_do_not_correspond_are_refused(rows: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    ledger, provenance = rows
    twice = provenance.vstack(provenance[:1])
    for pair in ((ledger.head(-1), provenance), (ledger, provenance.head(-1)), (ledger, twice)):
        with pytest.raises(ValueError, match="are not of the same rows"):
            counts(*pair)


def test_a_pool_has_no_columns_of_releases(rows: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    ledger, provenance = rows
    made = counts(ledger, provenance.drop(OF_RELEASES.names()))
    assert made["captions"]["caption_source"].to_list() == [None]
    assert made["captions"]["rows"].to_list() == [ledger.height]
    assert made["mixture"].is_empty()
    assert made["decontamination"].select("compared_by", "benchmark").rows() == [(None, None)]


def test_counts_are_no_tables_of_the_flow() -> None:
    assert len(statements()) == 13
    assert not any(model.path.parent.name == COUNTS for model in load_models().values())
    assert {count.grain[:7] for count in statements().values()} == {"one row"}

"""Rows that are in a benchmark: planted copies are found, dropped before every cut, and stale when it changes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pdqhash
import polars as pl
import pytest
from PIL import Image, ImageFilter, ImageOps

from curation_assets.audit.ledger import recorded_ledger
from curation_assets.audit.why import explain, sentence
from curation_assets.core.settings import Settings, load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.freshness import is_up_to_date, materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.own_declared import policies_folder
from curation_assets.numeric.near_duplicates import nearest_hashes
from curation_assets.numeric.ngrams import ngram_hashes
from curation_assets.operations.releases import create_release
from curation_assets.operations.summaries import write_summary
from curation_assets.outputs.report.contamination import contamination_section
from curation_assets.outputs.summary.forms import FORMS
from curation_assets.scoring.benchmark_files import benchmark_sha256, read_benchmark
from curation_assets.selection.policy import Policy
from curation_assets.sources.declaration import add_pool
from curation_assets.stages.signals.contamination import find_in_benchmarks
from curation_assets.stores.denylist import add_to_denylist
from tests.support.command import curate
from tests.support.ledgers import replay
from tests.support.lineage_pools import OPTIONS, score_by_hand, summarise, write_tar
from tests.support.summaries import answer, check_statements
from tests.support.tars import encoded

LONG = "Two brown dogs run over a wet field behind the old red barn while it rains"  # 16 words
SHARD = "photos-000000"


def picture(seed: int, size: tuple[int, int] = (512, 384)) -> Image.Image:
    """Smooth random blobs of colour: every seed another image with the detail that PDQ needs."""
    grid = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    return Image.fromarray(grid).resize(size, Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(1))


def planted_pool(home: Path, **options: Any) -> Settings:
    """Rows 0 to 3 are of benchmark `val`: the file itself, recompressed, mirrored, half as large. Row 4 quotes `asked`.
    The others are unrelated; row 11's caption is blank."""
    images = [encoded(picture(0)), encoded(picture(1), quality=40), encoded(ImageOps.mirror(picture(2)))]
    images.append(encoded(picture(3).resize((256, 192))))
    images += [encoded(picture(100 + number)) for number in range(4, 12)]
    captions = [f"a photo of thing {number} small" for number in range(12)]
    captions[4], captions[11] = f"Buy now: {LONG.upper()}!", " "
    rows = [
        (f"{number:06d}", f"http://host.example/{number}.jpg", caption, image)
        for number, (caption, image) in enumerate(zip(captions, images, strict=True))
    ]
    write_tar(home / "tars" / "000000.tar", rows)
    val = home / "val"
    val.mkdir()
    for number in range(4):
        (val / f"{number}.jpg").write_bytes(encoded(picture(number)))
    (val / "broken.jpg").write_bytes(b"no jpeg")
    lines = [{"question": LONG}, {"captions": ["too short to be found"]}, LONG.replace("dogs", "cats")]
    (home / "asked.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    settings = load_settings(home, "embedded")
    given = {"decontaminate": [str(val), str(home / "asked.jsonl")], **options}
    add_pool(settings, "photos", home / "tars", options=OPTIONS | {"fraction": 0.5} | given)
    return settings


def run(settings: Settings, *, by_hand: bool = True) -> PoolContext:
    """Everything up to the ledger; signals but hashes and contamination are made by hand, or not at all."""
    ctx = PoolContext.open(settings, "photos", run_id="run-8")
    tables = tables_of(ctx)
    for name in ("raw/registered_shards", "raw/downloads", "raw/samples", "signals/pdq_hash"):
        materialise_table(ctx, tables[name], SHARD, tables=tables)
    if by_hand:
        score_by_hand(ctx, SHARD)
    materialise_table(ctx, tables["signals/benchmarks"], tables=tables)
    materialise_table(ctx, tables["signals/contamination"], SHARD, tables=tables)
    if by_hand:
        summarise(ctx)
    return ctx


@pytest.fixture(scope="module")
def ctx(tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    return run(planted_pool(tmp_path_factory.mktemp("home")))


@pytest.mark.slow
def test_planted_copies_and_texts_are_found_and_nothing_else(ctx: PoolContext) -> None:
    found = ctx.store.read("signals/contamination", SHARD).sort("source_row")
    assert found["method"].to_list() == ["bytes", "pdq", "pdq", "pdq", "caption", *[None] * 7]
    assert found["benchmark"].to_list() == ["val"] * 4 + ["asked"] + [None] * 7
    assert found["item"].to_list()[:5] == ["0.jpg", "1.jpg", "2.jpg", "3.jpg", "asked.jsonl:1"]
    assert found["view"].to_list()[:5] == [None, "as it is", "turned", "as it is", None]
    assert found["drop_reason"].to_list()[:6] == ["benchmark:val"] * 4 + ["benchmark:asked", None]
    assert found["value"].to_list() == [0.0] * 5 + [1.0] * 6 + [None]
    assert found["compared_by"].to_list() == [*["pdq"] * 4, "pdq caption", *["pdq"] * 6, None]
    assert found["reason"].to_list() == [*[None] * 11, "upstream_dropped:empty_caption"]
    items = ctx.store.read("signals/benchmarks")
    assert dict(items.drop_nulls("reason").select("item", "reason").iter_rows()) == {
        "broken.jpg": "image_undecodable",
        "asked.jsonl:2": "few_words",
    }


def test_every_policy_leaves_them_out_before_its_first_cut(ctx: PoolContext) -> None:
    for policy in policies_of(ctx):
        assert policy.decontaminate
        ledger = recorded_ledger(ctx.store, policy.name)
        early = pl.concat(ledger.parts()).filter(pl.col("decided_by").is_null())["reason"]
        assert sorted(early) == ["benchmark:asked", *["benchmark:val"] * 4, "empty_caption"]
        npy = np.load(ctx.store.folder_path("filtered/subsets") / f"{policy.name}.npy")
        assert np.array_equal(replay(ledger), npy)
    cut = ctx.store.read("filtered/random_cut").row(0, named=True)
    assert (cut["pool_size"], cut["candidates"], cut["kept"]) == (6, 6, 3)  # half of the 6 of 12 that remain
    (why,) = explain(ctx.settings, "http://host.example/2.jpg")
    assert why["raw"]["status"] == "kept"
    assert {sentence(one) for one in why["policies"]} == {
        "dropped before the first cut: its image or caption is in benchmark val (signals/contamination)"
    }


@pytest.mark.slow
def test_a_changed_benchmark_is_compared_again_and_moves_the_cuts(tmp_path: Path) -> None:
    ctx = run(planted_pool(tmp_path))
    tables = tables_of(ctx)
    chain = [("signals/benchmarks", None), ("filtered/random_cut", None), ("signals/contamination", SHARD)]
    assert all(is_up_to_date(ctx, tables[name], shard, tables=tables) for name, shard in chain)
    before = benchmark_sha256(tmp_path / "val")
    (tmp_path / "val" / "new.png").write_bytes(encoded(picture(105), "PNG"))  # shows what row 5 shows
    assert benchmark_sha256(tmp_path / "val") != before
    assert not is_up_to_date(ctx, tables["signals/benchmarks"], tables=tables)
    ctx = run(ctx.settings)
    reasons = ctx.store.read("filtered/random", SHARD).sort("source_row")["reason"]
    assert reasons[5] == "benchmark:val"
    assert ctx.store.read("filtered/random_cut")["pool_size"].to_list() == [5]


def test_a_pool_without_benchmarks_keeps_the_version_of_its_policies(ctx: PoolContext) -> None:
    plain = Policy(name="clip", rank_by="signals.clip_score", fraction=0.3)
    # as version 0.4 computed it, before there were licences and benchmarks
    fields = {"name": "clip", "rank_by": "signals.clip_score", "fraction": 0.3, "threshold": None, "count": None}
    fields |= {"prefilters": [], "seed": 0, "semantics": "exact", "description": None, "code_version": "1"}
    assert plain.version == hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    others = [{"licences": ("cc0-1.0",)}, {"licences": ("cc0-1.0", "unknown")}, {"decontaminate": True}]
    versions = {Policy(name="clip", rank_by="signals.clip_score", fraction=0.3, **more).version for more in others}
    assert len({plain.version, *versions}) == 4
    with pytest.raises(ValueError, match=r"licences must be SPDX ids such as cc-by-4.0, .* got 'CC BY'"):
        Policy(name="clip", rank_by="random", fraction=0.3, licences=("CC BY",))


@pytest.mark.parametrize("form", ["hex", "bytes", "words", "bits"])
def test_an_array_of_hashes_finds_what_its_images_would(tmp_path: Path, form: str) -> None:
    bits = [np.asarray(pdqhash.compute(np.asarray(picture(seed)))[0], np.uint8) for seed in range(3)]
    packed = np.packbits(np.array(bits), axis=1)  # (3, 32)
    arrays = {
        "hex": np.array([row.tobytes().hex().upper() for row in packed]),
        "bytes": packed,
        "words": packed.view(">u8").astype(np.uint64),
        "bits": np.array(bits),
    }
    np.save(tmp_path / "hashes.npy", arrays[form])
    items = read_benchmark("hashes", tmp_path / "hashes.npy", words=13)
    found = find_in_benchmarks(rows_of([picture(2), picture(7)]), items, 13)
    assert found["item"].to_list() == ["hashes.npy:2", None]
    assert found["distance"].to_list() == [0.0, None]


def rows_of(images: list[Image.Image]) -> pl.DataFrame:
    hashes = [np.packbits(np.asarray(pdqhash.compute(np.asarray(one))[0], np.uint8)).tobytes().hex() for one in images]
    n, none = len(images), pl.Series([None] * len(images), dtype=pl.String)
    return pl.DataFrame(
        {
            "sample_id": [f"{number:032x}" for number in range(n)], "source_row": list(range(n)), "status": "kept",
            "reason": none, "caption": "a b c", "image_sha256": [f"{number:064x}" for number in range(n)],
            "original_sha256": none, "pdq_hash": hashes,
        }
    )  # fmt: skip


def test_vectors_are_compared_by_cosine_and_near_ones_are_named_only(tmp_path: Path) -> None:
    class Descriptor:
        width = 2

    np.save(tmp_path / "sscd.npy", np.array([[3.0, 0.0]]))
    items = read_benchmark("sscd", tmp_path / "sscd.npy", words=13, descriptor=Descriptor())
    angles = np.arccos([0.76, 0.74, 0.59])
    vectors = [[float(np.cos(angle)), float(np.sin(angle))] for angle in angles]
    table = rows_of([picture(20 + number) for number in range(3)]).with_columns(copy_descriptor=pl.Series(vectors))
    found = find_in_benchmarks(table, items, 13)
    assert found["method"].to_list() == ["copy", "copy", None]
    assert found["drop_reason"].to_list() == ["benchmark:sscd", None, None]
    assert found["value"].to_list() == [0.0, 1.0, 1.0]
    with pytest.raises(ValueError, match=r"holds vectors, and no role copy_descriptor"):
        read_benchmark("sscd", tmp_path / "sscd.npy", words=13)


def test_a_flat_image_is_stated_as_not_compared() -> None:
    table = rows_of([picture(1), picture(2)]).with_columns(pdq_hash=pl.Series(["", None], dtype=pl.String))
    items = pl.DataFrame(
        {"benchmark": "b", "benchmark_sha256": "0", "item": "i", "bytes_digest": None, "pdq_hashes": [["00" * 32]],
         "copy_descriptors": None, "ngrams": None, "reason": None},
        schema_overrides={"ngrams": pl.List(pl.UInt64), "copy_descriptors": pl.List(pl.List(pl.Float32))},
    )  # fmt: skip
    found = find_in_benchmarks(table, items, 13)
    assert found["value"].to_list() == [None, None]
    assert set(found["reason"]) == {"not_applicable:nothing_to_compare"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("b.jsonl", b'{"caption": "x"}\n{"caption": 3}', r"b.jsonl, line 2: expected a text, or an object"),
        ("b.jsonl", b"{", r"b.jsonl, line 1 is not JSON"),
        ("b.jsonl", b'"only a few words"', r"nothing can be compared: few_words 1"),
        ("b.npy", b"no array", r"cannot be read as .npy"),
        ("b.tar", b"no tar" * 200, r"b.tar"),
        ("b.csv", b"a", r"expected a folder, .tar, .npy or .jsonl, got .*b.csv"),
        ("b/x.bin", b"a", r"holds none of: .jpg"),
        ("", b"", r"no file or folder .*nowhere; correct the option"),
    ],
)
def test_a_broken_benchmark_is_an_error_that_names_it(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / (name or "nowhere")
    if name:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    given = path.parent if path.parent != tmp_path else path
    settings = load_settings(tmp_path / "home", "embedded")
    row = ("0", "http://a.example/0.jpg", "x y", encoded(picture(0)))
    write_tar(tmp_path / "tars" / "000000.tar", [row])
    add_pool(settings, "photos", tmp_path / "tars", options=OPTIONS | {"decontaminate": [str(given)]})
    ctx = PoolContext.open(settings, "photos")
    tables = tables_of(ctx)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        materialise_table(ctx, tables["signals/benchmarks"], tables=tables)


def test_two_benchmarks_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "val.jsonl").write_text(json.dumps(LONG))
    settings = load_settings(tmp_path / "home", "embedded")
    row = ("0", "http://a.example/0.jpg", "x y", encoded(picture(0)))
    write_tar(tmp_path / "tars" / "000000.tar", [row])
    given = [str(tmp_path / folder / "val.jsonl") for folder in ("a", "b")]
    add_pool(settings, "photos", tmp_path / "tars", options=OPTIONS | {"decontaminate": given})
    ctx = PoolContext.open(settings, "photos")
    tables = tables_of(ctx)
    with pytest.raises(ValueError, match="are both called 'val'; rename one"):
        materialise_table(ctx, tables["signals/benchmarks"], tables=tables)


def test_a_policy_that_leaves_out_benchmarks_needs_some(tmp_path: Path) -> None:
    settings = planted_pool(tmp_path, decontaminate=[])
    folder = policies_folder(PoolContext.open(settings, "photos"))
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("name: mine\nrank_by: random\nfraction: 0.5\ndecontaminate: true\n")
    with pytest.raises(ValueError, match="policy 'mine' leaves out rows of benchmarks, and the pool names none"):
        policies_of(PoolContext.open(settings, "photos"))


@pytest.mark.slow
def test_a_takedown_leaves_nothing_of_the_sample_in_these_tables(tmp_path: Path) -> None:
    ctx = run(planted_pool(tmp_path, policies=["random"]), by_hand=False)
    rows = ctx.store.read("raw/samples", SHARD).filter(pl.col("source_row") == 0)
    home, (sample_id, sha256) = ["--home", str(tmp_path)], rows.select("sample_id", "image_sha256").row(0)
    for words in (["takedown", "add", "--uid", sample_id, *home], ["takedown", "apply", "--pool", "photos", *home]):
        done = curate(*words)
        assert done.exit_code == 0, done.output
    again = run(ctx.settings, by_hand=False)
    found = again.store.read("signals/contamination", SHARD).sort("source_row").row(0, named=True)
    assert (found["item"], found["value"], found["reason"]) == (None, None, "upstream_dropped:takedown")
    # the benchmark has the very same file, whose sha256 is written in no table
    for name in ("signals/benchmarks", "signals/contamination"):
        assert sha256 not in again.store.scan(name).collect().write_json()


def test_nearest_hashes_equal_comparing_all() -> None:
    rng = np.random.default_rng(4)
    known = rng.integers(0, 2**63, (300, 4), dtype=np.uint64)
    hashes = known[rng.integers(0, 300, 200)].copy()
    for row in range(200):  # up to 60 bits apart
        for bit in rng.choice(256, rng.integers(0, 61), replace=False):
            hashes[row, bit // 64] ^= np.uint64(1 << int(bit % 64))
    every = np.bitwise_count(hashes[:, None] ^ known).sum(axis=2, dtype=np.int64)  # (200, 300)
    for limit in (0, 31, 47):
        nearest, bits = nearest_hashes(hashes, known, limit)
        expected = np.where(every.min(axis=1) <= limit, every.argmin(axis=1), -1)
        assert np.array_equal(nearest, expected)
        assert np.array_equal(bits, np.where(expected < 0, -1, every.min(axis=1)))


def test_runs_of_words_forget_case_marks_and_forms() -> None:
    text = "A cat, sitting on the mat!"
    assert len(ngram_hashes(text, 5)) == 2
    assert np.array_equal(ngram_hashes(text, 5), ngram_hashes("a ＣＡＴ sitting... on THE mat", 5))
    assert len(ngram_hashes(text, 7)) == 0
    assert len(ngram_hashes("猫がマットの上", 7)) == 1  # kana and Han: a word each


@pytest.mark.slow
def test_a_release_states_what_it_was_checked_against(ctx: PoolContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than that: val has no texts, so that no caption was compared with it, and asked no images; of the kept
    rows none has a caption of 13 words."""
    tables = tables_of(ctx)
    materialise_table(ctx, tables["raw/provenance"], SHARD, tables=tables)
    release = create_release(ctx, tables, "random", "r1")
    asked, val = release.about["decontamination"]
    assert asked["methods"] == {"caption": "13 words of the caption in a row"}
    assert asked["items_not_compared"] == {"few_words": 1}
    assert val["methods"] == {"bytes": "same bytes", "pdq": "PDQ within 31 of 256 bits"}
    assert val["items_not_compared"] == {"image_undecodable": 1}
    kept = release.counts["kept"]
    sha256 = {
        name: benchmark_sha256(ctx.settings.home / file) for name, file in (("val", "val"), ("asked", "asked.jsonl"))
    }
    statements = [
        f"checked against asked@sha256:{sha256['asked']}: 3 items (of which could not be compared: few_words 1), "
        f"1 rows found in it or near, 1 dropped, 0 kept. Of {kept} kept rows the captions of 0 were compared, by 13 "
        f"words of the caption in a row; {kept} could not be compared.",
        f"checked against val@sha256:{sha256['val']}: 5 items (of which could not be compared: image_undecodable 1), "
        f"4 rows found in it or near, 4 dropped, 0 kept. Of {kept} kept rows the images of {kept} were compared, by "
        "same bytes, PDQ within 31 of 256 bits; 0 could not be compared.",
    ]
    card = (release.folder / "card.md").read_text()
    assert all(f"- {statement}\n" in card for statement in statements)
    for form in FORMS:
        summary = write_summary(ctx.settings.home, release, FORMS[form], Path("none.yaml"))
        assert answer(summary, "Decontamination")["text"] == " ".join(f"C{text[1:]}" for text in statements)
        check_statements(release, summary, monkeypatch)


def test_a_short_caption_is_not_called_compared(tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text(json.dumps(LONG))
    items = read_benchmark("asked", tmp_path / "asked.jsonl", words=13)
    rows = rows_of([picture(1), picture(2)]).with_columns(caption=pl.Series(["a b c", LONG.replace("dogs", "cats")]))
    found = find_in_benchmarks(rows, items, 13)
    assert found["compared_by"].to_list() == ["", "caption"]
    assert found["value"].to_list() == [None, 0.0]  # all but its first three runs of words
    assert found["reason"].to_list() == ["not_applicable:nothing_to_compare", None]


@pytest.mark.slow
def test_the_command_finds_samples_of_a_release_in_any_benchmark(tmp_path: Path) -> None:
    """A pool that was not decontaminated keeps all; its release is then compared with two benchmarks."""
    settings = planted_pool(tmp_path, decontaminate=[], fraction=1.0, policies=["random"])
    ctx = PoolContext.open(settings, "photos")
    for name, table in tables_of(ctx).items():
        if name.startswith(("raw/", "filtered/")):
            materialise_table(ctx, table, SHARD if table.grain == "shard" else None, tables=tables_of(ctx))
    create_release(ctx, tables_of(ctx), "random", "all")
    words = ["evaluate", "contamination", "all", "--home", str(tmp_path), "--against", str(tmp_path / "val")]
    run = curate(*words, "--against", tmp_path / "asked.jsonl", "--json")
    assert run.exit_code == 1, run.output
    output = json.loads(run.stdout)
    assert [(one["benchmark"], one["contained"], one["near"]) for one in output["benchmarks"]] == [
        ("asked", 1, 0),
        ("val", 4, 0),
    ]
    assert [one["method"] for one in output["matches"]] == ["caption", "bytes", "pdq", "pdq", "pdq"]
    assert output["samples"] == 11
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "0.png").write_bytes(encoded(picture(900), "PNG"))
    clean = curate(*words[:-1], tmp_path / "other")
    assert clean.exit_code == 0, clean.output
    assert "11 samples of all, of which 0 could not be compared" in clean.output


def test_the_report_shows_near_ones_beside_the_benchmark(tmp_path: Path) -> None:
    known = picture(0)

    def bits(copy: Image.Image) -> int:
        first, second = (np.asarray(pdqhash.compute(np.asarray(one))[0]) for one in (known, copy))
        return int((first != second).sum())

    crops = (known.crop((left, left, *known.size)) for left in range(1, 200))
    near = next(crop for crop in crops if 36 <= bits(crop) <= 44)
    (tmp_path / "val").mkdir()
    (tmp_path / "val" / "0.png").write_bytes(original := encoded(known, "PNG"))
    images = [encoded(near, "PNG"), encoded(picture(7), "PNG")]
    rows = [(f"{n}", f"http://a.example/{n}.png", f"a photo <{n}>", image) for n, image in enumerate(images)]
    write_tar(tmp_path / "tars" / "000000.tar", rows)
    settings = load_settings(tmp_path, "embedded")
    options = {"decontaminate": [str(tmp_path / "val")], "decontaminate_crops": False, "policies": ["random"]}
    add_pool(settings, "photos", tmp_path / "tars", options=OPTIONS | options)
    ctx = run(settings, by_hand=False)
    section = contamination_section(ctx)
    assert section is not None
    assert [(row["items"], row["dropped"], row["near"]) for row in section["benchmarks"]] == [(1, 0, 1)]
    (pair,) = section["pairs"]
    assert pair["item"] == "val: 0.png"
    assert pair["note"] == f"{bits(near)} bits"
    assert all(pair[side].startswith("data:image/jpeg") for side in ("own", "other"))
    assert pair["own"] != pair["other"]
    add_to_denylist(settings.home, [("sha256", hashlib.sha256(original).hexdigest())])
    (denied,) = contamination_section(ctx)["pairs"]  # type: ignore[index]
    assert denied["own"] == pair["own"]
    assert denied["other"] is None

"""Image methods in a pool: text, clusters, duplicates, quarantine, policies and report, on planted scenes; and on real
photographs where they are at hand."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image

from curation_assets.core.settings import Settings, load_profile, load_settings
from curation_assets.engines import load_engine
from curation_assets.flow.conservation import violations
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.graph import tables_of
from curation_assets.flow.options import DuplicateSettings
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.methods import all_methods, get_method
from curation_assets.scoring.files import read_captions, score_file
from curation_assets.scoring.prepared import roles_needed
from curation_assets.sources.declaration import add_pool
from curation_assets.training.students import train_student
from curation_assets.world.pool import plant_pool, render
from tests.support.near_duplicates import duplicates_of
from tests.support.paths import shared
from tests.support.tars import encoded, tar_of
from tests.support.verdicts import kept_ids

IMAGE_METHODS = ["tmars", "text_spotting", "image_based"]


def write_tar(path: Path, samples: list[tuple[bytes, str]]) -> None:
    """Image bytes and caption per sample, as img2dataset lays them out."""
    members = {}
    for number, (image, caption) in enumerate(samples):
        meta = json.dumps({"url": f"http://example.org/{number:03d}.jpg"}).encode()
        key = f"{number:05d}"
        members |= {f"{key}.jpg": image, f"{key}.txt": caption.encode(), f"{key}.json": meta}
    tar_of(path, members)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return load_settings(tmp_path_factory.mktemp("home"), "embedded")


@pytest.fixture(scope="module")
def student(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of a student, so that the pool needs neither teachers nor the shipped one."""
    folder = tmp_path_factory.mktemp("student")
    planted = [s for s in plant_pool(120, 1) if s.concreteness is not None][:40]
    encoder = load_engine("sentence_encoder", load_profile("embedded"))
    targets = [(s.concreteness or 0) / 3 for s in planted]
    train_student([s.caption for s in planted], targets, folder, sentence_encoder=encoder)
    return f"path:{folder}"


@pytest.fixture(scope="module")
def pool(settings: Settings, student: str, tmp_path_factory: pytest.TempPathFactory) -> PoolContext:
    """22 scenes, then: an exact copy of 0, a re-encoded 1, a listed file, and a re-encoded copy of a listed picture."""
    source = tmp_path_factory.mktemp("source")
    planted = plant_pool(400, 21)
    chosen = [s for s in planted if s.kind == "clean"][:14]
    chosen += [s for s in planted if s.kind == "scene_text"][:3] + [s for s in planted if s.kind == "text_only"][:5]
    samples = [(encoded(render(s), quality=92), s.caption) for s in chosen]
    listed, pictured = (render(s) for s in [s for s in planted if s.kind == "clean"][20:22])
    samples += [
        (samples[0][0], "another caption of the first"),
        (encoded(render(chosen[1]), quality=80), "the second once more"),
        (encoded(listed, quality=92), "a file that is listed"),
        (encoded(pictured, quality=70), "a picture that is listed"),
    ]
    write_tar(source / "00000.tar", samples)
    import pdqhash

    bits, quality = pdqhash.compute(np.asarray(pictured.convert("RGB")))
    assert quality >= 50
    pdq = np.packbits(np.asarray(bits, np.uint8)).tobytes().hex()
    (source / "known.txt").write_text(f"# two\n{hashlib.sha256(samples[24][0]).hexdigest().upper()}\npdq:{pdq}\n")
    (source / "reference").mkdir()
    for number, sample in enumerate(chosen[:6]):
        render(sample).save(source / "reference" / f"{number}.png")
    (source / "reference" / "broken.png").write_bytes(b"no image")
    options = {
        "methods": IMAGE_METHODS,
        "duplicates": {"perceptual_bits": 2, "prefer": "signals.clip_score"},
        "image_clusters": 6,
        "reference_images": str(source / "reference"),
        "hash_lists": [str(source / "known.txt")],
        "fraction": 0.9,
        "caption_count": 1,
    }
    options["image_domain"] = "scenes"  # drawn: what the scene models are worth on photographs is no matter
    add_pool(settings, "scenes", source, options=options, roles={"student": student})
    ctx = PoolContext.open(settings, "scenes")
    run_with_upstream(ctx, "downstream/report")
    return ctx


@pytest.mark.slow
def test_no_row_is_lost(pool: PoolContext) -> None:
    for name in ("text_boxes", "image_embedding", "perceptual_hash", *IMAGE_METHODS):
        table = tables_of(pool)[f"signals/{name}"]
        assert violations(pool, table, "scenes-000000") == []
        frame = pool.store.read(table.name, "scenes-000000")
        assert frame.height == 26
        assert frame["reason"].drop_nulls().to_list() == ["upstream_dropped:quarantined"] * 2, name
    assert violations(pool, tables_of(pool)["fused/duplicates"], None) == []


@pytest.mark.slow
def test_quarantined_images_are_nowhere(pool: PoolContext) -> None:
    samples = pool.store.scan("raw/samples").collect()
    hit = samples.filter(pl.col("reason") == "quarantined")
    assert hit["source_row"].to_list() == [24, 25]
    assert hit["status"].to_list() == ["dropped"] * 2
    for name in ("url", "caption", "tar", "member", "image_sha256", "original_sha256", "width"):
        assert hit[name].null_count() == 2, name
    ids = set(hit["sample_id"])
    for policy in policies_of(pool):
        assert not ids & set(kept_ids(pool, policy.name))
    page = (pool.store.folder_path("downstream/report") / "report.html").read_text()
    assert "dropped quarantined" not in page  # told in a picture, as a count
    for text in ("a file that is listed", "a picture that is listed", *ids):
        assert text not in page


@pytest.mark.slow
def test_duplicates_name_the_sample_that_is_kept(pool: PoolContext) -> None:
    found = pool.store.read("fused/duplicates").sort("source_row").to_dicts()
    scores = pool.store.scan("signals/clip_score").collect().sort("source_row")["value"].to_list()
    pairs = {"exact": (0, 22), "perceptual": (1, 23)}
    for kind, rows in pairs.items():
        kept, dropped = sorted(rows, key=lambda row: -scores[row])
        assert (found[kept]["quality"], found[kept]["kind"]) == (1.0, None)
        assert (found[dropped]["quality"], found[dropped]["kind"]) == (0.0, kind)
        assert found[dropped]["representative"] == found[kept]["sample_id"]
    assert found[24]["quality"] is None


@pytest.mark.slow
def test_intersections_keep_what_both_keep(pool: PoolContext) -> None:
    assert {"tmars", "clip_text_spotting", "sieve_text_spotting", "clip_image_based", "clip_deduplicated"} <= {
        policy.name for policy in policies_of(pool)
    }
    best = set(kept_ids(pool, "clip"))
    assert len(best) == 22  # of 24
    for policy, table, column in (
        ("clip_text_spotting", "signals/text_spotting", "value"),
        ("clip_image_based", "signals/image_based", "value"),
        ("clip_deduplicated", "fused/duplicates", "quality"),
    ):
        passing = pool.store.scan(table).filter(pl.col(column) == 1).collect()["sample_id"]
        assert set(kept_ids(pool, policy)) == best & set(passing), policy
    assert set(kept_ids(pool, "clip_text_spotting")) < best


@pytest.mark.slow
def test_text_is_reported_for_pool_and_subsets(pool: PoolContext) -> None:
    table = pool.store.read("downstream/text_in_images")
    all_of_it = table.row(by_predicate=pl.col("subset") == "all", named=True)
    assert all_of_it["n"] == 24
    assert 8 / 24 <= all_of_it["with_text_share"] <= 12 / 24  # eight show text; JPEG noise reads as letters in a few
    assert 0 < all_of_it["text_spotting_drop_share"] <= 8 / 24
    assert set(table["subset"]) == {"all", *(policy.name for policy in policies_of(pool))}
    page = (pool.store.folder_path("downstream/report") / "report.html").read_text()
    assert "Text in images" in page
    assert "Near-duplicates" in page


@pytest.mark.slow
def test_clusters_count_pool_and_reference(pool: PoolContext) -> None:
    clusters = pool.store.read("signals/image_clusters")
    assert clusters["image_count"].sum() == 24
    assert clusters["reference_count"].sum() == 6  # the broken file is left out
    value = pool.store.scan("signals/image_based").collect()
    of_cluster = dict(zip(clusters["cluster"], clusters["reference_count"], strict=True))
    for row in value.filter(pl.col("rule").is_null() & pl.col("value").is_not_null()).to_dicts():
        assert of_cluster[row["cluster"]] > 0


def test_a_pool_without_the_signals_has_none_of_the_policies(settings: Settings, student: str, tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", [(encoded(Image.new("RGB", (32, 32))), "black")])
    add_pool(settings, "plain", tmp_path, options={"methods": ["image_based"]}, roles={"student": student})
    ctx = PoolContext.open(settings, "plain")
    assert not {"tmars", "clip_text_spotting", "clip_deduplicated"} & {policy.name for policy in policies_of(ctx)}
    with pytest.raises(ValueError, match="names no reference images"):
        run_with_upstream(ctx, "signals/image_based")


def test_duplicates_in_words() -> None:
    """Blank pictures with one hash, a chain of hashes, and rows that cannot be compared."""
    hashes = ["0" * 16, "0" * 16, "0" * 16, "000000000000000f", "00000000000000ff", None, None]
    n = len(hashes)
    rows = pl.DataFrame(
        {
            "sample_id": [f"{i:032x}" for i in range(n)],
            "shard": ["s"] * n,
            "source_row": list(range(n)),
            "image_sha256": ["a", "a", "b", "c", "d", "e", None],
            "width": [10, 10, 20, 10, 10, 10, None],
            "height": [10] * 6 + [None],
            "status": ["kept"] * 6 + ["dropped"],
            "reason": [None] * 6 + ["quarantined"],
            "perceptual_hash": hashes,
            "perceptual_hash_reason": [None] * 5 + ["engine_error:OSError", None],
        }
    )
    found = duplicates_of(rows, DuplicateSettings(perceptual_bits=4))
    big = f"{2:032x}"
    assert found["quality"].to_list() == [0, 0, 1, 0, 1, None, None]  # 4 is 8 bits from the kept one
    assert found["representative"].to_list() == [big, big, big, big, f"{4:032x}", None, None]
    assert found["kind"].to_list() == ["perceptual", "perceptual", None, "perceptual", None, None, None]
    assert found["distance"].to_list() == [0, 0, None, 4, None, None, None]
    assert found["reason"].to_list()[5:] == ["engine_error:OSError", "upstream_dropped:quarantined"]
    files = duplicates_of(rows, DuplicateSettings(perceptual_bits=None))
    assert files["kind"].to_list() == [None, "exact", None, None, None, None, None]
    vectors = rows.with_columns(
        image_embedding=pl.Series([[1.0, 0.0], [1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [0.995, 0.0999], [0.8, 0.6], None]),
        image_embedding_reason=pl.lit(None, pl.String),
    )
    near = duplicates_of(vectors, DuplicateSettings(perceptual_bits=None, cosine=0.99))
    assert near["kind"].to_list() == [None, "exact", None, None, "semantic", None, None]
    assert near["distance"][4] == pytest.approx(0.005, abs=1e-6)
    for setting in ({"perceptual_bits": 16}, {"cosine": 0.0}, {"prefer": "fused.sieve_clip"}):
        with pytest.raises(ValueError, match=r"duplicates: .*(perceptual_bits|cosine|prefer)"):
            DuplicateSettings(**setting)


def test_image_based_without_clusters_says_so() -> None:
    method = get_method("image_based")
    values = method.function(**method.example.columns, **method.example.roles)
    assert values.reason == ["no_clusters"] * 4
    assert values.details["rule"] == [None] * 4


# --- real photographs ---


def test_image_methods_run_on_real_photographs(settings: Settings, student: str, tmp_path: Path) -> None:
    shard = shared("photos/000003.tar")
    with tarfile.open(shard) as tar:
        wanted = sorted(name for name in tar.getnames() if name.endswith(".jpg"))[:24]
        samples = [
            (tar.extractfile(name).read(), tar.extractfile(name[:-3] + "txt").read().decode())  # type: ignore[union-attr]
            for name in wanted
        ]
    first = Image.open(io.BytesIO(samples[0][0]))
    samples += [(encoded(first, quality=60), "the first, at another quality")]
    write_tar(tmp_path / "000000.tar", samples)
    reference = tmp_path / "reference.npy"
    options = {"methods": IMAGE_METHODS, "duplicates": True, "reference_images": str(reference), "image_clusters": 4}
    add_pool(settings, "photos", tmp_path, options=options, roles={"student": student})
    np.save(reference, np.ones((3, 128), np.float32))
    ctx = PoolContext.open(settings, "photos")
    for name in ("signals/clip_score", "signals/tmars", "signals/text_spotting", "signals/image_based"):
        run_with_upstream(ctx, name)
        frame = ctx.store.read(name, "photos-000000")
        assert frame.height == 25
        assert frame["value"].null_count() == 0, frame["reason"]
    run_with_upstream(ctx, "fused/duplicates")
    found = ctx.store.read("fused/duplicates").sort("source_row")
    assert found["quality"].sum() == 24
    assert {found["kind"][0], found["kind"][24]} == {None, "perceptual"}


def test_tmars_scores_a_tar_without_dagster(tmp_path: Path) -> None:
    sample = next(s for s in plant_pool(100, 3) if s.kind == "text_only")
    image = encoded(render(sample), quality=92)
    write_tar(tmp_path / "a.tar", [(image, sample.caption), (b"no image", "x")])
    names = roles_needed(all_methods()["tmars"], read_captions(tmp_path / "a.tar").columns)
    assert names == ["image_text_encoder", "text_spotter"]
    roles = {name: load_engine(name, load_profile("embedded")) for name in names}
    scored = score_file(get_method("tmars"), tmp_path / "a.tar", tmp_path / "out.csv", roles)
    assert scored["tmars_reason"].to_list() == [None, "image_undecodable"]

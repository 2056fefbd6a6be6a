"""Releases: a folder that proves itself, is never written again, and gives way to the next one after a takedown."""

import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
import numpy as np
import polars as pl
import pytest
from typer.testing import Result

from curation_assets.audit import release_ledger as release_ledger_module
from curation_assets.audit.ledger import recorded_ledger
from curation_assets.audit.release_diff import compare_releases
from curation_assets.audit.release_ledger import release_ledger
from curation_assets.core.errors import StoreError
from curation_assets.core.settings import load_settings
from curation_assets.core.table_names import SUBSETS
from curation_assets.defs.launch import prepare_instance
from curation_assets.defs.releases import partitions_name, record_releases
from curation_assets.defs.takedown import withdraw_denied
from curation_assets.evaluation.training_sets import _subset_file
from curation_assets.flow.context import PoolContext
from curation_assets.flow.graph import tables_of
from curation_assets.operations import releases as releases_module
from curation_assets.operations.releases import affected_releases, create_release, verify_release, withdraw
from curation_assets.operations.takedown import begin_takedown, finish_takedown
from curation_assets.outputs.exports.subset import find_subset, subset_of_release
from curation_assets.outputs.summary.declared import Declared
from curation_assets.outputs.summary.facts import Facts
from curation_assets.selection import rows as pool_rows
from curation_assets.sources.declaration import load_pool, save_pool
from curation_assets.stores.denylist import add_to_denylist
from curation_assets.stores.file_hash import sha256_now
from curation_assets.stores.releases import (
    LEDGER_FOLDER,
    RELEASE_FILE,
    SUBSET_NPY,
    SUBSET_PARQUET,
    MissingReleaseError,
    Release,
    find_release,
    list_releases,
    read_release,
    release_folder,
)
from tests.support.command import curate as in_process
from tests.support.id_lists import read_subset, unpack_uids
from tests.support.lineage_pools import (
    bring_up_to_date,
    caption_of,
    finished_photos,
    jpeg,
    summarise,
    write_tar,
)
from tests.support.paths import REPOSITORY


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a pool of 24 samples, up to its ledgers."""
    home = tmp_path_factory.mktemp("made")
    finished_photos(home)
    return home


@pytest.fixture
def ctx(made: Path, tmp_path: Path) -> PoolContext:
    home = tmp_path / "home"
    shutil.copytree(made, home, symlinks=True)
    settings = load_settings(home, "embedded")
    save_pool(settings, dataclasses.replace(load_pool(settings, "photos"), source=str(home / "tars")))
    return PoolContext.open(settings, "photos")


def release_of(ctx: PoolContext, subset: str = "icc", name: str = "v1") -> Release:
    return create_release(ctx, tables_of(ctx), subset, name)


def ledger_of(release: Release) -> pl.DataFrame:
    return pl.concat(release_ledger(release).parts())


def ids_of(release: Release) -> list[str]:
    return read_subset(release.folder / SUBSET_NPY)


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def curate(ctx: PoolContext, *arguments: object) -> Result:
    words = [str(one) for one in (*arguments, "--home", ctx.settings.home)]
    return in_process(*words)


# -- what it holds


def test_a_release_is_the_pools_subset_and_ledger_with_all_that_made_them(ctx: PoolContext) -> None:
    release = release_of(ctx)
    folder, subsets = release.folder, ctx.store.folder_path(SUBSETS)
    assert folder == ctx.settings.home / "releases" / "photos" / "v1"
    assert (folder / SUBSET_NPY).read_bytes() == (subsets / "icc.npy").read_bytes()
    assert (folder / SUBSET_PARQUET).read_bytes() == (subsets / "icc.parquet").read_bytes()
    for shard in ctx.store.partitions("filtered/icc"):
        assert (folder / LEDGER_FOLDER / f"{shard}.parquet").samefile(ctx.store.table_path("filtered/icc", shard))
    assert release.counts == {"rows": 24, "kept": 6, "dropped": 17, "failed": 1}
    assert release.models[0]["weights_sha256"] == "ab" * 32
    manifests = [json.loads(line) for line in (folder / "manifests.jsonl").read_text().splitlines()]
    made = {(one["asset"], one["partition"]): one["content_sha256"] for one in manifests}
    for asset in ("raw/samples", "signals/icc", "filtered/icc"):
        for shard in ctx.store.partitions(asset):
            assert made[asset, shard] == ctx.store.manifest(asset, shard).content_sha256  # type: ignore[union-attr]
    assert {("filtered/icc_cut", None), (SUBSETS, None)} <= set(made)
    assert not any(asset == "signals/sieve" for asset, _ in made), "the policy does not rest on it"
    card = (folder / "card.md").read_text()
    assert "6 samples of 24 rows, kept by policy `icc`" in card
    assert release_ledger(release).sha256 in card
    assert {path.stat().st_mode & 0o222 for path in folder.rglob("*") if path.is_file()} == {0}
    assert read_release(folder) == release
    assert verify_release(folder) == []


def test_captions_urls_and_images_stay_in_the_pool(ctx: PoolContext) -> None:
    release = release_of(ctx)
    needles = [b"//host0.example", b"host0.example/", b"a photo of thing", jpeg(9)[:64]]
    for name, data in bytes_of(release.folder).items():
        if name.endswith(".parquet"):
            data = repr(pl.read_parquet(release.folder / name).rows()).encode()
        assert not any(needle in data for needle in needles), name


def test_a_name_is_taken_once_and_releases_follow_one_another(ctx: PoolContext) -> None:
    first = release_of(ctx)
    before = bytes_of(first.folder)
    with pytest.raises(ValueError, match="'v1' of pool 'photos' already, which never changes"):
        release_of(ctx, "clip")
    assert bytes_of(first.folder) == before
    other = release_of(ctx, "clip", "a-clip")
    second = release_of(ctx, "icc", "2026.11")
    assert (first.previous, other.previous, second.previous) == (None, None, "v1")
    assert [one.name for one in list_releases(ctx.settings.home)] == ["v1", "a-clip", "2026.11"]
    assert find_release(ctx.settings.home, "v1", "photos") == first
    with pytest.raises(MissingReleaseError, match="did you mean 'v1'"):
        find_release(ctx.settings.home, "v11")
    assert find_release(ctx.settings.home, str(first.folder)) == first
    with pytest.raises(MissingReleaseError, match=r"no release: it has no release\.json"):
        find_release(ctx.settings.home, str(first.folder.parent))
    with pytest.raises(ValueError, match="is a release of pool 'photos', not of 'other'"):
        find_release(ctx.settings.home, str(first.folder), "other")
    for name in ("V1", "", ".hidden", "a/b", "..", "x" * 65):
        with pytest.raises(ValueError, match="a release's name has"):
            release_of(ctx, "icc", name)


def test_the_same_request_again_is_done(ctx: PoolContext) -> None:
    """As after a kill between the rename of the folder and the command's last line."""
    first = release_of(ctx)
    before = bytes_of(first.folder)
    assert release_of(ctx) == read_release(first.folder)
    assert bytes_of(first.folder) == before
    assert [one.name for one in list_releases(ctx.settings.home)] == ["v1"]
    grown(ctx)
    with pytest.raises(ValueError, match=r"'v1' of pool 'photos' already.*choose a new name"):
        release_of(ctx)
    withdraw(ctx.settings.home, "photos", ids_of(first)[:1])
    with pytest.raises(ValueError, match=r"withdrawn, see 'v1\.1'.*choose a new name"):
        release_of(ctx)


# -- what is refused


@pytest.mark.slow
def test_stale_tables_are_refused_with_what_to_run(ctx: PoolContext) -> None:
    shard = ctx.store.partitions("signals/icc")[1]
    table = ctx.store.read("signals/icc", shard).with_columns(value=pl.col("value") / 2)
    ctx.store.write("signals/icc", table, shard, code_version="8")
    with pytest.raises(StoreError, match=r"is stale.*`curate run photos` brings it up to date"):
        release_of(ctx)
    assert list_releases(ctx.settings.home) == []
    out = ctx.settings.home / "exported"
    exported = curate(ctx, "export", "npy", "icc", "--pool", "photos", "--out", out)
    assert exported.exit_code == 0
    assert "is stale" in exported.output
    assert "this export is of the last run" in exported.output
    kept = read_subset(out / "sample_ids.npy")
    add_to_denylist(ctx.settings.home, [("uid", kept[0])])
    applied = curate(ctx, "takedown", "apply")
    assert f"`curate takedown apply --export {out} --home {ctx.settings.home}` takes them out" in applied.output


def test_a_takedown_that_is_not_applied_is_refused_with_what_to_run(ctx: PoolContext) -> None:
    kept = unpack_uids(recorded_ledger(ctx.store, "icc").subset())
    add_to_denylist(ctx.settings.home, [("uid", kept[0])])
    with pytest.raises(StoreError, match="filtered/subsets is stale"):
        release_of(ctx)
    bring_up_to_date(ctx.settings)
    with pytest.raises(StoreError, match=r"list different samples; `curate takedown apply --pool photos` purges them"):
        release_of(ctx)


def test_policies_without_a_ledger_or_a_declaration_are_refused(ctx: PoolContext) -> None:
    with pytest.raises(StoreError, match="no ledger of policy 'nothing'"):
        release_of(ctx, "nothing")
    for name in ("icc", "icc_cut"):
        source = ctx.store.asset_path(f"filtered/{name}")
        shutil.copytree(source, source.with_name(name.replace("icc", "old")))
    with pytest.raises(StoreError, match="no longer has a policy 'old'"):
        release_of(ctx, "old")


# -- what is found


def flipped(data: bytes, position: int) -> bytes:
    """With one bit changed."""
    return data[: position // 8] + bytes([data[position // 8] ^ 1 << position % 8]) + data[position // 8 + 1 :]


def test_a_copied_folder_alone_verifies_and_a_flip_in_any_file_is_found(ctx: PoolContext, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(release_of(ctx).folder, copy)
    shutil.rmtree(ctx.settings.home)
    assert verify_release(copy) == []
    rng = np.random.default_rng(0)
    files = bytes_of(copy)
    assert len(files) == 11
    for name, data in files.items():
        path = copy / name
        path.chmod(0o644)
        for position in rng.choice(8 * len(data), 40, replace=False).tolist():
            path.write_bytes(flipped(data, position))
            problems = verify_release(copy)
            assert any(name in problem for problem in problems), (name, position)
        path.write_bytes(data)
    assert verify_release(copy) == []


def test_files_more_less_or_linked_are_found(ctx: PoolContext, tmp_path: Path) -> None:
    folder = release_of(ctx).folder
    (folder / LEDGER_FOLDER / "more.txt").write_text("")
    assert verify_release(folder) == ["ledger/more.txt is not part of the release"]
    (folder / LEDGER_FOLDER / "more.txt").unlink()
    shutil.move(folder / "card.md", tmp_path / "card.md")
    assert verify_release(folder) == ["card.md is missing"]
    (folder / "card.md").symlink_to(tmp_path / "card.md")
    assert verify_release(folder) == ["card.md is a link or no file; expected its bytes"]
    assert "is no release" in verify_release(tmp_path)[0]


def forged(release: Release, name: str, data: bytes) -> list[str]:
    """Problems once a file is changed and its hash with it."""
    path = release.folder / name
    before = path.read_bytes()
    path.unlink()  # it may be a file of the pool, too
    path.write_bytes(data)
    facts = {"sha256": sha256_now(path), "bytes": len(data)}
    dataclasses.replace(release, files={**release.files, name: facts}).write()
    problems = verify_release(release.folder)
    path.write_bytes(before)
    release.write()
    assert verify_release(release.folder) == []
    return problems


def test_files_that_do_not_follow_from_the_ledger_are_found_although_their_hashes_fit(
    ctx: PoolContext, tmp_path: Path
) -> None:
    release, other = release_of(ctx), release_of(ctx, "clip", "other")
    for name in (SUBSET_NPY, SUBSET_PARQUET, "cuts.json"):
        (problem,) = forged(release, name, (other.folder / name).read_bytes())
        assert problem.startswith(f"{name} does not"), problem
    policy = (release.folder / "icc.yaml").read_bytes().replace(b"0.25", b"0.26")
    assert forged(release, "icc.yaml", policy) == ["icc.yaml is not the policy of ledger/*.parquet"]
    (problem,) = forged(release, "manifests.jsonl", b"")
    assert "names models that manifests.jsonl does not" in problem
    cuts = json.loads((release.folder / "cuts.json").read_text())
    cuts["cuts"][0]["threshold"] -= 1e-9  # which no row's verdict shows
    (problem,) = forged(release, "cuts.json", f"{json.dumps(cuts, indent=1, sort_keys=True)}\n".encode())
    assert "another verdict or reason than recorded" in problem

    name = f"{LEDGER_FOLDER}/photos-000001.parquet"
    rows = pl.read_parquet(release.folder / name)
    for change in (-pl.col("signals_icc"), pl.col("signals_icc") + 1e-9):
        rows.with_columns(change.alias("signals_icc")).write_parquet(tmp_path / "l.parquet")
        (problem,) = forged(release, name, (tmp_path / "l.parquet").read_bytes())
        assert "another verdict or reason than recorded" in problem
    (problem,) = forged(release, name, b"no parquet")
    assert problem.startswith("cannot be read")

    dataclasses.replace(release, counts={**release.counts, "rows": 25}).write()
    assert verify_release(release.folder) == ["release.json counts other rows than ledger/*.parquet has"]


# -- kills


class Killed(BaseException):
    """What a process that is killed would never catch."""


def killed_at(number: int, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """From now on the `number`-th change of a file is not made, and ends the call."""
    changes = itertools.count()

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **settings: Any) -> Any:
            if next(changes) == number:
                raise Killed
            return change(*args, **settings)

        return made

    for name in names:
        monkeypatch.setattr(releases_module, name, counted(getattr(releases_module, name)))
    monkeypatch.setattr(Release, "write", counted(Release.write))
    monkeypatch.setattr(releases_module.shutil, "copyfile", counted(shutil.copyfile))
    monkeypatch.setattr(release_ledger_module, "share", counted(release_ledger_module.share))


WRITES = ("write_release_ledger", "write_sorted_subset", "save_text", "verify_release")


def test_a_creation_that_ends_at_any_step_leaves_nothing(ctx: PoolContext) -> None:
    folder = ctx.settings.home / "releases" / "photos"
    for number in itertools.count():
        with pytest.MonkeyPatch.context() as monkeypatch:
            killed_at(number, monkeypatch, *WRITES)
            try:
                release_of(ctx)
                break
            except Killed:
                assert list(folder.iterdir()) == []
                assert list_releases(ctx.settings.home) == []
    assert number >= 10
    assert [path.name for path in folder.iterdir()] == ["v1"]


@pytest.mark.slow
def test_a_creation_that_is_killed_leaves_nothing_that_counts(ctx: PoolContext) -> None:
    home = ctx.settings.home
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from curation_assets.core.settings import load_settings\n"
        "from curation_assets.flow.context import PoolContext\n"
        "from curation_assets.flow.graph import tables_of\n"
        "from curation_assets.operations import releases\n"
        "releases.verify_release = lambda folder: os.kill(os.getpid(), signal.SIGKILL)\n"
        "ctx = PoolContext.open(load_settings(Path(sys.argv[1]), 'embedded'), 'photos')\n"
        "releases.create_release(ctx, tables_of(ctx), 'icc', 'v1')\n"
    )
    run = subprocess.run([sys.executable, "-c", script, str(home)], cwd=REPOSITORY, env=os.environ)
    assert run.returncode == -signal.SIGKILL
    folder = home / "releases" / "photos"
    assert [path.name[:8] for path in folder.iterdir()] == [".v1.tmp-"]
    assert list_releases(home) == []
    release = release_of(ctx, "icc", "another-name")
    assert [path.name for path in folder.iterdir()] == ["another-name"], "what the dead process left was removed"
    assert verify_release(release.folder) == []


# -- growth and differences


def grown(ctx: PoolContext) -> None:
    """A fourth shard, of samples 24 to 31, judged by the frozen cuts."""
    rows = [(f"{n:06d}", f"http://host{n % 3}.example/{n}.jpg", caption_of(n), jpeg(n)) for n in range(24, 32)]
    write_tar(ctx.settings.home / "tars" / "000003.tar", rows)
    bring_up_to_date(ctx.settings)


def test_the_difference_that_a_pools_growth_makes(ctx: PoolContext) -> None:
    before = release_of(ctx)
    grown(ctx)
    after = release_of(ctx, "icc", "v2")
    assert (after.previous, after.counts["rows"]) == ("v1", 32)
    old, new = set(ids_of(before)), set(ids_of(after))
    assert old < new
    difference = compare_releases(before, after, ctx.store)
    for part in (1, 5):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pool_rows, "ROWS_AT_ONCE", part)
            assert compare_releases(before, after, ctx.store).to_dict() == difference.to_dict()
    assert (difference.overlap.both, difference.overlap.only_left) == (len(old), 0)
    assert difference.reasons.rows() == [("in", "not_in_pool", len(new - old))]
    samples = ctx.store.scan("raw/samples").filter(pl.col("sample_id").is_in(list(new - old))).collect()
    captions = dict(samples.select("sample_id", "caption").iter_rows())
    assert {row["sample_id"]: row["caption"] for row in difference.examples.to_dicts()} == dict(
        sorted(captions.items())[:5]
    )
    hosts = samples["url"].str.extract(r"//([^/]*)/").value_counts().rows()
    groups = difference.groups
    assert groups is not None
    assert sorted(groups.filter(pl.col("dimension") == "domain").select("group", "in").rows()) == sorted(hosts)
    lengths = groups.filter(pl.col("dimension") == "caption length")
    assert (lengths["in"].sum(), lengths["out"].sum()) == (len(new - old), 0)
    back = compare_releases(after, before, None)
    assert back.reasons.rows() == [("out", "not_in_pool", len(new - old))]
    assert back.groups is None
    assert back.examples["caption"].null_count() == back.examples.height > 0


def test_the_difference_of_two_policies_is_that_of_their_ledgers(ctx: PoolContext) -> None:
    left, right = release_of(ctx), release_of(ctx, "clip", "clip-1")
    difference = compare_releases(left, right, ctx.store, examples=2)
    mine, other = set(ids_of(left)), set(ids_of(right))
    overlap = difference.overlap
    assert (overlap.left, overlap.right, overlap.both) == (len(mine), len(other), len(mine & other))
    counted: dict[tuple[str, str], int] = {}
    for change, one_has, other_not in (("in", right, left), ("out", left, right)):
        reasons = dict(ledger_of(other_not).select("sample_id", "reason").iter_rows())
        for one in set(ids_of(one_has)) - set(ids_of(other_not)):
            counted[change, reasons[one]] = counted.get((change, reasons[one]), 0) + 1
    assert {(change, reason): n for change, reason, n in difference.reasons.rows()} == counted
    assert {row["change"] for row in difference.models.to_dicts()} == {"in", "out"}
    json.dumps(difference.to_dict())


# -- takedowns


def traces(folder: Path, sample_ids: list[str]) -> list[str]:
    """Files that name a sample, in hex digits, as packed bytes, or as a value of a table."""
    found = []
    for name, data in bytes_of(folder).items():
        texts = [data]
        if name.endswith(".parquet"):
            texts.append(repr(pl.read_parquet(folder / name).rows()).encode())
        for sample_id in sample_ids:
            high, low = int(sample_id[:16], 16), int(sample_id[16:], 16)
            packed = [number.to_bytes(8, order) for number in (high, low) for order in ("little", "big")]
            needles = [sample_id.encode(), sample_id[:16].encode(), str(high).encode(), str(low).encode(), *packed]
            if any(needle in text for needle in needles for text in texts):
                found.append(name)
    return found


def test_a_takedown_withdraws_and_makes_the_next_release(ctx: PoolContext) -> None:
    home = ctx.settings.home
    release, clip = release_of(ctx), release_of(ctx, "clip", "clip")
    ids = ids_of(release)
    boundary = release_ledger(release).cut.cuts[-1].boundary_id
    assert boundary in ids
    dropped = next(one for one in ids_of(clip) if one not in ids)
    taken = [boundary, dropped]
    assert traces(home / "releases", taken)
    assert affected_releases(home, "photos", ["0" * 32]) == []
    add_to_denylist(home, [("uid", one) for one in taken])
    tables = tables_of(ctx)
    begun = begin_takedown(ctx, tables)
    assert begun is not None
    bring_up_to_date(ctx.settings)
    certificate, path = finish_takedown(ctx, tables, begun)
    assert certificate["releases_withdrawn"] == ["v1", "clip"]

    assert traces(home / "releases", taken) == []
    old, _, new, _ = list_releases(home)
    assert old.withdrawn is not None
    assert (old.withdrawn.next, old.withdrawn.kept, old.withdrawn.rows) == ("v1.1", 1, 2)
    assert home / old.withdrawn.certificate == path
    assert old.withdrawn.files == release.files
    assert (new.name, new.previous, new.original, new.left_out) == ("v1.1", "v1", "v1", {"takedown": 2})
    assert ids_of(new) == [one for one in ids if one not in taken]
    assert verify_release(new.folder) == []
    assert verify_release(old.folder) == []
    assert [path.name for path in old.folder.iterdir()] == [RELEASE_FILE]
    with pytest.raises(MissingReleaseError, match=r"'v1' was withdrawn .* use 'v1\.1'"):
        subset_of_release(ctx, old)
    (old.folder / "left.parquet").write_text("")
    assert verify_release(old.folder) == ["left.parquet is not part of the release"]
    # what is made from the pool now lists neither the samples nor their rows
    fresh = release_of(ctx, "icc", "v2")
    assert (fresh.previous, fresh.counts["rows"], fresh.left_out) == ("v1.1", 22, {"takedown": 2})
    assert traces(fresh.folder, taken) == []
    assert verify_release(fresh.folder) == []


@pytest.mark.slow
def test_a_withdrawal_killed_at_any_step_is_finished_by_the_next(ctx: PoolContext, tmp_path: Path) -> None:
    release_of(ctx)
    undisturbed = ctx.settings.home / "releases"
    taken = ids_of(find_release(ctx.settings.home, "v1"))[1:3]
    for number in itertools.count():
        home = tmp_path / f"killed-{number}"
        shutil.copytree(undisturbed, home / "releases")
        with pytest.MonkeyPatch.context() as monkeypatch:
            killed_at(number, monkeypatch, *WRITES, "remove_path")
            try:
                withdraw(home, "photos", taken)
                was_killed = False
            except Killed:
                was_killed = True
        withdraw(home, "photos", taken)
        assert traces(home, taken) == [], number
        old, new = list_releases(home)
        assert old.withdrawn is not None
        assert (old.withdrawn.next, new.name, new.counts["kept"]) == ("v1.1", "v1.1", 4)
        assert [verify_release(one.folder) for one in (old, new)] == [[], []]
        assert sorted(path.name for path in (home / "releases" / "photos").iterdir()) == ["v1", "v1.1"]
        assert withdraw(home, "photos", taken) == []
        if not was_killed:
            break
    assert number > 10
    more = ids_of(new)[:1]
    withdraw(home, "photos", more)
    assert [(one.name, one.previous) for one in list_releases(home)] == [("v1", None), ("v1.1", "v1"), ("v1.2", "v1.1")]
    assert traces(home, [*taken, *more]) == []
    withdraw(home, "photos", ids_of(list_releases(home)[-1]))
    assert list_releases(home)[-1].counts["kept"] == 0
    assert verify_release(list_releases(home)[-1].folder) == []


def test_a_release_that_was_restored_from_a_copy_is_withdrawn_again(ctx: PoolContext, tmp_path: Path) -> None:
    release = release_of(ctx)
    taken = ids_of(release)[:1]
    shutil.copytree(release.folder, tmp_path / "copy")
    withdraw(ctx.settings.home, "photos", taken)
    shutil.rmtree(release.folder)
    shutil.copytree(tmp_path / "copy", release.folder)
    assert withdraw_denied(ctx.settings, "photos") == []
    add_to_denylist(ctx.settings.home, [("uid", taken[0])])
    assert withdraw_denied(ctx.settings, "photos") == ["v1"]
    assert traces(ctx.settings.home / "releases", taken) == []
    assert [one.name for one in list_releases(ctx.settings.home)] == ["v1", "v1.1"]
    assert withdraw_denied(ctx.settings, "photos") == []


def test_a_release_that_cannot_be_searched_stops_a_takedown(ctx: PoolContext) -> None:
    release = release_of(ctx)
    release.ledger_paths[1].chmod(0o644)
    release.ledger_paths[1].write_bytes(b"damaged")
    with pytest.raises(StoreError, match="release 'v1' cannot be searched"):
        withdraw(ctx.settings.home, "photos", ["0" * 32])


# -- who reads them


def test_exports_and_training_sets_take_a_release(ctx: PoolContext, tmp_path: Path) -> None:
    release = release_of(ctx)
    frozen = ids_of(release)
    for shard in ctx.store.partitions("raw/samples"):  # the pool goes on: other values, other subsets
        table = ctx.store.read("signals/icc", shard).with_columns(value=-pl.col("value"))
        ctx.store.write("signals/icc", table, shard, code_version="8")
    ctx.store.remove("filtered/icc_cut")
    summarise(ctx)
    assert find_subset(ctx, "icc").sample_ids != frozen
    assert subset_of_release(ctx, release).sample_ids == frozen
    out = tmp_path / "out"
    shown = curate(ctx, "export", "hf", "--release", "v1", "--out", out)
    assert shown.exit_code == 0, shown.output
    assert read_subset(out / "sample_ids.npy") == frozen
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["subset"]["release"] == "v1"
    assert manifest["subset"]["chosen_by"]["ledger_sha256"] == release_ledger(release).sha256
    assert "by policy `icc` (release `v1`)" in (out / "README.md").read_text()
    assert "chosen by policy icc, release v1" in (out / "croissant.json").read_text()
    assert "one of them" in curate(ctx, "export", "npy", "icc", "--release", "v1", "--out", tmp_path / "x").output
    assert "one of them" in curate(ctx, "export", "npy", "--out", tmp_path / "x").output
    assert read_subset(_subset_file(ctx, "release:v1")) == frozen
    withdraw(ctx.settings.home, "photos", frozen[:1])
    for again in (
        lambda: _subset_file(ctx, "release:v1"),
        lambda: subset_of_release(ctx, read_release(release.folder)),
    ):
        with pytest.raises(MissingReleaseError, match=r"use 'v1\.1'"):
            again()
    assert "use 'v1.1'" in curate(ctx, "export", "npy", "--release", "v1", "--out", tmp_path / "x").output


def test_dagster_shows_releases_and_their_withdrawal(ctx: PoolContext) -> None:
    release_of(ctx)
    assert record_releases(ctx.settings, "photos") == ["v1"]
    assert record_releases(ctx.settings, "photos") == []
    instance = prepare_instance(ctx.settings)
    key = dg.AssetKey(["photos", "releases"])
    assert instance.get_dynamic_partitions(partitions_name("photos")) == ["v1"]
    assert instance.get_materialized_partitions(key) == {"v1"}
    event = instance.get_latest_materialization_event(key)
    assert event is not None
    assert event.asset_materialization.metadata["dagster/partition_row_count"].value == 6  # type: ignore[union-attr]
    withdraw(ctx.settings.home, "photos", ids_of(find_release(ctx.settings.home, "v1"))[:1])
    assert record_releases(ctx.settings, "photos") == ["v1", "v1.1"]
    (record, _) = instance.fetch_materializations(key, limit=2, ascending=False).records[::-1]
    metadata = record.asset_materialization.metadata  # type: ignore[union-attr]
    assert metadata["use instead"].value == "v1.1"


def test_dagster_shows_where_the_rows_of_a_release_come_from(ctx: PoolContext) -> None:
    release = release_of(ctx)
    record_releases(ctx.settings, "photos")
    instance = prepare_instance(ctx.settings)
    assert instance.get_materialized_partitions(dg.AssetKey(["photos", "releases", "summary"])) == {"v1"}
    event = instance.get_latest_materialization_event(dg.AssetKey(["photos", "releases", "summary"]))
    assert event is not None
    metadata = event.asset_materialization.metadata  # type: ignore[union-attr]
    kept = ledger_of(release).filter(verdict="kept")
    rows = pl.read_parquet(release.folder / "provenance.parquet").join(
        kept.select("shard", "source_row"), on=["shard", "source_row"], how="semi"
    )
    domains = rows["domain"].unique().to_list()
    assert domains
    assert not [one for one in domains if one in repr(metadata)], "a takedown of its only sample would leave it there"
    assert metadata["kept"].value == rows.height
    assert [one.data for one in metadata["sources"].records] == [{"source": "photos", "rows": 24, "kept": 6}]


@pytest.mark.slow
def test_the_commands(ctx: PoolContext) -> None:
    assert "no releases; make one" in curate(ctx, "release", "list").output
    other = curate(ctx, "release", "create", "icc", "v1")
    assert "was made with profile 'embedded', not 'photos'; give --profile embedded" in other.output
    made = curate(ctx, "release", "create", "icc", "v1", "--profile", "embedded")
    assert made.exit_code == 0, made.output
    assert "v1: 6 samples of 24 rows of pool photos" in made.output
    assert prepare_instance(ctx.settings).get_materialized_partitions(dg.AssetKey(["photos", "releases"])) == {"v1"}
    release = find_release(ctx.settings.home, "v1")
    grown(ctx)
    assert (
        json.loads(curate(ctx, "release", "create", "icc", "v2", "--json", "--profile", "embedded").stdout)["previous"]
        == "v1"
    )
    listed = json.loads(curate(ctx, "release", "list", "--json").stdout)
    assert [one["name"] for one in listed] == ["v1", "v2"]
    shown = curate(ctx, "release", "show", "v1").output
    assert release.sha256 in shown
    assert "embedded:icc" in shown
    difference = curate(ctx, "release", "diff", "v1", "v2").output
    assert f"{len(ids_of(release))} samples, v2" in difference
    assert "not_in_pool" in difference
    assert "By domain" in difference
    assert "a photo of thing" in difference
    again = curate(ctx, "release", "create", "icc", "v2", "--profile", "embedded")
    assert again.exit_code == 0, again.output
    assert "release 'v2' was made before, of the same tables: nothing is written" in again.output
    elsewhere = shutil.copytree(release.folder, ctx.settings.home.parent / "elsewhere" / "v1")
    for given in ("v1", release.folder, elsewhere):
        for words in (("release", "verify", given), ("verify", given), ("release", "show", given)):
            verified = curate(ctx, *words)
            assert verified.exit_code == 0, verified.output
            assert release.sha256 in verified.output
        assert "both 6" in curate(ctx, "release", "diff", given, "v2").output
        out = ctx.settings.home.parent / str(given).replace("/", "_")
        assert curate(ctx, "export", "hf", "--release", given, "--out", out).exit_code == 0
        assert read_subset(out / "sample_ids.npy") == ids_of(release)
        assert curate(ctx, "summary", given).exit_code == 0
    assert elsewhere.with_name("v1.summary").is_dir()
    assert "did you mean 'v1'?" in curate(ctx, "release", "verify", "v11").output
    assert "no release: it has no release.json" in curate(ctx, "release", "verify", release.folder.parent).output
    (release.folder / "card.md").chmod(0o644)
    (release.folder / "card.md").write_text("other")
    broken = curate(ctx, "release", "verify", release.folder, "--json")
    assert broken.exit_code == 1
    assert json.loads(broken.stdout)["problems"] == ["card.md was changed: its bytes are not those that were released"]
    withdraw(ctx.settings.home, "photos", ids_of(release)[:1])
    for given in ("v1", release.folder):
        withdrawn = curate(ctx, "release", "verify", given)
        assert withdrawn.exit_code == 3
        assert withdrawn.stdout == ""
        assert "v1: withdrawn on 20" in withdrawn.stderr
        assert "(takedown), see v1.1" in withdrawn.stderr
        asked = json.loads(curate(ctx, "release", "verify", given, "--json").stdout)
        assert (asked["problems"], asked["withdrawn"]["next"]) == ([], "v1.1")
        for words in (
            ("release", "diff", given, "v2"),
            ("summary", given),
            ("export", "npy", "--out", "x", "--release", given),
        ):
            refused = curate(ctx, *words)
            assert refused.exit_code == 1
            assert "was withdrawn at" in refused.stderr
            assert "use 'v1.1'" in refused.stderr


# -- where its rows come from


def test_a_release_has_where_its_rows_come_from_and_loses_it_with_the_sample(ctx: PoolContext) -> None:
    release = release_of(ctx)
    rows = pl.read_parquet(release.folder / "provenance.parquet")
    stored = ctx.store.scan("raw/provenance").collect()
    assert rows.height == ledger_of(release).height == stored.height
    assert "source_url" not in rows.columns
    assert rows["domain"].to_list() == stored["domain"].to_list()
    assert release.about["sources"][0]["name"] == "photos"
    assert release.about["download"] is None  # its tars came as they are
    taken = stored["sample_id"][5]
    withdraw(ctx.settings.home, "photos", [taken])
    following = pl.read_parquet(release_folder(ctx.settings.home, "photos", "v1.1") / "provenance.parquet")
    assert following.equals(rows.filter(pl.Series(stored["sample_id"] != taken)))


def test_rows_without_provenance_do_not_verify(ctx: PoolContext) -> None:
    folder = release_of(ctx).folder
    release = read_release(folder)
    path = folder / "provenance.parquet"
    path.chmod(0o644)
    pl.read_parquet(path).head(3).write_parquet(path)
    recorded = {"sha256": sha256_now(path), "bytes": path.stat().st_size}
    (folder / "release.json").chmod(0o644)
    dataclasses.replace(release, files={**release.files, path.name: recorded}, folder=folder).write()
    assert verify_release(folder) == ["provenance.parquet has not the rows of ledger/*.parquet"]


# -- those of a version before 0.4


@pytest.fixture
def before(ctx: PoolContext) -> Release:
    """What version 0.3 made of the same pool: one ledger sorted by id, and versions/."""
    root = ctx.settings.home / "releases" / "photos"
    with tarfile.open(Path(__file__).with_name("release_before.tar.xz")) as tar:
        tar.extractall(root, filter="data")
    return read_release(root / "before")


def test_an_old_release_verifies_and_is_the_release_of_now(ctx: PoolContext, before: Release) -> None:
    assert verify_release(before.folder) == []
    now = release_of(ctx)
    for name in (SUBSET_NPY, SUBSET_PARQUET):
        assert (before.folder / name).read_bytes() == (now.folder / name).read_bytes()
    ordered = [ledger_of(release).sort("shard", "source_row") for release in (before, now)]
    assert ordered[0].equals(ordered[1].select(ordered[0].columns))
    other = release_of(ctx, "clip", "other")
    assert compare_releases(before, now, ctx.store).reasons.is_empty()
    for store in (ctx.store, None):
        difference = compare_releases(other, before, store).to_dict()
        for name in ("both", "in", "out", "reasons", "groups", "examples"):
            assert difference[name] == compare_releases(other, now, store).to_dict()[name]
    shown = [subset_of_release(ctx, release).sample_ids for release in (before, now)]
    assert shown[0] == shown[1] == ids_of(now)
    data = pl.read_parquet(before.folder / "ledger.parquet")
    footer = pl.read_parquet_metadata(before.folder / "ledger.parquet")
    data.with_columns(-pl.col("signals_icc")).write_parquet(before.folder.parent / "l.parquet", metadata=footer)
    (problem,) = forged(before, "ledger.parquet", (before.folder.parent / "l.parquet").read_bytes())
    assert "another verdict or reason than recorded" in problem


def test_a_takedown_of_an_old_release_makes_one_of_now(ctx: PoolContext, before: Release) -> None:
    home = ctx.settings.home
    rows, cut = ledger_of(before), release_ledger(before).cut.cuts[-1]
    assert cut.boundary_id is not None
    taken = [cut.boundary_id, rows.filter(verdict="dropped")["sample_id"][3]]
    assert [one.name for one in withdraw(home, "photos", taken)] == ["before"]
    assert [path.name for path in before.folder.iterdir()] == [RELEASE_FILE]
    following = find_release(home, "before.1")
    assert verify_release(following.folder) == []
    assert following.left_out == {"takedown": 2}
    assert ledger_of(following).equals(rows.filter(~pl.col("sample_id").is_in(taken)))
    assert not (following.folder / "versions").exists()
    assert traces(home / "releases", taken) == []
    assert [one.name for one in withdraw(home, "photos", ids_of(following)[:1])] == ["before.1"]
    assert verify_release(find_release(home, "before.2").folder) == []


def test_an_old_release_is_summarised_by_statements_over_its_own_file(
    ctx: PoolContext, before: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = release_of(ctx)
    facts = [Facts(release, Declared()) for release in (before, now)]
    for name, table in facts[0].counts.items():
        assert table.equals(facts[1].counts[name]), name
    for one, ledger in zip(facts, ("ledger.parquet", "ledger/*.parquet"), strict=True):
        number = one.number("kept")
        assert number.files == (ledger, "provenance.parquet")
        monkeypatch.chdir(one.release.folder)
        assert duckdb.sql(number.sql).fetchall() == [(number.value,)]
        assert one.read_of(ledger)["made_from"][0]["shards"] == (3 if one is facts[1] else 1)

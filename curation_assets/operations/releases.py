"""Releases: a subset is frozen under a name, checked from its folder alone, and withdrawn by a takedown.

See `stores/releases.py` for what a release holds.
"""

import contextlib
import json
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

from curation_assets.audit.ledger import Ledger, LedgerError, policy_in, recorded_ledger, replayed, subset_of
from curation_assets.audit.origin import lineage_of
from curation_assets.audit.release_ledger import names_samples, release_ledger, rows_of_samples, write_release_ledger
from curation_assets.audit.release_provenance import has_rows_of, write_provenance, write_purged_provenance
from curation_assets.core.errors import StoreError
from curation_assets.core.settings import PACKAGE_ROOT
from curation_assets.core.stages import STAGES
from curation_assets.core.table_names import CHOSEN_CAPTION, CONTAMINATION, PROVENANCE, SAMPLES, SUBSETS
from curation_assets.core.version import __version__
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import holds_in_words, worths_of
from curation_assets.flow.freshness import is_up_to_date
from curation_assets.flow.graph import with_upstream
from curation_assets.flow.mixtures import entries_of_shard, mixture_behind, stated_mixture
from curation_assets.flow.table import Tables
from curation_assets.flow.worth import domain_in_words
from curation_assets.numeric.identity import UID_DTYPE
from curation_assets.operations.opt_out_checks import can_be_checked
from curation_assets.operations.options import OperationsOptions
from curation_assets.outputs.exports.subset import policy_facts
from curation_assets.outputs.pages import markdown_of
from curation_assets.outputs.summary.declared import Declared
from curation_assets.outputs.summary.facts import Facts
from curation_assets.outputs.summary.phrases import decontamination_statements, mixture_statement
from curation_assets.selection.cut import PolicyCut
from curation_assets.selection.judging import multiplicity
from curation_assets.selection.policy import Policy, load_policy, policy_content
from curation_assets.selection.rows import STATES
from curation_assets.sources.declaration import declared_sources
from curation_assets.sources.shards import hash_list_of
from curation_assets.stages.signals.contamination import decontamination_facts
from curation_assets.stores.arrays import load_npy
from curation_assets.stores.atomic import (
    READ_ONLY,
    remove_all_stale,
    remove_path,
    replacing,
    writing_new,
)
from curation_assets.stores.denylist import TAKEDOWN, Denylist
from curation_assets.stores.documents import save_text
from curation_assets.stores.file_hash import sha256_now
from curation_assets.stores.manifest import Manifest, utc_now
from curation_assets.stores.releases import (
    CUTS,
    LEDGER_FOLDER,
    MANIFESTS,
    PROVENANCE_FILE,
    RELEASE_FILE,
    SUBSET_NPY,
    SUBSET_PARQUET,
    Release,
    Withdrawal,
    list_releases,
    read_release,
    release_folder,
    releases_root,
    summaries_folder,
)
from curation_assets.stores.shard_store import MissingInputError, manifest_text, named
from curation_assets.stores.subsets import lists_subset, write_sorted_subset

CARD = "card.md"
CARD_TEMPLATE = PACKAGE_ROOT / "outputs" / "exports" / "release_card.md.jinja"
OLD_VERSIONS = "versions"  # folder of a release that a version before 0.4 made

#: What reading a damaged file of a release may raise.
_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError, KeyError, TypeError)


# -- making one -------------------------------------------------------------------------------------------------------


def create_release(ctx: PoolContext, tables: Tables, subset: str, name: str) -> Release:
    """Freeze the subset of a policy, as the pool has it now, under a new name. What this call would make and an earlier
    one made (it was killed before it said so, for example) is returned as it is.

    Raises ValueError for a name that another subset or an earlier state has, MissingTableError for a policy without a
    ledger, StoreError for tables that are stale, a takedown that is not applied yet, and a pool that changes meanwhile:
    each with what to run.
    """
    home, store, pool = ctx.settings.home, ctx.store, ctx.pool.name
    target = release_folder(home, pool, name)
    known = read_release(target) if target.exists() else None
    if known is not None and (known.subset != subset or known.withdrawn is not None):
        raise _taken(known)
    denylist = Denylist.load(home).version
    ledger = recorded_ledger(store, subset)
    policy, profile = ledger.policy, ledger.profile
    if profile != ctx.profile.name:
        raise StoreError(
            f"the ledger of {subset!r} was made with profile {profile!r}, not {ctx.profile.name!r}; give --profile "
            f"{profile}, or run the pool with this one"
        )
    described = [name for name in (PROVENANCE, CHOSEN_CAPTION, CONTAMINATION) if name in tables]
    check_current(ctx, tables, subset, described)
    _check_subset(ctx, ledger)
    manifests = _manifests(ctx, subset, described)
    taken_down = _taken_down(ledger)
    lines = [json.dumps(asdict(manifest), sort_keys=True, ensure_ascii=False) for manifest in manifests]
    manifests_text = "".join(f"{line}\n" for line in lines)
    before = [release for release in list_releases(home, pool) if release.subset == subset and not release.withdrawn]
    release = Release(
        name=name,
        pool=pool,
        subset=subset,
        policy_version=policy.version,
        profile=profile,
        created_at=_now(),
        software=f"curation_assets {__version__}",
        original=name,
        previous=before[-1].name if before else None,
        counts={},
        left_out={TAKEDOWN: rows_of_samples(ledger, taken_down).height} if taken_down else {},
        models=(),
        about={
            "pool_kind": ctx.pool.kind,
            "image_domain": ctx.pool.image_domain,
            "worths": worths_of(ctx, policy.references),
            "sources": declared_sources(ctx.pool),
            "download": ctx.pool.download.behaviour() if ctx.pool.opens_urls else None,
            "opt_out_checks": OperationsOptions.of(ctx).opt_out_checks if can_be_checked(ctx) else 0,
            "worths_on": domain_in_words(ctx.pool.image_domain),
            "holds": holds_in_words(ctx),
            "decontamination": decontamination_facts(ctx),
            "mixture": stated_mixture(ctx, policy),
            "has_hash_lists": bool(hash_list_of(ctx.pool)),
        },
    )
    if known is not None:
        if _request(known) != _request(release) or (target / MANIFESTS).read_text(encoding="utf-8") != manifests_text:
            raise _taken(known)
        return known
    remove_all_stale(releases_root(home, pool))
    with writing_new(target, folder=True) as folder:
        folder.mkdir()
        cut = write_release_ledger(ledger, folder / LEDGER_FOLDER, taken_down)
        further = partial(_further, ctx, policy, described)
        write_provenance(store, folder / PROVENANCE_FILE, further, without=taken_down)
        save_text(folder / MANIFESTS, manifests_text)
        release = _complete(folder, release, policy, cut)
        if recorded_ledger(store, subset).sha256 != ledger.sha256 or Denylist.load(home).version != denylist:
            raise StoreError(f"pool {pool!r} or the denylist changed while the release was written; run it again")
    return replace(release, folder=target)


def _request(release: Release) -> Any:
    """What was asked of a release beside the tables, in JSON's types: policy, profile, rows left out, the pool's
    facts."""
    content = (release.subset, release.policy_version, release.profile, release.left_out, release.about)
    return json.loads(json.dumps(content))


def _taken(known: Release) -> ValueError:
    state = f"withdrawn, see {known.withdrawn.next!r}" if known.withdrawn else f"of {known.subset!r}"
    return ValueError(
        f"there is a release {known.name!r} of pool {known.pool!r} already, which never changes ({state}, made "
        f"{known.created_at[:19]}); choose a new name"
    )


def _now() -> str:
    """UTC, to the microsecond: releases are sorted by it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def check_current(ctx: PoolContext, tables: Tables, subset: str, described: Sequence[str] = ()) -> None:
    """Raise StoreError unless verdicts, subsets and what describes their rows (tables) are made from what the pool has.

    Subsets are stale, too, once the denylist has changed.
    """
    if f"filtered/{subset}" not in tables:
        raise StoreError(f"pool {ctx.pool.name!r} no longer has a policy {subset!r}, only its ledger; release another")
    advice = f"`curate run {ctx.pool.name}` brings it up to date"
    for table in with_upstream(tables, [f"filtered/{subset}", SUBSETS, *described]).values():
        if not STAGES[table.stage].is_derived and table.name != PROVENANCE:
            continue
        for shard in table.partitions(ctx.store.partitions(SAMPLES)):
            try:
                is_current = is_up_to_date(ctx, table, shard, tables=tables)
            except MissingInputError as error:
                raise StoreError(f"{named(table.name, shard)} is stale: {error}; {advice}") from error
            if not is_current:
                raise StoreError(f"{named(table.name, shard)} is stale: its inputs or its code changed; {advice}")


def _further(ctx: PoolContext, policy: Policy, described: Sequence[str], shard: str) -> pl.DataFrame:
    """What the pool knows of a shard's rows beside where they come from: source_row, and those of OF_RELEASES."""
    rows = ctx.store.read(SAMPLES, shard, ["source_row"])
    parts = []
    if CHOSEN_CAPTION in described:
        parts.append(ctx.store.read(CHOSEN_CAPTION, shard, ["source_row", "caption_source"]))
    if CONTAMINATION in described:
        if "compared_by" not in ctx.store.scan(CONTAMINATION, [shard]).collect_schema():
            raise StoreError(
                f"{named(CONTAMINATION, shard)} is stale: an earlier version made it, without how rows were "
                f"compared; `curate run {ctx.pool.name}` brings it up to date"
            )
        parts.append(ctx.store.read(CONTAMINATION, shard, ["source_row", "compared_by", "benchmark"]))
    if (recipe := mixture_behind(ctx, policy)) is not None:
        parts.append(entries_of_shard(ctx, policy, recipe, shard).rename({"group": "mixture_group"}))
    for part in parts:
        rows = rows.join(part, on="source_row", how="left", maintain_order="left")
    return rows


def _check_subset(ctx: PoolContext, ledger: Ledger) -> None:
    """Raise StoreError where the pool's subset file and its ledger differ: a takedown is under way."""
    subset = ledger.policy.name
    if np.array_equal(load_npy(ctx.store.folder_path(SUBSETS) / f"{subset}.npy"), ledger.subset()):
        return
    takedown = f"`curate takedown apply --pool {ctx.pool.name}` purges them"
    advice = takedown if ctx.denylist else "`curate run` the pool again"
    raise StoreError(f"the ledger of {subset!r} and its subset file list different samples; {advice}")


def _taken_down(ledger: Ledger) -> list[str]:
    """sample_ids of a ledger's rows that a takedown emptied."""
    emptied = (part.filter(reason=TAKEDOWN)["sample_id"] for part in ledger.parts(["sample_id", "reason"]))
    return pl.concat(emptied).unique().to_list()


def _manifests(ctx: PoolContext, subset: str, described: Sequence[str]) -> list[Manifest]:
    """Manifests of the tables upstream of the described ones and of the policy's verdicts, inputs
    first, and of its subset files."""
    known: dict[tuple[str, str | None], Manifest] = {}
    order: list[str] = []
    for table in (*described, f"filtered/{subset}"):
        order += [name for name in lineage_of(ctx.store, table, known=known).tables if name not in order]
    manifest = ctx.store.manifest(SUBSETS)
    assert manifest is not None, SUBSETS
    known[SUBSETS, None] = manifest
    order.append(SUBSETS)
    return sorted(known.values(), key=lambda manifest: (order.index(manifest.asset), manifest.partition or ""))


def _complete(folder: Path, release: Release, policy: Policy, cut: PolicyCut) -> Release:
    """Write what follows from the ledger in `folder`, then release.json. Raises StoreError unless it verifies."""
    written = yaml.safe_dump(policy_content(policy), sort_keys=False, allow_unicode=True)
    save_text(folder / f"{policy.name}.yaml", written)
    save_text(folder / CUTS, _cuts_text(cut))
    ledger, manifests = release_ledger(replace(release, folder=folder)), _read_manifests(folder)
    write_sorted_subset(folder / SUBSET_NPY, folder / SUBSET_PARQUET, ledger.subset())
    facts = policy_facts(ledger, manifests)
    release = replace(release, counts=_counts(ledger), models=tuple(facts["models"]), folder=folder)
    facts |= {**release.about, "pool": release.pool, "name": release.name, "shards": _shards(ledger, manifests)}
    counted = Facts(release, Declared())
    statements = [text for text, _ in decontamination_statements(counted)]
    facts["mixture"] = mixture_statement(counted)[0]
    text = markdown_of(CARD_TEMPLATE, release=release, facts=facts, decontamination=statements)
    save_text(folder / CARD, text)
    paths = _files(folder)
    files = {name: {"sha256": sha256_now(path), "bytes": path.stat().st_size} for name, path in sorted(paths.items())}
    release = replace(release, files=files)
    release.write()
    for path in paths.values():
        path.chmod(READ_ONLY)
    problems = verify_release(folder)
    if problems:
        raise StoreError(f"release {release.name!r} was not made, for it does not verify: {'; '.join(problems)}")
    return release


def _cuts_text(cut: PolicyCut) -> str:
    return json.dumps(cut.to_dict(), indent=1, sort_keys=True) + "\n"


def _counts(ledger: Ledger) -> dict[str, int]:
    counted = dict(ledger.counted(pl.col("verdict"), of=["verdict"]).iter_rows())
    return {"rows": sum(counted.values()), **{state: counted.get(state, 0) for state in STATES}}


def _read_manifests(folder: Path) -> list[Manifest]:
    return [Manifest.from_json(line.decode()) for line in (folder / MANIFESTS).read_bytes().splitlines()]


def _shards(ledger: Ledger, manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Shards that the subset draws from, with their data versions."""
    versions = {manifest.partition: manifest.content_sha256 for manifest in manifests if manifest.asset == SAMPLES}
    kept = pl.concat(part.group_by("shard").len("samples") for part in ledger.kept(["shard"]))
    counted = kept.group_by("shard").agg(pl.col("samples").sum()).sort("shard")
    return [{**row, "content_sha256": versions.get(row["shard"])} for row in counted.to_dicts()]


def _files(folder: Path) -> dict[str, Path]:
    """Name → path of everything but release.json."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    return {name: path for path in paths if (name := path.relative_to(folder).as_posix()) != RELEASE_FILE}


# -- checking one -----------------------------------------------------------------------------------------------------


def verify_release(folder: Path) -> list[str]:
    """What is wrong with a release, a sentence each, from its folder alone; empty where all is well.

    Every byte is compared with the recorded hashes, no file may be there more or less, and the ledger, judged again,
    must give exactly the samples of the subset files. Of a withdrawn release nothing but release.json may be left.
    """
    try:
        release = read_release(folder)
    except (StoreError, OSError) as error:
        return [str(error)]
    present = _files(folder)
    problems = [f"{name} is not part of the release" for name in sorted(present.keys() - release.files.keys())]
    for name, recorded in release.files.items():
        path = present.get(name)
        if path is None:
            problems.append(f"{name} is missing")
        elif path.is_symlink() or not path.is_file():
            problems.append(f"{name} is a link or no file; expected its bytes")
        elif path.stat().st_size != recorded["bytes"] or sha256_now(path) != recorded["sha256"]:
            problems.append(f"{name} was changed: its bytes are not those that were released")
    if problems or release.withdrawn is not None:
        return problems
    try:
        return _differences(release)
    except _UNREADABLE as error:
        return [f"cannot be read: {type(error).__name__}: {error}"]


def _differences(release: Release) -> list[str]:
    """Which files of a release do not follow from its ledger."""
    ledger, folder, name = release_ledger(release), release.folder, release.ledger_name
    policy, cut = ledger.policy, ledger.cut
    facts = [Manifest.from_json(text).facts for path in ledger.paths if (text := manifest_text(path)) is not None]
    of_ledger = [policy, *map(policy_in, facts)]
    if any(one != load_policy(folder / f"{release.subset}.yaml") for one in of_ledger):
        return [f"{release.subset}.yaml is not the policy of {name}"]
    if (folder / CUTS).read_text(encoding="utf-8") != _cuts_text(cut) or cut.policy_version != policy.version:
        return [f"{CUTS} does not hold the cuts of {name}"]
    try:
        packed = subset_of(
            part.with_columns(multiplicity=pl.Series(multiplicity(policy, part))) for part in replayed(ledger)
        )
    except LedgerError as error:
        return [str(error)]
    npy = load_npy(folder / SUBSET_NPY)
    manifests = _read_manifests(folder)
    models = {(manifest.asset, model["address"], model.get("weights_sha256")) for manifest in manifests
              for model in manifest.models}  # fmt: skip
    holds = {
        f"{SUBSET_NPY} does not list the samples that replaying {name} gives": npy.dtype == UID_DTYPE
        and np.array_equal(npy, packed),
        f"{SUBSET_PARQUET} does not list the samples that replaying {name} gives": lists_subset(
            folder / SUBSET_PARQUET, packed
        ),
        f"{RELEASE_FILE} names another policy or profile than {name}": (policy.name, policy.version)
        == (release.subset, release.policy_version)
        and {ledger.profile, *(one["profile"] for one in facts)} == {release.profile},
        f"{RELEASE_FILE} counts other rows than {name} has": dict(release.counts) == _counts(ledger),
        f"{RELEASE_FILE} names models that {MANIFESTS} does not": models
        >= {(model["table"], model["address"], model["weights_sha256"]) for model in release.models},
    }
    if (folder / PROVENANCE_FILE).is_file():
        holds[f"{PROVENANCE_FILE} has not the rows of {name}"] = has_rows_of(folder / PROVENANCE_FILE, ledger)
    return [sentence for sentence, is_true in holds.items() if not is_true]


# -- takedowns --------------------------------------------------------------------------------------------------------


def affected_releases(home: Path, pool: str, sample_ids: Collection[str]) -> list[Release]:
    """Releases of a pool that name one of the samples, kept or not, oldest first; also those half withdrawn.

    Raises StoreError for a release that cannot be read.
    """
    return [release for release in list_releases(home, pool) if _names_any(release, set(sample_ids))]


def denied_samples(home: Path, releases: Iterable[Release]) -> list[str]:
    """sample_ids in releases that the denylist knows: of releases restored from a copy, for example."""
    denylist, ids = Denylist.load(home), set[str]()
    for release in releases if denylist else ():
        if release.withdrawn is None:
            for part in release_ledger(release).parts(["sample_id"]):
                ids.update(part.filter(denylist.denied(part.select("sample_id")))["sample_id"])
    return sorted(ids)


def _names_any(release: Release, sample_ids: set[str]) -> bool:
    if release.withdrawn is not None:
        return bool(_files(release.folder)) or summaries_folder(release).is_dir()
    try:
        return names_samples(release_ledger(release), sample_ids)
    except _UNREADABLE as error:
        raise StoreError(
            f"release {release.name!r} cannot be searched for samples: {error}; restore {release.folder} from a copy, "
            "or delete it"
        ) from error


def withdraw(home: Path, pool: str, sample_ids: Collection[str], *, certificate: str = "") -> list[Release]:
    """Withdraw every release that names one of the samples; the next one, NAME.1 (then .2, …), has all others.

    Of a withdrawn release release.json alone stays, and no summary: domains that only a sample had stand in it. A call
    that was killed is finished by the next one. Returns the withdrawn releases. Raises StoreError as
    `affected_releases`.
    """
    remove_all_stale(releases_root(home, pool))
    wanted = set(sample_ids)
    withdrawn = []
    for release in affected_releases(home, pool, wanted):
        if release.withdrawn is None:
            rows = rows_of_samples(release_ledger(release), wanted)
            release = replace(
                release,
                files={},
                withdrawn=Withdrawal(
                    at=utc_now(),
                    reason=TAKEDOWN,
                    certificate=certificate,
                    rows=rows.height,
                    kept=rows.filter(pl.col("verdict") == "kept").height,
                    next=_successor(home, release, wanted).name,
                    files=release.files,
                ),
            )
            release.write()  # from here on nobody reads it, and the next call removes what is left of it
        remove_path(summaries_folder(release))
        for path in _files(release.folder).values():
            remove_path(path)
        for folder in (LEDGER_FOLDER, OLD_VERSIONS):
            remove_path(release.folder / folder)
        withdrawn.append(release)
    return withdrawn


def _successor(home: Path, release: Release, sample_ids: set[str]) -> Release:
    """The release without the samples: one that an interrupted call made, or a new one."""
    known = list_releases(home, release.pool)
    for other in known:
        if (other.previous, other.original) == (release.name, release.original) and other.name != other.original:
            return other
    names = {other.name for other in known}
    number = next(n for n in range(1, len(names) + 2) if f"{release.original}.{n}" not in names)
    target = release_folder(home, release.pool, f"{release.original}.{number}")
    ledger = release_ledger(release)
    rows = rows_of_samples(ledger, sample_ids).height
    left_out = {**release.left_out, TAKEDOWN: release.left_out.get(TAKEDOWN, 0) + rows}
    with replacing(target) as folder:
        folder.mkdir()
        cut = write_release_ledger(ledger, folder / LEDGER_FOLDER, sample_ids)
        if (release.folder / PROVENANCE_FILE).is_file():
            write_purged_provenance(release.folder / PROVENANCE_FILE, folder / PROVENANCE_FILE, sample_ids)
        shutil.copyfile(release.folder / MANIFESTS, folder / MANIFESTS)
        following = _complete(
            folder,
            replace(
                release,
                name=target.name,
                created_at=_now(),
                previous=release.name,
                left_out=left_out,
                about={**release.about, "summary_versions": _summary_versions(release)},
            ),
            ledger.policy,
            cut,
        )
    return replace(following, folder=target)


def _summary_versions(release: Release) -> dict[str, int]:
    """Form → version of its last summary, which goes with the release: that of the next release counts on."""
    versions = dict(release.about.get("summary_versions", {}))
    for path in sorted(summaries_folder(release).glob("*/summary.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # not as we wrote it: it counts for nothing
            versions[path.parent.name] = int(json.loads(path.read_text(encoding="utf-8"))["version"])
    return versions

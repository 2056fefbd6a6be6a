"""downstream/training_sets: what each model is trained on, by policy or control, size and seed."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from curation_assets.core.table_names import CHOSEN_CAPTION, CONTAMINATION, DUPLICATES, SAMPLES
from curation_assets.core.validation import check_known
from curation_assets.evaluation.drawn_sets import (
    CLEAN,
    CONTROL,
    FILE,
    LEXICON,
    POLICY,
    TrainingKey,
    control_set,
    given_set,
    policy_set,
    trainable,
    training_keys,
)
from curation_assets.evaluation.options import DownstreamOptions
from curation_assets.evaluation.truth import has_truth, read_truth, truth_config
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import policies_of
from curation_assets.flow.options import FlowOptions
from curation_assets.flow.table import Table, Trainings
from curation_assets.numeric.identity import sorted_uids
from curation_assets.selection.policy import RANDOM, Policy
from curation_assets.selection.rows import Pool, uid_columns
from curation_assets.stages.signals.options import SignalsOptions
from curation_assets.stores.releases import SUBSET_NPY, find_release
from curation_assets.stores.samples import SAMPLES_SCHEMA
from curation_assets.stores.subsets import packed_ids

TRAINING_SETS = "downstream/training_sets"
HELD_OUT = "downstream/held_out"
RELEASE = "release:"  # before a release's name in option downstream_subsets
CHOSEN = "_chosen"  # after a set's name, where it is trained on with raw and with chosen captions
OWN_SHARE = 0.25  # of controls beside policies of their own sizes, where the pool runs no policy `random`


@dataclass(frozen=True)
class SetFacts:
    """What a training set is called by, and made of."""

    kind: str  # policy, control or file
    source: str  # the set whose samples it has: itself, or its twin with raw captions
    has_chosen_captions: bool = False


def sets_of(ctx: PoolContext) -> dict[str, SetFacts]:
    """Training set → its facts; policies first, those with chosen captions beside raw ones last.

    Raises ValueError for a name used twice, and for chosen captions of a pool that chooses none.
    """
    options, pool = DownstreamOptions.of(ctx), f"pool {ctx.pool.name!r}"
    named = [(policy.name, CONTROL if policy.rank_by == RANDOM else POLICY) for policy in policies_of(ctx)]
    named += [(name, CONTROL) for name in _controls(ctx)] + [(name, FILE) for name in options.downstream_subsets]
    captions = options.downstream_captions
    sets = [(name, SetFacts(kind, name, captions == "chosen")) for name, kind in named]
    if captions != "raw" and SignalsOptions.of(ctx).caption_choice is None:
        raise ValueError(
            f"{pool}: downstream_captions: {captions} needs chosen captions; set its option caption_choice: true"
        )
    if captions == "both":
        sets += [(f"{name}{CHOSEN}", SetFacts(kind, name, True)) for name, kind in named]
    twice = [name for name, count in Counter(name for name, _ in sets).items() if count > 1]
    if twice:
        raise ValueError(f"{pool}: two training sets are called {twice[0]!r}; rename one of them")
    return dict(sets)


def _controls(ctx: PoolContext) -> list[str]:
    """Controls that the pool has what they need for."""
    runs_lexicon = any(f"signals/{method.name}" == LEXICON for method in ctx.methods("signals"))
    possible = {"longest_caption": True, "all": True, "lexicon": runs_lexicon, "oracle": has_truth(ctx)}
    return [name for name in DownstreamOptions.of(ctx).downstream_controls if possible[name]]


def keys_of_pool(ctx: PoolContext) -> tuple[str, ...]:
    """Partitions of all trainings of the pool, sorted."""
    options = DownstreamOptions.of(ctx)
    keys = training_keys(sets_of(ctx), options.downstream_sizes, options.downstream_seeds)
    return tuple(sorted(map(str, keys)))


def training_tables(ctx: PoolContext) -> Iterator[Table]:
    """One partition per training set, size and seed."""
    policies = {policy.name: policy for policy in policies_of(ctx)}
    references = {table for policy in policies.values() for table in policy.tables}
    controls = _controls(ctx)
    lexicon = (LEXICON,) if "lexicon" in controls else ()
    always = (SAMPLES, DUPLICATES, HELD_OUT, *((CONTAMINATION,) if FlowOptions.of(ctx).decontaminate else ()))
    choice = () if DownstreamOptions.of(ctx).downstream_captions == "raw" else (CHOSEN_CAPTION,)

    def reads(ctx: PoolContext, key: str) -> list[tuple[str, str | None]]:
        wanted = TrainingKey.parse(key)
        facts = sets_of(ctx)[wanted.name]
        policy = policies.get(facts.source)
        own: Sequence[str] = lexicon
        if policy is not None:
            is_own_size = wanted.size is None and policy.rank_by != RANDOM
            own = [f"filtered/{policy.name}"] if is_own_size else policy.tables
        captions = choice if facts.has_chosen_captions else ()
        return [(name, key) for name in (*always, *own, *captions)]

    yield Table(
        name=TRAINING_SETS,
        grain="training",
        inputs=(*always, *sorted(references | set(lexicon)), *(f"filtered/{name}" for name in policies), *choice),
        version="1",
        description="One row per sample of a training set: its caption, raw or chosen, and how often it is listed "
        "(`count`). Sets are those of policies, controls and given files, without what models are measured on.",
        compute=lambda ctx, key: _training_set(ctx, policies, key),
        config_by_key=lambda ctx, key: _config(ctx, policies) | captions_config(ctx, key),
        trainings=Trainings(keys_of_pool(ctx), reads),
    )


def captions_config(ctx: PoolContext, key: str | None) -> dict[str, str]:
    """What a table of this training (None: of all) has in its config beside all else; nothing for raw captions."""
    captions = DownstreamOptions.of(ctx).downstream_captions
    if key is None:
        return {} if captions == "raw" else {"captions": captions}
    return {"captions": "chosen"} if sets_of(ctx)[TrainingKey.parse(key).name].has_chosen_captions else {}


def _config(ctx: PoolContext, policies: Mapping[str, Policy]) -> dict[str, object]:
    options = DownstreamOptions.of(ctx)
    files = {name: _subset_file(ctx, path) for name, path in options.downstream_subsets.items()}
    config: dict[str, object] = {"policies": {name: policy.version for name, policy in policies.items()}}
    if files:
        config["subsets"] = files
    is_read = "oracle" in options.downstream_controls and options.truth is not None
    return config | (truth_config(ctx) if is_read else {})


def _subset_file(ctx: PoolContext, path: str) -> Path:
    if path.startswith(RELEASE):
        release = find_release(ctx.settings.home, path.removeprefix(RELEASE), ctx.pool.name)
        release.check_in_force()
        return release.folder / SUBSET_NPY
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(
            f"downstream_subsets: no file {file}; expected an .npy of ids as `curate export npy` writes it, or "
            f"{RELEASE}NAME"
        )
    return file


def _training_set(ctx: PoolContext, policies: Mapping[str, Policy], key: str) -> pl.DataFrame:
    wanted = TrainingKey.parse(key)
    columns = ["sample_id", "shard", "source_row", "caption", "image_sha256"]
    of_set = sets_of(ctx)[wanted.name]
    listed = _listed(ctx, policies, replace(wanted, name=of_set.source))
    parts = [pl.DataFrame(schema={name: SAMPLES_SCHEMA[name] for name in columns} | {"count": pl.UInt32()})]
    for (shard,), mine in sorted(listed.partition_by("shard", as_dict=True).items()):
        rows = ctx.store.read(SAMPLES, str(shard), [name for name in columns if name != "shard"])
        facts = rows.join(mine.select("source_row", "shard", "count"), on="source_row", how="inner")
        if of_set.has_chosen_captions:
            from curation_assets.outputs.exports.subset import choose_captions

            facts = choose_captions(ctx, facts)
        parts.append(facts.select(*columns, "count"))
    return pl.concat(parts).rename({"shard": "in_shard"}).sort("sample_id")


def _listed(ctx: PoolContext, policies: Mapping[str, Policy], wanted: TrainingKey) -> pl.DataFrame:
    """The rows of a training set: shard, source_row, and how often each is listed."""
    options = DownstreamOptions.of(ctx)
    held_out, is_decontaminated = ctx.store.read(HELD_OUT), bool(FlowOptions.of(ctx).decontaminate)
    pool = trainable(Pool(ctx.store, ctx.progress), held_out, is_decontaminated)
    policy = policies.get(wanted.name)
    if policy is not None and (wanted.size is not None or policy.rank_by == RANDOM):
        return policy_set(policy, pool, wanted.size, wanted.seed)
    if policy is not None:
        return given_set(_kept(ctx, wanted.name), pool, None)  # by its frozen cut
    if wanted.name in options.downstream_subsets:
        return given_set(packed_ids(_subset_file(ctx, options.downstream_subsets[wanted.name])), pool, wanted.size)
    check_known("training set", "control", [wanted.name], options.downstream_controls)
    clean = read_truth(ctx).filter(pl.col("kind") == CLEAN)["sample_id"] if wanted.name == "oracle" else None
    # a control that has no size of its own is as large as what the policy `random` keeps
    shares = [policy.fraction for policy in policies.values() if policy.rank_by == RANDOM and policy.fraction]
    size = [*shares, OWN_SHARE][0] if wanted.size is None else wanted.size
    return control_set(wanted.name, pool, size, clean=clean)


def _kept(ctx: PoolContext, policy_name: str) -> np.ndarray:
    """The ids that a policy keeps as sorted u8,u8."""
    kept = ctx.store.scan(f"filtered/{policy_name}").filter(pl.col("verdict") == "kept")
    return sorted_uids(kept.select(uid_columns()).collect(engine="streaming").to_numpy())

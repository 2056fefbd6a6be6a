"""semantics 'compat' with several cuts, held against DataComp's baselines in plain numpy (formulas §3.2)."""

import hashlib
import io
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from curation_assets.audit.ledger import subset_of
from curation_assets.selection.cut import cut_frame, cut_of_frame
from curation_assets.selection.judging import fit_cut, judge_pool
from curation_assets.selection.policy import Policy, Prefilter, load_policy, policy_content
from curation_assets.selection.rows import Pool
from curation_assets.stores.shard_store import ShardStore
from tests.support.id_lists import npy_bytes
from tests.support.random_pools import store_pool

CLIP, IMAGE_BASED, BASIC = "signals.clip_score", "signals.image_based", "signals.datacomp_basic"
HALVES = np.arange(-0.05, 0.52, 2**-6, dtype=np.float16)  # as coarse as the scores that DataComp ships: many ties


def pool_of(folder: Path, ids: list[str], columns: dict[str, np.ndarray]) -> Pool:
    """A pool of one shard; NaN is a sample without a value."""
    samples = pl.DataFrame(
        {
            "sample_id": ids,
            "shard": ["p-000000"] * len(ids),
            "source_row": range(len(ids)),
            "status": ["kept"] * len(ids),
        }
    ).with_columns(reason=pl.lit(None, pl.String))
    tables = {}
    for reference, values in columns.items():
        column = pl.Series("value", values.astype(np.float64)).fill_nan(None)
        tables[reference] = samples.select("sample_id", "shard", "source_row").with_columns(
            column, reason=pl.when(column.is_null()).then(pl.lit("not_given"))
        )
    store = ShardStore(folder)
    store_pool(store, samples, tables)
    return Pool(store)


def npy_of(uids: list[str]) -> bytes:
    """DataComp's file of a subset, from its description alone: pairs of 64 bits, sorted, saved."""
    pairs = sorted((int(uid[:16], 16), int(uid[16:], 16)) for uid in uids)
    return npy_bytes(np.array(pairs, dtype=np.dtype("u8,u8")))


def reference_threshold(scores: np.ndarray, fraction: float) -> np.float64:
    """Sort descending, take the element at index int(n · fraction)."""
    return np.float64(np.sort(scores)[::-1][int(len(scores) * fraction)])


def is_kept(policy: Policy, pool: Pool) -> list[bool]:
    """Of every row, by the cut as it is stored."""
    cut = cut_of_frame(cut_frame(fit_cut(policy, pool)))
    return (pl.concat(judge_pool(policy, pool, cut))["verdict"] == "kept").to_list()


def kept_npy(policy: Policy, pool: Pool) -> bytes:
    buffer = io.BytesIO()
    kept = (part.filter(pl.col("verdict") == "kept") for part in judge_pool(policy, pool))
    np.save(buffer, subset_of(part.with_columns(multiplicity=pl.lit(1)) for part in kept))
    return buffer.getvalue()


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 60),
    fraction=st.sampled_from([0.01, 0.2, 0.285, 0.3, 0.5, 0.99]),
    second=st.sampled_from([0.1, 0.3, 0.7]),
)
@settings(max_examples=80, deadline=None)
def test_intersections_are_those_of_the_reference(
    tmp_path_factory: pytest.TempPathFactory, seed: int, n: int, fraction: float, second: float
) -> None:
    rng = np.random.default_rng(seed)
    ids = [rng.bytes(16).hex() for _ in range(n)]
    clip, sieve = rng.choice(HALVES, n).astype(np.float64), rng.choice(HALVES, n).astype(np.float64)
    basic, image = rng.integers(0, 2, n).astype(np.float64), rng.integers(0, 2, n).astype(np.float64)
    columns = {CLIP: clip, "signals.sieve": sieve, BASIC: basic, IMAGE_BASED: image}
    rows = pool_of(tmp_path_factory.mktemp("pool"), ids, columns)
    high_clip = clip >= reference_threshold(clip, fraction)
    high_sieve = sieve >= reference_threshold(sieve, second)
    share, clip_share = {"fraction": fraction}, Prefilter(rank_by=CLIP, fraction=fraction)
    passed = {"threshold": 1}
    cases = [
        # image_based ∩ clip_score, DataComp-1B's recipe
        (Policy("p", IMAGE_BASED, **passed, prefilters=(clip_share,), semantics="compat"), high_clip & (image == 1)),
        # the same intersection the other way round: the threshold is still that of the whole pool
        (
            Policy("p", CLIP, **share, prefilters=(Prefilter(IMAGE_BASED, threshold=1),), semantics="compat"),
            high_clip & (image == 1),
        ),
        # three subsets, two of them by fractions of the whole pool
        (
            Policy("p", "signals.sieve", fraction=second, semantics="compat",
                   prefilters=(clip_share, Prefilter(BASIC, threshold=1))),
            high_clip & high_sieve & (basic == 1),
        ),
        (Policy("p", CLIP, **share, semantics="compat"), high_clip),
    ]  # fmt: skip
    for policy, expected in cases:
        chosen = [uid for uid, is_chosen in zip(ids, expected, strict=True) if is_chosen]
        assert kept_npy(policy, rows) == npy_of(chosen)
        assert is_kept(policy, rows) == expected.tolist()


def test_the_bytes_of_one_subset(tmp_path: Path) -> None:
    """40 % of five is index 2: three of five scores are ≥ .25 (a tie makes it four); two of those are image-based."""
    ids = [f"{number:032x}" for number in (5, 4, 3, 2)] + ["f" * 32]
    clip = np.array([0.25, 0.5, 0.25, 0.125, 0.375])
    image = np.array([1.0, 0.0, 0.0, 1.0, 1.0])
    policy = Policy("p", IMAGE_BASED, threshold=1, prefilters=(Prefilter(CLIP, fraction=0.4),), semantics="compat")
    rows = pool_of(tmp_path, ids, {CLIP: clip, IMAGE_BASED: image})
    assert [cut.threshold for cut in fit_cut(policy, rows).cuts] == [0.25, 1]
    assert [cut.kept for cut in fit_cut(policy, rows).cuts] == [4, 2]
    data = kept_npy(policy, rows)
    assert data[-32:] == (0).to_bytes(8, "little") + (5).to_bytes(8, "little") + b"\xff" * 16
    assert hashlib.sha256(data).hexdigest() == "0ed4a9b77c505829c4956d1a9be654d6d368e1cefbabd644e0a80d7636034efa"


def test_samples_without_a_value_fail_and_do_not_count(tmp_path: Path) -> None:
    ids = [f"{number:032x}" for number in range(6)]
    clip = np.array([0.1, 0.2, 0.3, 0.4, np.nan, np.nan])
    policy = Policy("p", CLIP, fraction=0.5, prefilters=(Prefilter(BASIC, threshold=1),), semantics="compat")
    pool = pool_of(tmp_path, ids, {CLIP: clip, BASIC: np.array([1.0, 1, 0, 0, 1, 0])})
    assert fit_cut(policy, pool).cuts[1].threshold == 0.2  # int(4 · .5) = 2 of .4, .3, .2, .1
    assert pl.concat(judge_pool(policy, pool))["verdict"].to_list() == [
        "dropped",
        "kept",
        "dropped",
        "dropped",
        "failed",
        "dropped",
    ]


def test_exact_prefilters_count_otherwise(tmp_path: Path) -> None:
    """What 'exact' gives on the same pool: a fraction of the final cut is filled up from what the prefilters leave."""
    ids = [f"{number:032x}" for number in range(4)]
    columns = {CLIP: np.array([0.1, 0.2, 0.3, 0.4]), BASIC: np.array([1.0, 1, 0, 0])}
    rows = pool_of(tmp_path, ids, columns)
    kept = {
        semantics: is_kept(
            Policy("p", CLIP, fraction=0.5, prefilters=(Prefilter(BASIC, threshold=1),), semantics=semantics), rows
        )
        for semantics in ("exact", "compat")
    }
    assert kept == {"exact": [True, True, False, False], "compat": [False, True, False, False]}


def test_compat_is_for_fractions_below_1_and_thresholds(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"compat takes a fraction below 1 .* got count 3"):
        Policy("p", CLIP, count=3, semantics="compat")
    with pytest.raises(ValueError, match=r"got fractions \[1\.0\]"):
        Policy("p", IMAGE_BASED, threshold=1, prefilters=(Prefilter(CLIP, fraction=1.0),), semantics="compat")
    wide = Policy("p", CLIP, fraction=0.5, prefilters=(Prefilter("signals.sieve", fraction=0.3),), semantics="compat")
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(policy_content(wide)))
    assert load_policy(path) == wide

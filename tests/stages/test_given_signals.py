"""Values that a pool brings along: DataComp's metadata without any image gives the subsets of DataComp's baselines."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.own_declared import policies_folder
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.numeric.identity import pack_uids
from curation_assets.selection.policy import Policy, Prefilter, load_policies, policy_content
from curation_assets.sources.declaration import add_pool
from curation_assets.sources.options import given_columns
from tests.support.id_lists import npy_bytes

B32, L14 = "clip_b32_similarity_score", "clip_l14_similarity_score"
SENTENCES = [
    "a red kite over the wet beach at noon",
    "der rote Drachen fliegt am Nachmittag über den Strand",
    "two dogs are playing in the snow near a house",
    "un chien noir court dans la neige avec son ami",
    "kite",
]


def metadata(n: int = 60, seed: int = 3) -> pl.DataFrame:
    """Rows as DataComp ships them; scores of half precision, so with ties."""
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "uid": [rng.bytes(16).hex() for _ in range(n)],
            "url": [f"http://host.example/{number}.jpg" for number in range(n)],
            "text": [f"{SENTENCES[number % 5]} {number}" if number % 5 < 4 else "kite" for number in range(n)],
            "original_width": rng.choice([150, 200, 640, 2000], n),
            "original_height": rng.choice([200, 480, 700], n),
            B32: rng.choice(np.arange(0.1, 0.45, 2**-6, dtype=np.float16), n).astype(np.float32),
            L14: rng.choice(np.arange(0.05, 0.4, 2**-6, dtype=np.float16), n).astype(np.float32),
        }
    )


def pool_of(home: Path, table: pl.DataFrame, given: dict[str, str], **options: Any) -> PoolContext:
    """Captions alone: no row can fail in a download. No encoder anywhere."""
    settings = load_settings(home, "embedded")
    table.write_parquet(home / "metadata.parquet")
    roles = dict.fromkeys(("image_text_encoder", "captioner"), "path:/nowhere")
    add_pool(
        settings, "datacomp", home / "metadata.parquet", columns={"url": None}, roles=roles,
        options={"given_signals": given, "distil": False, **options},
    )  # fmt: skip
    return PoolContext.open(settings, "datacomp")


def declare(ctx: PoolContext, *policies: Policy) -> None:
    """As a user does: pools/<pool>/NAME.yaml."""
    folder = policies_folder(ctx)
    folder.mkdir(parents=True, exist_ok=True)
    for policy in policies:
        (folder / f"{policy.name}.yaml").write_text(yaml.safe_dump(policy_content(policy)))


def subset_of(ctx: PoolContext, policy: str) -> bytes:
    """The .npy of a policy, in DataComp's format."""
    run_with_upstream(ctx, f"filtered/{policy}")
    verdicts = ctx.store.scan(f"filtered/{policy}").collect()
    assert set(verdicts["verdict"]) <= {"kept", "dropped", "failed"}
    return npy_bytes(pack_uids(verdicts.filter(pl.col("verdict") == "kept")["sample_id"].to_list()))


def reference_npy(table: pl.DataFrame, chosen: np.ndarray) -> bytes:
    """Pairs of 64 bits, sorted, saved."""
    pairs = sorted((int(uid[:16], 16), int(uid[16:], 16)) for uid in table.filter(pl.Series(chosen))["uid"])
    return npy_bytes(np.array(pairs, np.dtype("u8,u8")))


def top(scores: np.ndarray, fraction: float) -> np.ndarray:
    """clip_score by fraction: the element at index int(n · fraction) of the descending scores, and all ≥ it."""
    return np.asarray(scores >= np.sort(scores)[::-1][int(len(scores) * fraction)])


def test_datacomps_metadata_gives_datacomps_subsets(tmp_path: Path) -> None:
    table = metadata()
    ctx = pool_of(tmp_path, table, {"clip_score": B32}, methods=["english", "datacomp_basic"])
    clip = "signals.clip_score"
    declare(
        ctx,
        Policy("clip_share", clip, fraction=0.3, semantics="compat"),
        Policy("clip_from", clip, threshold=0.25, semantics="compat"),
        Policy("laion_given", clip, threshold=0.28, prefilters=(Prefilter("signals.english", threshold=1),)),
        Policy(
            "basic_clip", "signals.datacomp_basic", threshold=1, prefilters=(Prefilter(clip, fraction=0.3),),
            semantics="compat",
        ),
    )  # fmt: skip
    b32 = table[B32].to_numpy()
    assert subset_of(ctx, "clip_share") == reference_npy(table, top(b32, 0.3))
    assert subset_of(ctx, "clip_from") == reference_npy(table, b32 >= 0.25)
    english = ctx_values(ctx, "english") == 1
    assert 0 < english.sum() < 60
    assert subset_of(ctx, "laion_given") == reference_npy(table, (b32 >= 0.28) & english)
    words = np.array([len(text.split()) for text in table["text"]])
    characters = np.array([len(text) for text in table["text"]])
    width, height = table["original_width"].to_numpy(), table["original_height"].to_numpy()
    shorter, longer = np.minimum(width, height), np.maximum(width, height)
    basic = english & (words > 2) & (characters > 5) & (shorter >= 200) & (longer / shorter <= 3)
    assert 0 < basic.sum() < english.sum()
    if "datacomp_basic" in load_policies():
        assert subset_of(ctx, "datacomp_basic") == reference_npy(table, basic)
    assert subset_of(ctx, "basic_clip") == reference_npy(table, basic & top(b32, 0.3))
    # recorded as given: the column is named, no model is
    assert tables_of(ctx)["signals/clip_score"].needs.roles == ()
    manifest = ctx.store.manifest("signals/clip_score", ctx.shards()[0])
    assert manifest is not None
    assert list(manifest.models) == []


def ctx_values(ctx: PoolContext, method: str) -> np.ndarray:
    run_with_upstream(ctx, f"signals/{method}")
    return ctx.store.scan(f"signals/{method}").collect()["value"].to_numpy()


def test_gaps_are_not_given_and_a_changed_column_is_read_again(tmp_path: Path) -> None:
    table = metadata(5).with_columns(pl.Series(L14, [0.5, None, float("nan"), -0.25, float("-inf")], dtype=pl.Float32))
    ctx = pool_of(tmp_path, table, {"clip_score": L14})
    run_with_upstream(ctx, "signals/clip_score")
    scored = ctx.store.read("signals/clip_score", ctx.shards()[0])
    assert scored["value"].to_list() == [0.5, None, None, -0.25, None]
    assert scored["reason"].to_list() == [None, "not_given", "not_given", None, "given_not_finite"]
    made = tables_of(ctx)
    again = materialise_table(ctx, made["signals/clip_score"], ctx.shards()[0], tables=made)
    assert again.is_reused
    table.with_columns(pl.lit(0.125).alias(L14)).write_parquet(tmp_path / "metadata.parquet")
    run_with_upstream(ctx, "signals/clip_score")
    assert ctx.store.read("signals/clip_score", ctx.shards()[0])["value"].to_list() == [0.125] * 5


def test_a_float32_counts_as_the_decimal_that_it_prints(tmp_path: Path) -> None:
    """float32(.7) is below .7 as float64; compared with float32, as the reference does, it is not."""
    table = metadata(3).with_columns(pl.Series(B32, [0.7, 0.28, 0.1], dtype=pl.Float32))
    ctx = pool_of(tmp_path, table, {"clip_score": B32})
    assert ctx_values(ctx, "clip_score").tolist() == [0.7, 0.28, 0.1]


def test_values_come_from_another_file_by_uid(tmp_path: Path) -> None:
    table = metadata(5)
    shuffled = table.select("uid", cap_scores=pl.Series(["0.5", "", "nan", "-0.25", "1"]))[::-1][:4]
    shuffled.write_csv(tmp_path / "sieve.csv")
    ctx = pool_of(tmp_path, table, {"sieve": f"{tmp_path}/sieve.csv:cap_scores"})
    run_with_upstream(ctx, "signals/sieve")
    scored = ctx.store.read("signals/sieve", ctx.shards()[0])
    assert scored["value"].to_list() == [None, None, None, -0.25, 1.0]
    assert scored["reason"].to_list() == ["not_given"] * 3 + [None, None]
    assert tables_of(ctx)["signals/sieve"].inputs == ("raw/samples", "raw/registered_shards")  # no generated captions


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([31.2, 20.0], r"has 31.2 for clip_score, which is cosine in \[-1, 1\] \(2 such values\); divide by 100"),
    ],
)
def test_values_in_another_unit_are_refused(tmp_path: Path, values: list[float], message: str) -> None:
    ctx = pool_of(tmp_path, metadata(2).with_columns(pl.Series(B32, values)), {"clip_score": B32})
    with pytest.raises(ValueError, match=message):
        run_with_upstream(ctx, "signals/clip_score")


def test_wrong_declarations_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no column 'clip' with values of clip_score; it has \['uid', "):
        pool_of(tmp_path, metadata(2), {"clip_score": "clip"})
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="text must hold numbers, got 'a red kite"):
        pool_of(tmp_path / "a", metadata(2), {"clip_score": "text"}).shards()
    with pytest.raises(ValueError, match="clip_scor'"):
        tables_of(pool_of(tmp_path / "b", metadata(2), {"clip_scor": B32}))
    with pytest.raises(ValueError, match=r"clip_score: no file /nowhere/x\.csv"):
        tables_of(pool_of(tmp_path / "c", metadata(2), {"clip_score": "/nowhere/x.csv:y"}))
    assert given_columns({"a": "column", "b": "/x:y/z.parquet:c:d"}) == {
        "a": (None, "column"),
        "b": (Path("/x:y/z.parquet"), "c:d"),
    }

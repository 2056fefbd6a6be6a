"""Two pools whose metrics are written by hand and whose signals follow from the ids: for tables and figures."""

from pathlib import Path

import polars as pl
import pytest

from curation_assets.flow.context import PoolContext
from curation_assets.sources.declaration import add_pool
from tests.support.lineage_pools import OPTIONS, bring_up_to_date, jpeg, webdataset_pool, write_tar
from tests.support.metrics import metric_rows, store_metrics

SIZES = (0.5, 0.2)  # shares kept; .5 and .8 removed


@pytest.fixture(scope="package")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pools of 40 and 60 pictures of noise with three signals, and one of captions that has nothing."""
    home = tmp_path_factory.mktemp("papers")
    settings = webdataset_pool(home, name="first", shards=2, per_shard=20)
    rows = [(f"{n:06d}", f"http://h.example/{n}.jpg", f"thing number {n}", jpeg(n)) for n in range(100, 160)]
    write_tar(home / "more" / "000000.tar", rows)
    add_pool(settings, "second", home / "more", options=OPTIONS)
    (home / "captions.csv").write_text("caption\na red kite\na dog\n")
    add_pool(settings, "texts", home / "captions.csv", columns={"url": None})
    for name, base in (("first", 0.0), ("second", 0.1)):
        ctx = bring_up_to_date(settings, name)
        captions, recalls = [], []
        for size in SIZES:
            gains = {"random": 0.0, "clip": 0.01, "icc": 0.02, "sieve": 0.03, "reward": 0.05 + size / 10}
            for policy, gain in gains.items():
                of = {"size": size, "kind": "control" if policy == "random" else "policy", "n": round(40 * size)}
                # reward − clip: .09 and .06 (mean .075) in the first pool, .01 more in the second
                value = base + gain + (0.01 * (base > 0) if policy == "reward" else 0)
                captions += metric_rows(policy, {"cider": [value, value + 0.02], "meteor": None}, **of)
                recalls += metric_rows(policy, {"text_to_image_recall@1": [value / 2]}, **of)
        store_metrics(ctx, "captioning", captions)
        store_metrics(ctx, "retrieval", recalls)
        store_halves(ctx)
    return home


def store_halves(ctx: PoolContext) -> None:
    """What was trained on at size .5, written by hand: the best half by each signal, and all for random."""
    samples = ctx.store.scan("raw/samples").filter(pl.col("status") == "kept").select("sample_id").collect()
    for name, signal in (("clip", "clip_score"), ("icc", "icc"), ("sieve", "sieve"), ("random", None)):
        chosen = samples
        if signal is not None:
            values = ctx.store.scan(f"signals/{signal}").select("sample_id", "value").collect().drop_nulls()
            best = values.join(samples, on="sample_id").sort("value", descending=True)
            chosen = best.head(int(samples.height / 2 + 0.5)).select("sample_id")
        ctx.store.materialise(
            "downstream/training_sets",
            lambda chosen=chosen: chosen,
            partition=f"{name}_at0500-000000",
            code_version="test",
        )

"""standardised/word_weights: each word's weight from the pool's and the downstream captions, for `relatedness`."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from curation_assets.core.table_names import SAMPLES, WORD_WEIGHTS
from curation_assets.flow.context import PoolContext
from curation_assets.flow.table import Table
from curation_assets.numeric.relatedness import WordWeights, add_document_frequencies, fit_word_weights
from curation_assets.scoring.files import read_captions
from curation_assets.stages.standardised.options import StandardisedOptions


def tables(ctx: PoolContext) -> Iterator[Table]:
    """One table, where relatedness runs and the pool's option `related_to` names a file of downstream captions.

    Raises ValueError where neither downstream captions nor word weights are given.
    """
    if not any(method.name == "relatedness" for method in ctx.methods("signals")):
        return
    if "word_weights_file" in ctx.profile.methods.get("relatedness", {}):
        return
    if not StandardisedOptions.of(ctx).related_to:
        raise ValueError(
            f"pool {ctx.pool.name!r} runs relatedness: name a file of downstream captions in its option related_to "
            "(options: {related_to: captions.txt}), or word weights in the profile (methods: {relatedness: "
            "{word_weights_file: weights.parquet}})"
        )
    yield Table(
        name=WORD_WEIGHTS,
        grain="pool",
        inputs=(SAMPLES,),
        version="1",
        compute=_word_weights,
        config=lambda ctx: {"related_to_sha256": _downstream_file(ctx)},
        description=(
            "One row per word of the pool's kept captions: idf (log of captions over captions with the word, not "
            "smoothed), and its share in the sum of the downstream captions' unit TF-IDF vectors (Rao et al.)."
        ),
    )


def _downstream_file(ctx: PoolContext) -> Path:
    return Path(str(StandardisedOptions.of(ctx).related_to)).expanduser()


def _word_weights(ctx: PoolContext) -> pl.DataFrame:
    def captions_by_shard() -> Iterator[Iterable[str]]:
        for key in ctx.store.partitions(SAMPLES):
            samples = ctx.store.read(SAMPLES, key, columns=["caption", "status"])
            yield samples.filter(pl.col("status") == "kept")["caption"].drop_nulls()

    return weights_frame(weights_of(captions_by_shard(), read_captions(_downstream_file(ctx))["caption"].drop_nulls()))


def weights_of(pool: Iterable[Iterable[str]], downstream: Iterable[str]) -> WordWeights:
    """Word weights of a pool given in parts, one part in memory at a time. Raises what `fit_word_weights` raises."""
    frequencies: Counter[str] = Counter()
    count = sum(add_document_frequencies(frequencies, texts) for texts in pool)
    return fit_word_weights(frequencies, count, downstream)


def weights_frame(weights: WordWeights) -> pl.DataFrame:
    """Columns word, idf, target, as `methods.relatedness.parse_word_weights` reads them."""
    return pl.DataFrame({"word": list(weights.words), "idf": weights.idf, "target": weights.target})

"""Kind `concept_balance`: full concepts give way, decided by a coin that is a hash (MetaCLIP)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.validation import Number, Switch, Whole, checked, setting
from curation_assets.numeric.concepts import EntryMatcher, frequent_ngrams, keep_probabilities, limit_of_tail
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.selection.kinds import Kind, missing_reason, scored

UNMATCHED = -1.0  # below every value of a caption that holds an entry


@checked("concept_balance")
class KIND(Kind):
    """quality is P(keep) less the coin: a threshold of 0 is MetaCLIP's rule (formulas.md §15.4)."""

    limit: Number | None = setting(
        default=None, gt=0, unit="captions", description="t: an entry with more gives way; null: by tail_share."
    )
    tail_share: Number = setting(
        default=0.06, gt=0, lt=1, description="Of all matches, held by entries that never give way (MetaCLIP 2)."
    )
    wordnet: Switch = setting(default=True, description="Entries are WordNet's words, besides frequent n-grams.")
    ngram_min_count: Whole = setting(
        default=100, ge=1, unit="captions", description="An n-gram that so many captions hold is an entry."
    )
    ngram_words: Whole = setting(default=2, ge=1, le=4, unit="words", description="Longest n-gram.")
    ignore_case: Switch = setting(default=True, description="Logo is logo.")
    seed: Whole = setting(default=0, ge=0, description="Of the coin, which is hashed from it and the sample_id.")

    @property
    def columns(self) -> tuple[str, ...]:
        """Captions."""
        return ("caption",)

    @property
    def roles(self) -> tuple[str, ...]:
        """WordNet, unless n-grams are enough."""
        return ("wordnet",) if self.wordnet else ()

    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """One row per entry: how many captions hold it, where it comes from, and the limit of all."""
        captions = [rows["caption"].drop_nulls().to_list() for rows in shards]
        sources = dict.fromkeys(engines["wordnet"].lemmas() if self.wordnet else [], "wordnet")
        every = (caption for shard in captions for caption in shard)
        grams = frequent_ngrams(every, self.ngram_min_count, self.ngram_words, self.ignore_case)
        sources |= {gram: "pool" for gram in sorted(grams) if gram not in sources}
        if not sources:
            raise ValueError(
                f"there are no concepts: no n-gram is in {self.ngram_min_count} captions, and wordnet is off; lower "
                "ngram_min_count, or set wordnet: true"
            )
        entries = list(sources)
        matcher = EntryMatcher(entries, self.ignore_case)
        counts: Counter[int] = Counter()
        for shard in captions:
            counts.update(matcher.match(shard).item.tolist())
        numbers = np.array([counts[number] for number in range(len(entries))], dtype=np.int64)
        limit = limit_of_tail(numbers, float(self.tail_share)) if self.limit is None else float(self.limit)
        return pl.DataFrame({"entry": entries, "source": list(sources.values()), "count": numbers}).with_columns(
            limit=pl.lit(limit)
        )

    def score(self, rows: pl.DataFrame, fit: pl.DataFrame) -> pl.DataFrame:
        """P(keep) − coin; entries that the caption holds, and the one with the best chance, which the reason names."""
        entries, counts, limit = fit["entry"].to_list(), fit["count"].to_numpy(), float(fit["limit"][0])
        captions = rows["caption"].fill_null("").to_list()
        matches = EntryMatcher(entries, self.ignore_case).match(captions)
        chance, rarest = keep_probabilities(matches, counts, limit)
        coin = np.array([unit_interval_of(one, f"concept_balance:{self.seed}") for one in rows["sample_id"]])
        held = [f"concept full: {entries[number]}, kept {limit:,.0f} of {counts[number]:,}" for number in rarest]
        return scored(
            np.where(rarest < 0, UNMATCHED, chance - coin) if len(captions) else np.zeros(0),
            missing_reason(rows, ["caption"]),
            [
                sentence if number >= 0 else "no concept in the caption"
                for sentence, number in zip(held, rarest, strict=True)
            ],
            keep_probability=chance,
            entry_count=np.bincount(matches.row, minlength=matches.rows),
        )

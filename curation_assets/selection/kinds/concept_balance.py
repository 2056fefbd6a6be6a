"""Kind `concept_balance`: full concepts give way, decided by a coin that is a hash (MetaCLIP)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import polars as pl

from curation_assets.core.validation import Number, Switch, Whole, checked, setting
from curation_assets.numeric.concepts import (
    EntryMatcher,
    frequent_ngrams,
    keep_probabilities,
    limit_of_tail,
    tail_share_of,
    with_spaced_characters,
)
from curation_assets.numeric.identity import unit_interval_of
from curation_assets.selection.kinds import Kind, missing_reason, scored

UNMATCHED = -1.0  # below every value of a caption that holds an entry
ENGLISH, UNKNOWN = "en", "unknown"


@checked("concept_balance")
class KIND(Kind):
    """quality is P(keep) less the coin: a threshold of 0 is MetaCLIP's rule (formulas.md §15.4)."""

    later: ClassVar[tuple[str, ...]] = ("per_language",)

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
    per_language: Switch = setting(
        default=False,
        description="Entries, counts and t of each language (raw/provenance) by itself; `limit` is English's, the "
        "others' t gives them its tail share (MetaCLIP 2).",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Captions, and languages where each is balanced by itself."""
        return ("caption", "language") if self.per_language else ("caption",)

    @property
    def roles(self) -> tuple[str, ...]:
        """WordNet, unless n-grams are enough."""
        return ("wordnet",) if self.wordnet else ()

    def _texts(self, rows: pl.DataFrame) -> tuple[list[str], np.ndarray]:
        """(N,) captions as they are matched ('' where there is none), and the language by whose entries."""
        captions = rows["caption"].fill_null("").to_list()
        if not self.per_language:
            return captions, np.full(len(captions), ENGLISH, dtype=object)
        languages = rows["language"].fill_null(UNKNOWN).to_numpy().astype(object)
        return list(map(with_spaced_characters, captions)), languages

    def fit(self, shards: Iterable[pl.DataFrame], engines: Mapping[str, Any]) -> pl.DataFrame:
        """One row per entry (of a language): how many captions hold it, where it comes from, and the limit."""
        captions: dict[str, list[str]] = {}
        for rows in shards:
            for text, language in zip(*self._texts(rows), strict=True):
                captions.setdefault(language, []).append(text)
        counted = {
            language: self._counted(texts, engines["wordnet"].lemmas() if self.wordnet and language == ENGLISH else [])
            for language, texts in sorted((captions or {ENGLISH: []}).items())
        }
        if not any(entries.height for entries in counted.values()):
            raise ValueError(
                f"there are no concepts: no n-gram is in {self.ngram_min_count} captions, and wordnet is off; lower "
                "ngram_min_count, or set wordnet: true"
            )
        share = float(self.tail_share)
        if self.limit is not None:
            if ENGLISH not in counted:
                raise ValueError(
                    "limit is that of English, and no caption is English; leave it out, and tail_share sets "
                    f"the limit of each language: {', '.join(counted)}"
                )
            share = tail_share_of(counted[ENGLISH]["count"].to_numpy(), float(self.limit))
        parts = []
        for language, entries in counted.items():
            is_given = self.limit is not None and language == ENGLISH
            limit = float(self.limit or 0) if is_given else limit_of_tail(entries["count"].to_numpy(), share)
            parts.append(entries.with_columns(limit=pl.lit(limit), language=pl.lit(language)))
        fit = pl.concat(parts)
        return fit if self.per_language else fit.drop("language")

    def _counted(self, captions: list[str], lemmas: Iterable[str]) -> pl.DataFrame:
        """Entries of a language, and how many captions hold each."""
        sources = dict.fromkeys(lemmas, "wordnet")
        grams = frequent_ngrams(captions, self.ngram_min_count, self.ngram_words, self.ignore_case)
        sources |= {gram: "pool" for gram in sorted(grams) if gram not in sources}
        counts = Counter(EntryMatcher(list(sources), self.ignore_case).match(captions).item.tolist())
        numbers = np.array([counts[number] for number in range(len(sources))], dtype=np.int64)
        named = {"entry": list(sources), "source": list(sources.values()), "count": numbers}
        return pl.DataFrame(named, schema={"entry": pl.String, "source": pl.String, "count": pl.Int64})

    def score(self, rows: pl.DataFrame, fit: pl.DataFrame) -> pl.DataFrame:
        """P(keep) − coin; entries that the caption holds, and the one with the best chance, which the reason names."""
        captions, languages = self._texts(rows)
        chance, entry_count = np.zeros(rows.height), np.zeros(rows.height, dtype=np.int64)
        reasons = np.full(rows.height, "no concept in the caption", dtype=object)
        own = fit if self.per_language else fit.with_columns(language=pl.lit(ENGLISH))
        for (language,), entries in own.partition_by("language", as_dict=True, maintain_order=True).items():
            mine = np.flatnonzero(languages == language)
            names, counts, limit = entries["entry"].to_list(), entries["count"].to_numpy(), float(entries["limit"][0])
            matches = EntryMatcher(names, self.ignore_case).match([captions[row] for row in mine])
            chance[mine], rarest = keep_probabilities(matches, counts, limit)
            entry_count[mine] = np.bincount(matches.row, minlength=len(mine))
            for row, number in zip(mine[rarest >= 0], rarest[rarest >= 0], strict=True):
                reasons[row] = f"concept full: {names[number]}, kept {limit:,.0f} of {counts[number]:,}"
        coin = np.array([unit_interval_of(one, f"concept_balance:{self.seed}") for one in rows["sample_id"]])
        return scored(
            np.where(entry_count == 0, UNMATCHED, chance - coin) if len(captions) else np.zeros(0),
            missing_reason(rows, ["caption"]),
            reasons,
            keep_probability=chance,
            entry_count=entry_count,
        )

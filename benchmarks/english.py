"""Thresholds of the method english, and what it drops and catches: `python benchmarks/english.py --data DIR`.

DIR holds web (image and alt-text pairs of web pages) and captions (alt_texts.parquet, coco_val2017_captions.parquet).
The English alt-texts of openly licensed pages of one half of the owners, of five words and more Conceptual Captions,
set a threshold per number of words: the lowest at which at most MOST_DROPPED of them are dropped. Reported are the
owners of the other half, all rows that are not openly licensed, and COCO's captions, beside the rule of DataComp, any
likeliest language but English. Caught: alt-texts in other scripts; beginnings of one to three words of raw alt-texts
of six words and more that the identifier calls another language with .8 and more; single words of six languages (the
1,000 most frequent of four letters and more that English does not use). The labels of the pages are guesses too: some
that are dropped are right to be. Intervals of 95 % by drawing owners.
"""

import argparse
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from wordfreq import top_n_list, zipf_frequency

from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods.english import THRESHOLDS, english
from curation_assets.numeric.datacomp import ENGLISH

RESULTS = Path(__file__).parent / "results" / "english.csv"
MOST_DROPPED = (0.05, 0.05, 0.05, 0.02, 0.002)  # of 1, 2, 3, 4 and more words
STEPS = [round(0.05 * step, 2) for step in range(1, 20)]
LANGUAGES = ("de", "fr", "es", "it", "pt", "nl")


def strength(captions: list[str], identifier: Any) -> np.ndarray:
    """(N,) probability of another language as the method reads it: the lower one of as written and in lower case."""
    found = []
    for texts in (captions, [text.lower() for text in captions]):
        languages, probabilities = identifier.identify_languages(texts)
        found.append(np.where(np.array(languages) == ENGLISH, 0.0, probabilities))
    return np.minimum(*found)


def share(dropped: np.ndarray, owners: np.ndarray) -> tuple[float, float, float]:
    """Mean of (N,) and its 95 % interval over drawn owners."""
    names, place = np.unique(owners, return_inverse=True)
    rng, sums, counts = np.random.default_rng(0), np.bincount(place, dropped), np.bincount(place)
    drawn = rng.integers(len(names), size=(2000, len(names)))
    low, high = np.quantile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), [0.025, 0.975])
    return float(dropped.mean()), float(low), float(high)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    identifier: Any = load_engine("language_identifier", load_profile("embedded"))
    pairs = pl.read_parquet(given.data / "web" / "pairs.parquet").filter(pl.col("alt").str.contains(r"\p{L}"))
    pairs = pairs.with_columns(
        count=pl.col("alt").str.split(" ").list.len().clip(1, len(THRESHOLDS)),
        half=pl.col("owner").map_elements(lambda o: hashlib.sha256(o.encode()).digest()[0] % 2, return_dtype=pl.Int64),
    )
    is_calibration = (pl.col("licence_class") == "open") & (pl.col("half") == 0)
    is_english = pl.col("language_guess") == ENGLISH
    rows: list[dict[str, Any]] = []

    def report(what: str, words: str, captions: list[str], owners: list[str]) -> None:
        languages, _ = identifier.identify_languages(captions)
        rules = {"english": english(captions, identifier).value == 0, "likeliest": np.array(languages) != ENGLISH}
        for rule, dropped in rules.items():
            value, low, high = share(dropped.astype(float), np.array(owners))
            rows.append({"rows": what, "words": words, "rule": rule, "n": len(captions), "owners": len(set(owners)),
                         "not_english": round(value, 4), "low": round(low, 4), "high": round(high, 4)})  # fmt: skip
            print(rows[-1], flush=True)

    texts = pl.read_parquet(given.data / "captions" / "alt_texts.parquet")
    conceptual = texts.filter(pl.col("source") == "cc3m_val")["text"].to_list()
    for count, most in enumerate(MOST_DROPPED, start=1):
        group = pairs.filter(pl.col("count") == count)
        calibrating = group.filter(is_calibration & is_english)["alt"].to_list()
        if count == len(THRESHOLDS):
            calibrating = [text for text in conceptual if len(text.split()) >= count]
        found = strength(calibrating, identifier)
        lowest = next((step for step in STEPS if (found >= step).mean() <= most), None)
        print(f"{count} words: {len(found)} set the threshold {lowest}; the method has {THRESHOLDS[count - 1]}")
        others = group.filter(~is_calibration & is_english)
        words = str(count) if count < len(THRESHOLDS) else f"{count} and more"
        report("English pages", words, others["alt"].to_list(), others["owner"].to_list())
    coco = pl.read_parquet(given.data / "captions" / "coco_val2017_captions.parquet")
    report("COCO captions", "all", coco["caption"].to_list(), coco["image_id"].cast(pl.String).to_list())
    other_script = pairs.filter(pl.col("language_guess").is_in(["zh", "ja", "ar", "ru", "ko", "el", "he", "uk", "th"]))
    report("pages in another script", "all", other_script["alt"].to_list(), other_script["owner"].to_list())
    raw = texts.filter(pl.col("source") != "cc3m_val")["text"].to_list()
    languages, probabilities = identifier.identify_languages(raw)
    for count in (1, 2, 3):
        begun = {
            " ".join(text.split()[:count]): text
            for text, language, probability in zip(raw, languages, probabilities, strict=True)
            if language != ENGLISH and probability >= 0.8 and len(text.split()) >= 6
        }
        report("beginnings of alt-texts in other languages", str(count), list(begun), list(begun.values()))
    for language in LANGUAGES:
        usual = (w for w in top_n_list(language, 20_000) if len(w) > 3 and w.isalpha() and zipf_frequency(w, "en") < 2)
        words = [word for word, _ in zip(usual, range(1000), strict=False)]
        report(f"words of {language}", "1", words, words)
    usual = (word for word in top_n_list("en", 20_000) if len(word) > 3 and word.isalpha())
    words = [word for word, _ in zip(usual, range(1000), strict=False)]
    report("words of en", "1", words, words)
    pl.DataFrame(rows).write_csv(RESULTS)


if __name__ == "__main__":
    main()

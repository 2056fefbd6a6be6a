"""Thresholds of the method english, and what it drops and catches: `python benchmarks/english.py --data DIR`.

DIR holds web (image and alt-text pairs of web pages), captions (alt_texts, coco_val2017_captions and flickr8k_captions)
and treebank (en_ewt). The English alt-texts of openly licensed pages of one half of the owners, of five words and more
Conceptual Captions, set a threshold per number of words: the lowest at which at most MOST_DROPPED of them reach it as
written and in lower case. Reported are the owners of the other half and all rows that are not openly licensed; COCO's
and Flickr8k's captions and the treebank's sentences, on which no number was set (that a word may be left out was
chosen knowing which of their captions version 2 dropped); and foreign pages. Rules: `english`; `thresholds` alone,
as version 2 had it; `likeliest`, any likeliest language but English, which is DataComp's. Caught: alt-texts in other
scripts and languages; beginnings of one to three words of raw alt-texts of six words and more that the identifier calls
another language with .8 and more; single words of six languages (the 1,000 most frequent of four letters and more that
English does not use). The labels of the pages are guesses too: some that are dropped are right to be. Intervals:
Wilson, 95 %.
"""

import argparse
import gzip
import hashlib
from pathlib import Path
from typing import Any

import polars as pl
from wordfreq import top_n_list, zipf_frequency

from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods.english import THRESHOLDS, english, other_languages, threshold_of
from curation_assets.numeric.agreement import wilson_interval
from curation_assets.numeric.datacomp import ENGLISH
from curation_assets.numeric.scripts import is_of_another_script

RESULTS = Path(__file__).parent / "results" / "english.csv"
MOST_DROPPED = (0.05, 0.05, 0.05, 0.02, 0.002)  # of 1, 2, 3, 4 and more words
STEPS = [round(0.05 * step, 2) for step in range(1, 20)]
LANGUAGES = ("de", "fr", "es", "it", "pt", "nl")


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

    def report(what: str, words: str, captions: list[str]) -> None:
        others = zip(captions, other_languages(captions, identifier), strict=True)
        rules = {
            "english": (english(captions, identifier).value == 0).tolist(),
            "thresholds": [
                is_of_another_script(text) or (any(map(str.isalpha, text)) and probability >= threshold_of(text))
                for text, (_, probability) in others
            ],
            "likeliest": [language != ENGLISH for language in identifier.identify_languages(captions)[0]],
        }
        for rule, dropped in rules.items():
            low, high = wilson_interval(sum(dropped) / len(captions), len(captions))
            rows.append({"rows": what, "words": words, "rule": rule, "n": len(captions), "not_english": sum(dropped),
                         "share": round(sum(dropped) / len(captions), 5),
                         "low": round(low, 5), "high": round(high, 5)})  # fmt: skip
            print(rows[-1], flush=True)

    texts = pl.read_parquet(given.data / "captions" / "alt_texts.parquet")
    conceptual = texts.filter(pl.col("source") == "cc3m_val")["text"].to_list()
    for count, most in enumerate(MOST_DROPPED, start=1):
        group = pairs.filter(pl.col("count") == count)
        calibrating = group.filter(is_calibration & is_english)["alt"].to_list()
        if count == len(THRESHOLDS):
            calibrating = [text for text in conceptual if len(text.split()) >= count]
        found = [probability for _, probability in other_languages(calibrating, identifier)]
        lowest = next((step for step in STEPS if sum(p >= step for p in found) <= most * len(found)), None)
        print(f"{count} words: {len(found)} set the threshold {lowest}; the method has {THRESHOLDS[count - 1]}")
        words = str(count) if count < len(THRESHOLDS) else f"{count} and more"
        report("English pages", words, group.filter(~is_calibration & is_english)["alt"].to_list())
    for name in ("coco_val2017", "flickr8k"):
        report(name, "all", pl.read_parquet(given.data / "captions" / f"{name}_captions.parquet")["caption"].to_list())
    trees = [gzip.decompress(path.read_bytes()).decode() for path in sorted((given.data / "treebank").glob("*.gz"))]
    sentences = [line.removeprefix("# text = ") for line in "".join(trees).split("\n") if line.startswith("# text = ")]
    report("treebank", "all", [text for text in sentences if any(map(str.isalpha, text))])
    report("foreign pages", "all", pairs.filter(~pl.col("language_guess").is_in([ENGLISH, "und"]))["alt"].to_list())
    other_script = pairs.filter(pl.col("language_guess").is_in(["zh", "ja", "ar", "ru", "ko", "el", "he", "uk", "th"]))
    report("pages in another script", "all", other_script["alt"].to_list())
    raw = texts.filter(pl.col("source") != "cc3m_val")["text"].to_list()
    languages, probabilities = identifier.identify_languages(raw)
    for count in (1, 2, 3):
        begun = {
            " ".join(text.split()[:count]): None
            for text, language, probability in zip(raw, languages, probabilities, strict=True)
            if language != ENGLISH and probability >= 0.8 and len(text.split()) >= 6
        }
        report("beginnings of alt-texts in other languages", str(count), list(begun))
    for language in LANGUAGES:
        usual = (w for w in top_n_list(language, 20_000) if len(w) > 3 and w.isalpha() and zipf_frequency(w, "en") < 2)
        words = [word for word, _ in zip(usual, range(1000), strict=False)]
        report(f"words of {language}", "1", words)
    usual = (word for word in top_n_list("en", 20_000) if len(word) > 3 and word.isalpha())
    words = [word for word, _ in zip(usual, range(1000), strict=False)]
    report("words of en", "1", words)
    pl.DataFrame(rows).write_csv(RESULTS)


if __name__ == "__main__":
    main()

"""Which word is false: are the nouns of a caption in the image, each against its frozen mean over reference images?

    python benchmarks/noun_grounding.py --data ../shared/data [--encoder path:HEADS]

For a noun phrase k (a noun with its compounds): s = cos(image, "a photo of k"), z = (s − μ_k) / σ_k with mean and
standard deviation of s over reference images. A noun is grounded where z ≥ 1 or the object detector names it. Its
value for a caption is the share of grounded nouns, its detail the least grounded one.

Exam: one noun of a caption gives way to another of its kind; AUC of true above swapped captions, share of pairs in
order (a tie is half), and how often the least grounded noun is the swapped one. A kind is WordNet's: the first senses
of both nouns have an ancestor in common at most 3 steps above each ("near"), or the same lexicographer's file
("topic"). The other noun has the same number, is drawn by its frequency among the captions of the set, and is not said
of the image: it is, in no sense, the same as, above or below any noun of any of its captions. The swapped caption
keeps the parse of the true one, so no error of the parser counts against a method.

Photographs: shard 000005, first caption; references: shards 000003 and 000004, or the other half of 000005. Web:
English captions of four words or more under pictures that look like photographs, of owners without any row of an open
licence, which no head is trained on; references: those of the other half of the owners. 95 % intervals by drawing
photographs (web: owners) with replacement. Writes benchmarks/results/noun_grounding.csv; nothing of the data.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import torch
from scipy.stats import rankdata

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.numeric.conceptual_captions.overlap import overlapping_words
from curation_assets.numeric.dependency import Token
from curation_assets.numeric.identity import sample_id_of, unit_interval_of
from lab.photo_pairs_read import Photo

RESULTS = Path(__file__).parent / "results" / "noun_grounding.csv"
EXAM, REFERENCES = "000005", ("000003", "000004")
PROMPT, GROUNDED, STEPS = "a photo of {}", 1.0, 3
SEEDS, RESAMPLES = 5, 200
TEXTS_AT_ONCE = 512
MIN_COUNT = {"photographs": 5, "web": 2}  # occurrences of a noun that may stand for another
Parsed = list[Token]
Embed = Callable[[list[str]], list[np.ndarray]]  # (N,) texts → N unit vectors


class Swap(NamedTuple):
    """A caption whose word at `place` is another one."""

    row: int
    place: int
    tokens: Parsed  # of the swapped caption


class Phrase(NamedTuple):
    text: str
    places: tuple[int, ...]


@dataclass
class Pairs:
    """Images with what is said of them."""

    captions: list[str]
    said: list[list[str]]  # every caption of each image
    vectors: np.ndarray  # (N, D)
    labels: list[list[str]] | None  # what a detector names
    groups: np.ndarray  # (N,) what is drawn for an interval
    half: np.ndarray  # (N,) bool, the same for all rows of a group


class Kinds:
    """Nouns of a set of captions, and which of them are of one kind."""

    def __init__(self, wordnet: Any, parsed: Sequence[Parsed], min_count: int) -> None:
        self.senses = cache(lambda word: tuple(wordnet.synsets(word, "n")))
        self.hypernyms = cache(lambda offset: wordnet.synset(offset).hypernyms)
        self.above = cache(self._above)
        self.related = cache(self._related)
        self.of_kind = cache(self._of_kind)
        counts = Counter((t.text.lower(), t.tag) for tokens in parsed for t in tokens if is_common_noun(t))
        self.vocabulary = [
            (word, tag, count)
            for (word, tag), count in sorted(counts.items())
            if count >= min_count and word.isalpha() and self.senses(word)
        ]

    def _above(self, offset: int) -> dict[int, int]:
        """A sense and all above it → steps."""
        steps, todo = {offset: 0}, [offset]
        for here in todo:
            for parent in self.hypernyms(here):
                if parent not in steps:
                    steps[parent] = steps[here] + 1
                    todo.append(parent)
        return steps

    def _related(self, first: str, second: str) -> bool:
        ours, theirs = ({sense.offset for sense in self.senses(word)} for word in (first, second))
        return any(ours & self.above(o).keys() for o in theirs) or any(theirs & self.above(o).keys() for o in ours)

    def _of_kind(self, word: str, tag: str, kind: str) -> list[tuple[str, int]]:
        if not self.senses(word):
            return []
        mine = self.senses(word)[0]
        found = []
        for other, its_tag, count in self.vocabulary:
            sense = self.senses(other)[0]
            if kind == "topic":
                is_alike = sense.topic == mine.topic
            else:
                a, b = self.above(mine.offset), self.above(sense.offset)
                is_alike = any(a[o] <= STEPS and b[o] <= STEPS for o in a.keys() & b.keys())
            if its_tag == tag and is_alike and not self.related(word, other):
                found.append((other, count))
        return found

    def swap(self, row: int, tokens: Parsed, said: Sequence[Parsed], kind: str, seed: int) -> Swap | None:
        """None: no noun has another of its kind that is not said of the image."""
        words = {token.text.lower() for caption in said for token in caption}
        nouns = {token.text.lower() for caption in said for token in caption if token.pos in ("NOUN", "PROPN")}
        rng = np.random.default_rng([seed, row])
        choices = []
        for place, token in enumerate(tokens):
            others = self.of_kind(token.text.lower(), token.tag, kind) if is_common_noun(token) else []
            free = [
                (word, count)
                for word, count in others
                if word not in words and not any(self.related(word, noun) for noun in nouns)
            ]
            if free:
                choices.append((place, free))
        if not choices:
            return None
        place, free = choices[rng.integers(len(choices))]
        counts = np.array([count for _, count in free], dtype=float)
        word = free[rng.choice(len(free), p=counts / counts.sum())][0]
        changed = list(tokens)
        changed[place] = changed[place]._replace(text=word)
        if place and changed[place - 1].text.lower() in ("a", "an"):
            article = "an" if word[0] in "aeiou" else "a"
            is_capital = changed[place - 1].text[0].isupper()
            changed[place - 1] = changed[place - 1]._replace(text=article.capitalize() if is_capital else article)
        return Swap(row, place, changed)


def is_common_noun(token: Token) -> bool:
    return token.pos == "NOUN" and token.tag in ("NN", "NNS")


def noun_phrases(tokens: Parsed, unit: str) -> list[Phrase]:
    """Distinct ones in order, lower case. unit: noun; phrase, with compounds; long, with adjectives too."""
    joined = {"noun": (), "phrase": ("compound",), "long": ("compound", "amod")}[unit]
    found: dict[str, Phrase] = {}
    for head, token in enumerate(tokens):
        if token.pos not in ("NOUN", "PROPN") or (joined and token.dep == "compound"):
            continue
        places = {head}
        for i in reversed(range(head)):
            if tokens[i].head in places and tokens[i].dep in joined:
                places.add(i)
        text = " ".join(tokens[i].text.lower() for i in sorted(places))
        found.setdefault(text, Phrase(text, tuple(sorted(places))))
    return list(found.values())


def text_of(tokens: Parsed) -> str:
    return " ".join(token.text for token in tokens)


def auc(own: np.ndarray, other: np.ndarray) -> float:
    """P(own > other) + P(equal) / 2. (N,), (M,)."""
    ranks = rankdata(np.concatenate([own, other]))
    return float((ranks[: len(own)].sum() - len(own) * (len(own) + 1) / 2) / (len(own) * len(other)))


class Exam:
    """Scores of true and swapped captions of one set, with one choice of reference images."""

    def __init__(self, pairs: Pairs, embed: Embed, references: Sequence[np.ndarray]) -> None:
        """`references`: (R, D) for the rows of the first half, and for those of the second."""
        self.pairs, self.embed, self.references = pairs, embed, references
        self.known: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # text → (N,) cosines, (N,) z

    def read(self, texts: Sequence[str]) -> None:
        missing = sorted(set(texts) - self.known.keys())
        for start in range(0, len(missing), TEXTS_AT_ONCE):
            part = missing[start : start + TEXTS_AT_ONCE]
            vectors = np.stack(self.embed(part)).T  # (D, T)
            cosines = self.pairs.vectors @ vectors  # (N, T)
            seen = [reference @ vectors for reference in self.references]  # 2 × (R, T)
            half = self.pairs.half[:, None]
            mean, deviation = (np.where(half, of(seen[0], axis=0), of(seen[1], axis=0)) for of in (np.mean, np.std))
            z = (cosines - mean) / deviation
            self.known.update((text, (cosines[:, i], z[:, i])) for i, text in enumerate(part))

    def zs(self, row: int, phrases: Sequence[Phrase]) -> np.ndarray:
        return np.array([self.known[PROMPT.format(phrase.text)][1][row] for phrase in phrases])

    def scores(self, trials: Sequence[tuple[int, Parsed]]) -> dict[str, np.ndarray]:
        """Scorer → (T,) for each row with a caption."""
        texts, rows = [text_of(tokens) for _, tokens in trials], [row for row, _ in trials]
        self.read(texts)
        found = {
            "clip_score": np.array([self.known[text][0][row] for text, row in zip(texts, rows, strict=True)]),
            "z of the caption": np.array([self.known[text][1][row] for text, row in zip(texts, rows, strict=True)]),
        }
        for unit in ("phrase", "noun", "long"):
            phrases = [noun_phrases(tokens, unit) for _, tokens in trials]
            self.read([PROMPT.format(phrase.text) for mine in phrases for phrase in mine])
            zs = [self.zs(row, mine) for row, mine in zip(rows, phrases, strict=True)]
            name = {"phrase": "noun_grounding", "noun": "single nouns", "long": "with adjectives"}[unit]
            if self.pairs.labels is not None:
                named = [
                    np.array([bool(overlapping_words(phrase.text, self.pairs.labels[row])) for phrase in mine])
                    for row, mine in zip(rows, phrases, strict=True)
                ]
                found[name] = np.array([((z >= GROUNDED) | seen).mean() for z, seen in zip(zs, named, strict=True)])
            found[f"{name}, no detector"] = np.array([(z >= GROUNDED).mean() for z in zs])
            found[f"{name}, least z"] = np.array([z.min() for z in zs])
            found[f"{name}, mean z"] = np.array([z.mean() for z in zs])
        return found

    def located(self, swaps: Sequence[Swap]) -> dict[str, np.ndarray]:
        """Way → (T,) 1 where it names the swapped noun of captions with two nouns or more, nan elsewhere."""
        found: dict[str, list[float]] = defaultdict(list)
        kept: list[list[str]] = []  # the caption without each of its nouns
        phrases = [noun_phrases(swap.tokens, "phrase") for swap in swaps]
        for swap, mine in zip(swaps, phrases, strict=True):
            kept.append([text_of([t for i, t in enumerate(swap.tokens) if i not in phrase.places]) for phrase in mine])
        self.read([text for texts in kept for text in texts])
        for swap, mine, without in zip(swaps, phrases, kept, strict=True):
            is_false = np.array([swap.place in phrase.places for phrase in mine])
            if len(mine) < 2 or not is_false.any():
                for way in ("least z", "highest clip_score without it", "chance"):
                    found[way].append(np.nan)
                continue
            cosines = [self.known[text][0][swap.row] for text in without]
            found["least z"].append(float(is_false[self.zs(swap.row, mine).argmin()]))
            found["highest clip_score without it"].append(float(is_false[int(np.argmax(cosines))]))
            found["chance"].append(float(is_false.mean()))
        return {way: np.array(values) for way, values in found.items()}


def rows_of(where: str, references: str, kind: str, exam: Exam, kinds: Kinds, parsed: dict[str, Parsed]) -> list[dict]:
    """Every figure of a set, with one choice of references and of kinds."""
    pairs = exam.pairs
    swaps = [
        swap
        for seed in range(SEEDS)
        for row, caption in enumerate(pairs.captions)
        if (swap := kinds.swap(row, parsed[caption], [parsed[c] for c in pairs.said[row]], kind, seed))
    ]
    own = exam.scores([(swap.row, parsed[pairs.captions[swap.row]]) for swap in swaps])
    other = exam.scores([(swap.row, swap.tokens) for swap in swaps])
    groups = pairs.groups[[swap.row for swap in swaps]]
    names, inverse = np.unique(groups, return_inverse=True)
    members = [np.flatnonzero(inverse == i) for i in range(len(names))]
    rng = np.random.default_rng(0)
    draws = [np.concatenate([members[i] for i in rng.integers(len(names), size=len(names))]) for _ in range(RESAMPLES)]
    rows = []

    def add(scorer: str, measure: str, value: float, drawn: Sequence[float]) -> None:
        low, high = np.nanquantile(drawn, [0.025, 0.975]).tolist()
        cells = {"photos": where, "references": references, "kind": kind, "scorer": scorer, "measure": measure}
        rows.append(cells | {"value": value, "low": low, "high": high, "photo_count": len({s.row for s in swaps}),
                             "group_count": len(names), "swap_count": len(swaps)})  # fmt: skip
        print(
            {name: round(cell, 4) if isinstance(cell, float) else cell for name, cell in rows[-1].items()}, flush=True
        )

    clip = [auc(own["clip_score"][draw], other["clip_score"][draw]) for draw in draws]
    for scorer, mine in own.items():
        theirs = other[scorer]
        drawn = [auc(mine[draw], theirs[draw]) for draw in draws]
        value = auc(mine, theirs)
        add(scorer, "auc", value, drawn)
        if scorer != "clip_score":
            difference = value - auc(own["clip_score"], other["clip_score"])
            add(scorer, "auc less clip_score's", difference, np.subtract(drawn, clip).tolist())
        ordered = (mine > theirs) + (mine == theirs) / 2
        add(scorer, "pairs in order", float(ordered.mean()), [float(ordered[draw].mean()) for draw in draws])
    for way, hits in exam.located(swaps).items():
        add(way, "names the swapped noun", float(np.nanmean(hits)), [float(np.nanmean(hits[draw])) for draw in draws])
    return rows


def photographs(data: Path, shards: Sequence[str]) -> pl.DataFrame:
    table = pl.read_parquet(data / "photos" / "captions.parquet").filter(pl.col("shard").is_in(list(shards)))
    return table.sort("shard", "key").with_columns(tar=pl.lit(f"{data / 'photos'}/") + pl.col("shard") + ".tar")


def web_photographs(data: Path) -> pl.DataFrame:
    """Of all licences; `is_open`: the owner has rows that heads may be trained on."""
    pairs = pl.read_parquet(data / "web" / "pairs.parquet")
    is_photo = (pl.col("kind_guess") == "photo") & (pl.col("language_guess") == "en") & (pl.col("words") >= 4)
    opened = pairs.filter(pl.col("licence_class") == "open")["owner"].unique()
    return (
        pairs.filter(is_photo)
        .sort("owner", "key")
        .select("key", "owner", caption="alt", captions=pl.concat_list("alt"),
                is_open=pl.col("owner").is_in(opened.implode()), tar=pl.lit(f"{data / 'web'}/") + pl.col("shard"))
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared/data")
    parser.add_argument("--encoder", default="embedded:photo_pair", help="address of the role image_text_encoder")
    parser.add_argument("--wordnet", default="debian:wordnet-base", help="or path:FOLDER of its dictionary files")
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    profile = load_profile("photos").with_roles(image_text_encoder=given.encoder, wordnet=given.wordnet)
    wordnet: Any = load_engine("wordnet", profile)
    encoder: Any = load_engine("image_text_encoder", profile)
    parser_engine: Any = load_engine("parser", profile)
    detector: Any = None
    try:
        detector = load_engine("object_detector", profile)
    except ModelUnavailableError as error:
        print(f"no row with the detector: {error}")

    def pairs_of(table: pl.DataFrame, groups: pl.Series) -> Pairs:
        vectors, labels = [], []
        for part in table.iter_slices(64):
            images = [Photo(f"x:{key}.jpg", (), Path(tar)).load() for key, tar in part.select("key", "tar").iter_rows()]
            vectors.append(encoder.embed_images(images))
            for objects in detector.detect_objects(images) if detector else []:
                labels.append(list(dict.fromkeys(one.label for one in objects)))
        half = np.array([unit_interval_of(sample_id_of(group, ""), "half") < 0.5 for group in groups])
        return Pairs(
            table["caption"].to_list(), table["captions"].to_list(), np.concatenate(vectors),
            labels if detector else None, groups.to_numpy(), half,
        )  # fmt: skip

    def parsed_of(table: pl.DataFrame) -> dict[str, Parsed]:
        texts = sorted({text for said in table["captions"] for text in said} | set(table["caption"]))
        return dict(zip(texts, parser_engine.parse_texts(texts), strict=True))

    known: dict[str, np.ndarray] = {}

    def embed(texts: list[str]) -> list[np.ndarray]:
        missing = [text for text in texts if text not in known]
        known.update(zip(missing, encoder.embed_texts(missing), strict=True))
        return [known[text] for text in texts]

    rows: list[dict] = []
    table = photographs(given.data, (EXAM, *REFERENCES))
    parsed = parsed_of(table)
    kinds = Kinds(wordnet, list(parsed.values()), MIN_COUNT["photographs"])
    own, others = table.filter(pl.col("shard") == EXAM), table.filter(pl.col("shard") != EXAM)
    pairs = pairs_of(own, own["key"])
    kept, detector = detector, None  # of references only the vectors are read
    references = pairs_of(others, others["key"]).vectors
    detector = kept
    sets = {
        "shards 000003, 000004": [references, references],
        "the other half": [pairs.vectors[~pairs.half], pairs.vectors[pairs.half]],
    }
    for name, vectors in sets.items():
        for kind in ("near", "topic"):
            rows += rows_of(f"shard {EXAM}", name, kind, Exam(pairs, embed, vectors), kinds, parsed)

    table = web_photographs(given.data)
    parsed = parsed_of(table)
    kinds = Kinds(wordnet, list(parsed.values()), MIN_COUNT["web"])
    table = table.filter(~pl.col("is_open"))
    # a swap needs a noun; captions without one have no value
    table = table.filter(pl.Series([bool(noun_phrases(parsed[text], "phrase")) for text in table["caption"]]))
    pairs = pairs_of(table, table["owner"])
    vectors = [pairs.vectors[~pairs.half], pairs.vectors[pairs.half]]
    for kind in ("near", "topic"):
        rows += rows_of("web", "the other half", kind, Exam(pairs, embed, vectors), kinds, parsed)
    card = f"{given.encoder} {encoder.identity.weights_sha256[:12]}"
    RESULTS.parent.mkdir(exist_ok=True)
    pl.DataFrame(rows).with_columns(pl.col(pl.Float64).round(4), encoder=pl.lit(card)).write_csv(RESULTS)


if __name__ == "__main__":
    main()

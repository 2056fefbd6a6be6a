"""Self-filtering tried on web pairs: heads refitted on what they call clean of a pool, judged on other owners.

    OMP_NUM_THREADS=1 python -m benchmarks.self_filtering --data ../shared/data --work DIR

After arXiv 2606.23611: an encoder learns from an evolving mixture of the rows that its own score calls clean and of a
random share of the pool. Here the heads of photo_pair are refitted in three rounds, each time on the half of the pool
with the highest cosines by the heads at hand and a random tenth, whole images and mirrored ones; towers start at the
heads at hand, the reduction and ConSE stay.

Five splits by the owner of a repository: the rows of one fold report, and nothing else reads them. In the setting
`new owners` the first heads know Flickr8k and the open rows of two folds, and the pool is the other two folds, of all
licences, new to them; in `new owners, half mismatched` half of that pool's captions are exchanged for each other's. In
`other licences` they know Flickr8k and the open rows of all four folds, as the shipped ones know theirs, and the pool
is the rows of these folds that are not open. Beside the rounds stand the heads as they were, and heads that were
refitted as often on the whole pool.

Figures: AUC of an image with its own caption above English captions of other owners of the fold
(benchmarks/web_pairs.py), over English rows of two words or more; differences from the heads as they were, with 95 %
intervals by drawing owners. Puts the rows of a setting into benchmarks/results/self_filtering.csv, which
docs/decisions/0104-no-self-filtering.md reads.
"""

import argparse
import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import torch.nn.functional as F
from rich.console import Console

from benchmarks.web_pairs import FOLDS, HELD_OUT, SHIPPED, further_captions, interval, parts_of, ranks_among, web_rows
from curation_assets.core.progress import Silent, reporter_for
from curation_assets.core.settings import Profile
from curation_assets.engines import load_engine
from curation_assets.engines.photo_pair import from_stored, to_stored
from lab.photo_pair import SENTENCE_ENCODER, class_vectors, embedded, extract, scores_of
from lab.photo_pair_fit import PairFeatures, Recipe, Towers, contrastive_loss, figures, fit
from lab.photo_pairs_read import Photo, read_photos

RESULTS = Path(__file__).parent / "results" / "self_filtering.csv"
WHOLE_AND_MIRRORED = [0, 2]  # of the views that `extract` makes
SHARDS = ("000000", "000002", "000003", "000004", HELD_OUT)
ROUNDS = 3
CLEAN, RANDOM = 0.5, 0.1  # shares of the pool that a round learns from
#: Of a round: a fifth of the updates and of the rate of the first fit.
REFIT = replace(SHIPPED, epochs=12, learning_rate=4e-4)
SETTINGS = ("new owners", "new owners, half mismatched", "other licences")
PART = "English, two words or more"
Tensors = Mapping[str, torch.Tensor]


def two_views(photos: Sequence[Photo], work: Path) -> PairFeatures:
    """Features of whole and mirrored images, all of which can be decoded; kept in `work`."""
    _, pairs = extract(photos, work, 0, reporter_for(Console(stderr=True)))
    if len(pairs) != len(photos):
        raise ValueError(f"expected {len(photos)} images that can be decoded, got {len(pairs)}")
    return replace(pairs, images=pairs.images[WHOLE_AND_MIRRORED])


def refitted(heads: Tensors, pairs: PairFeatures, recipe: Recipe, seed: int, more: np.ndarray) -> Tensors:
    """The heads after further updates on `pairs`: `photo_pair_fit.fit` from where they are, by the same loss."""
    generator = torch.Generator().manual_seed(seed)
    known = from_stored(heads)
    weight, bias = known["image.reduce.weight"], known["image.reduce.bias"]
    images = torch.stack([F.linear(torch.from_numpy(view.astype(np.float32)), weight, bias) for view in pairs.images])
    sentences, others = (torch.from_numpy(rows.astype(np.float32)) for rows in (pairs.sentences, more))
    towers = {}
    for side in ("image", "text"):
        count, hidden, inputs = known[f"{side}.hidden.weight"].shape
        towers[side] = Towers(count, inputs, hidden, recipe.width, 1.0, generator)
        towers[side].load_state_dict(
            {
                "hidden_weight": known[f"{side}.hidden.weight"].transpose(1, 2),
                "hidden_bias": known[f"{side}.hidden.bias"][:, None],
                "out_weight": known[f"{side}.out.weight"].transpose(1, 2),
                "out_bias": known[f"{side}.out.bias"][:, None],
            }
        )
    scale = torch.nn.Parameter(torch.full((recipe.heads, 1, 1), float(np.log(20.0))))
    weights = [parameter for tower in towers.values() for parameter in tower.parameters()]
    optimizer = torch.optim.AdamW([*weights, scale], lr=recipe.learning_rate, weight_decay=recipe.weight_decay)
    batch = min(recipe.batch, len(pairs))

    for _ in range(recipe.epochs * max(1, len(pairs) // batch)):
        rows = torch.stack([torch.randperm(len(pairs), generator=generator)[:batch] for _ in range(recipe.heads)])
        view = torch.randint(len(images), rows.shape, generator=generator)
        loss = contrastive_loss(towers, scale, images[view, rows], sentences[rows], others, recipe, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return to_stored({**known, **towers["image"].tensors("image"), **towers["text"].tensors("text")})


def mixture_of(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows of the likely clean half, and a random tenth of all; each once."""
    clean = np.argsort(-scores, kind="stable")[: round(CLEAN * len(scores))]
    drawn = rng.choice(len(scores), round(RANDOM * len(scores)), replace=False)
    return np.union1d(clean, drawn)


def mismatched(pool: PairFeatures, rng: np.random.Generator) -> PairFeatures:
    """The pool, the captions of a drawn half moved on to the next of that half."""
    half = rng.permutation(len(pool))[: len(pool) // 2]
    sentences = pool.sentences.copy()
    sentences[half] = pool.sentences[np.roll(half, 1)]
    return replace(pool, sentences=sentences)


class Trial:
    """Features of everything, and the folds of the owners."""

    def __init__(self, data: Path, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.rows = web_rows(data)
        web = [
            Photo(name, (alt,), Path(name.rpartition(":")[0])) for name, alt in self.rows.select("image", "alt").rows()
        ]
        photos = [photo for shard in SHARDS for photo in read_photos(data / "photos" / f"{shard}.tar")]
        texts = pl.read_parquet(data / "photos" / "captions.parquet").select("shard", "key", "captions")
        captions_of = {f"{shard}.tar:{key}.jpg": captions for shard, key, captions in texts.iter_rows()}
        photos = [replace(photo, captions=tuple(captions_of[photo.name])) for photo in photos]
        encoder: Any = load_engine("sentence_encoder", Profile("training", {"sentence_encoder": SENTENCE_ENCODER}))
        self.photos, self.web = two_views(photos, work), two_views(web, work)
        self.shard_of = np.array([photo.name.partition(".")[0] for photo in photos])
        self.owners, self.folds = self.rows["owner"].to_numpy(), self.rows["fold"].to_numpy()
        english = (pl.col("language_guess") == "en") & (pl.col("words") >= 2)
        self.is_english = self.rows.select(pl.col("language_guess") == "en").to_series().to_numpy()
        self.may_teach = self.rows.select(english & (pl.col("licence_class") == "open")).to_series().to_numpy()
        self.is_other = (self.rows["licence_class"] != "open").to_numpy()
        self.masks = parts_of(self.rows)
        self.classes = class_vectors(encoder)
        self.more = embedded(further_captions(data), encoder, "further captions", work, Silent())

    @functools.cache  # noqa: B019 - one trial a process
    def first_heads(self, folds: tuple[int, ...], seed: int) -> Tensors:
        """Fitted on Flickr8k and the open English rows of these folds."""
        flickr = self.photos[np.flatnonzero(self.shard_of != HELD_OUT)]
        web = self.web[np.flatnonzero(self.may_teach & np.isin(self.folds, folds))] if len(folds) else None
        parts = [flickr] if web is None else [flickr, web]
        joined = PairFeatures(
            np.concatenate([part.images for part in parts], axis=1),
            np.concatenate([part.probabilities for part in parts]),
            np.concatenate([part.sentences for part in parts]),
            np.cumsum([0, *np.concatenate([np.diff(part.starts) for part in parts])]),
        )
        return fit(joined, self.classes, SHIPPED, seed, more=self.more)

    def ranks(self, heads: Tensors, fold: int) -> np.ndarray:
        """(R,) share of mismatches below each own score of the fold's English rows of two words or more."""
        at = np.flatnonzero(self.folds == fold)
        rows, columns = np.flatnonzero(self.masks[PART][at]), np.flatnonzero(self.is_english[at])
        return ranks_among(scores_of(dict(heads), self.web[at]), self.owners[at], rows, columns)

    def photographs(self, heads: Tensors) -> float:
        """AUC on the shard of photographs that nothing learned from."""
        return figures(scores_of(dict(heads), self.photos[np.flatnonzero(self.shard_of == HELD_OUT)])).auc


def tried(trial: Trial, setting: str, fold: int, seed: int) -> dict[str, Tensors]:
    """Name → heads: as they were, after each round of self-filtering, and refitted as often on the whole pool."""
    others = [(fold + step) % FOLDS for step in range(1, FOLDS)]
    known, pooled = (others, others) if setting == "other licences" else (others[2:], others[:2])
    chosen = np.isin(trial.folds, pooled) & (trial.is_other if setting == "other licences" else True)
    pool = trial.web[np.flatnonzero(chosen)]
    if setting.endswith("mismatched"):
        pool = mismatched(pool, np.random.default_rng(seed))
    first = trial.first_heads(tuple(sorted(known)), seed)
    found = {"as they were": first}
    filtered, whole = first, first
    rng = np.random.default_rng(seed)
    for number in range(1, ROUNDS + 1):
        scores = np.diag(scores_of(dict(filtered), pool))
        filtered = refitted(filtered, pool[mixture_of(scores, rng)], REFIT, seed + number, trial.more)
        whole = refitted(whole, pool, REFIT, seed + number, trial.more)
        found[f"self-filtered, round {number}"] = filtered
    found["refitted on the whole pool"] = whole
    return found


def rows_of(trial: Trial, setting: str, seed: int) -> list[dict[str, Any]]:
    """A row per kind of heads: AUC over the five folds, and the paired difference from the heads as they were."""
    ranks: dict[str, list[np.ndarray]] = {}
    photographs: dict[str, list[float]] = {}
    owners = []
    for fold in range(FOLDS):
        at = np.flatnonzero(trial.folds == fold)
        owners.append(trial.owners[at][trial.masks[PART][at]])
        for name, heads in tried(trial, setting, fold, seed).items():
            ranks.setdefault(name, []).append(trial.ranks(heads, fold))
            photographs.setdefault(name, []).append(trial.photographs(heads))
            print(setting, fold, name, f"{ranks[name][-1].mean():.4f} {photographs[name][-1]:.4f}", flush=True)
    all_owners = np.concatenate(owners)
    before = np.concatenate(ranks["as they were"])
    rows = []
    for name, parts in ranks.items():
        values = np.concatenate(parts)
        gain = values - before
        low, high = interval(gain, all_owners)
        by_split = [float(part.mean() - was.mean()) for part, was in zip(parts, ranks["as they were"], strict=True)]
        rows.append(
            {
                "setting": setting, "heads": name, "seed": seed, "n": len(values), "auc": float(values.mean()),
                "gain": float(gain.mean()), "gain_low": low, "gain_high": high,
                "smallest_of_splits": min(by_split), "largest_of_splits": max(by_split),
                "auc_photographs": float(np.mean(photographs[name])),
            }
        )  # fmt: skip
        print({key: round(cell, 4) if isinstance(cell, float) else cell for key, cell in rows[-1].items()}, flush=True)
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--work", type=Path, required=True, help="folder for features, kept for the next run")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    trial = Trial(given.data, given.work)
    for setting in given.settings:
        measured = pl.DataFrame(rows_of(trial, setting, given.seed)).with_columns(pl.col(pl.Float64).round(4))
        before = pl.read_csv(RESULTS).filter(pl.col("setting") != setting) if RESULTS.is_file() else measured.clear()
        pl.concat([before, measured]).write_csv(RESULTS)


if __name__ == "__main__":
    main()

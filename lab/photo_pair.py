"""The image–text encoder for photographs: `python -m lab photo_pair --pairs PAIRS --out DIR`.

Trains the heads of `engines/photo_pair.py` on photos with captions, on a CPU: features of 2,000 photos take minutes,
the heads a few more. PAIRS is a folder of webdataset tars (KEY.jpg, KEY.txt), one tar, or a table with the columns
image and caption (a path relative to the table or TAR:MEMBER; several captions of an image are several rows), and group
where the photos of one site or owner must stay in one fold. Prints cross-validated figures first, then trains on
everything and writes DIR/photo_pair, which a profile names as `path:DIR/photo_pair`. With --bank, captions that stand
for an image's generated ones, also DIR/nearest_captions.
"""

import argparse
import hashlib
import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from rich.console import Console
from safetensors.torch import save_file

from curation_assets.core.progress import ProgressReporter, reporter_for
from curation_assets.core.settings import Profile
from curation_assets.engines import (
    identify_engine,
    load_engine,
    nearest_captions,
    nearest_photo,
    photo_pair,
    resolve_address,
)
from curation_assets.engines.efficientnet import BACKBONES
from curation_assets.engines.image_text_encoder import PHOTO_PAIR
from curation_assets.numeric.identity import sample_id_of, unit_interval_of
from curation_assets.stores.atomic import replacing
from curation_assets.stores.file_hash import PACKED, file_sha256, unpacked_sha256
from curation_assets.stores.images import ImageRejected
from lab import manifest
from lab.common import Clock, Setup, record, replaced_folder, run_or_refuse
from lab.photo_pair_fit import PairFeatures, Recipe, figures, fit
from lab.photo_pairs_read import Photo, captions_in, read_photos

SENTENCE_ENCODER = "embedded:minilm"
CLASS_PROMPT = "a photo of a {}"
MIN_PHOTOS = 20
MAX_PHOTOS = 20_000  # 5 views × 20,000 × 3,840 features × 2 B = 770 MB
CROPS = 2  # random views of each photo
CROP_SEED = 0  # whatever the seed of the heads: features are kept for the next run
CROPPED_AREA = (0.55, 1.0)  # of a random view, as a share of the photo
AT_ONCE = 32  # photos decoded together


def centre_square(image: Image.Image) -> Image.Image:
    """The largest square in the middle."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def chosen_photos(photos: Sequence[Photo], at_most: int) -> list[Photo]:
    """All, or so many of them by a hash of the name. Raises ValueError for too few to train on."""
    if len(photos) < MIN_PHOTOS:
        raise ValueError(
            f"expected at least {MIN_PHOTOS} photos with captions, got {len(photos)}; hundreds are needed for heads "
            "that are worth anything"
        )
    if len(photos) > at_most:
        print(f"{len(photos):,} photos: {at_most:,} of them are used (--max-photos)")
        photos = sorted(
            sorted(photos, key=lambda photo: _draw(photo.name, "chosen"))[:at_most], key=lambda photo: photo.name
        )
    return list(photos)


def _draw(name: str, purpose: str) -> float:
    return unit_interval_of(sample_id_of(name, ""), purpose)


def random_crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """A part of CROPPED_AREA with the image's own aspect ratio, mirrored half of the times."""
    share = rng.uniform(*CROPPED_AREA) ** 0.5
    width, height = max(1, round(share * image.width)), max(1, round(share * image.height))
    left, top = rng.integers(image.width - width + 1), rng.integers(image.height - height + 1)
    cropped = image.crop((left, top, left + width, top + height))
    return ImageOps.mirror(cropped) if rng.random() < 0.5 else cropped


def views_of(images: Sequence[Image.Image], crops: int, rng: np.random.Generator) -> list[list[Image.Image]]:
    """The image whole (what the engine sees), its centre square, mirrored, and `crops` random parts."""
    return [
        list(images),
        [centre_square(image) for image in images],
        [ImageOps.mirror(image) for image in images],
        *([random_crop(image, rng) for image in images] for _ in range(crops)),
    ]


def extract(
    photos: Sequence[Photo], work: Path, crops: int, progress: ProgressReporter
) -> tuple[list[Photo], PairFeatures]:
    """The photos that can be decoded, and their features; kept in `work` and read from there the next time."""
    names = tuple(BACKBONES)
    encoder: Any = load_engine("sentence_encoder", Profile("training", {"sentence_encoder": SENTENCE_ENCODER}))
    models = [*(one.tensors_sha256 for one in BACKBONES.values()), encoder.identity.weights_sha256]
    file = work / f"features_{digest([f'{crops} {CROP_SEED}', *models, *(_line(photo) for photo in photos)])}.npz"
    if not file.is_file():
        backbones = {name: resolve_address(f"embedded:{name}") for name in names}
        features = photo_pair.load_features(names, backbones, "cpu")
        rng = np.random.default_rng(CROP_SEED)
        _extract(photos, features, encoder, file, lambda images: views_of(images, crops, rng), progress)
    with np.load(file, allow_pickle=False) as stored:
        kept = [photos[row] for row in stored["rows"]]
        return kept, PairFeatures(stored["images"], stored["probabilities"], stored["sentences"], stored["starts"])


def digest(lines: Sequence[str]) -> str:
    """Short sha256 over lines."""
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _line(photo: Photo) -> str:
    stat = photo.source.stat()
    return "\t".join([str(photo.source), str(stat.st_size), str(stat.st_mtime_ns), photo.name, *photo.captions])


def _extract(
    photos: Sequence[Photo],
    features: photo_pair.PhotoFeatures,
    encoder: Any,
    file: Path,
    views_of_batch: Callable[[Sequence[Image.Image]], list[list[Image.Image]]],
    progress: ProgressReporter,
) -> None:
    rows: list[int] = []
    probabilities: list[np.ndarray] = []
    views: list[np.ndarray] = []  # each (V, n, F)
    broken: dict[str, int] = {}
    with progress.task("features of photos", len(photos)) as advance:
        for start in range(0, len(photos), AT_ONCE):
            images = []
            for row in range(start, min(start + AT_ONCE, len(photos))):
                try:
                    images.append(photos[row].load())
                except ImageRejected as error:
                    broken[error.reason] = broken.get(error.reason, 0) + 1
                else:
                    rows.append(row)
            if images:
                seen = [features(view) for view in views_of_batch(images)]
                views.append(torch.stack([of_view for of_view, _ in seen]).half().numpy())
                probabilities.append(seen[0][1].half().numpy())
            advance(min(AT_ONCE, len(photos) - start))
    if broken:
        print(f"{sum(broken.values())} images left out: {broken}")
    if len(rows) < MIN_PHOTOS:
        raise ValueError(f"expected at least {MIN_PHOTOS} photos that can be decoded, got {len(rows)}: {broken}")
    captions = [caption for row in rows for caption in photos[row].captions]
    sentences = embedded(captions, encoder, "captions", file.parent, progress)
    with replacing(file) as temporary:
        np.savez(
            temporary,
            rows=np.array(rows),
            images=np.concatenate(views, axis=1),
            probabilities=np.concatenate(probabilities),
            sentences=sentences,
            starts=np.cumsum([0, *(len(photos[row].captions) for row in rows)]),
        )


def embedded(texts: Sequence[str], encoder: Any, label: str, work: Path, progress: ProgressReporter) -> np.ndarray:
    """(N,) → (N, 384) float16, unit length; kept in `work` and read from there the next time."""
    file = work / f"sentences_{digest([encoder.identity.weights_sha256, *texts])}.npy"
    if not file.is_file():
        parts = [np.zeros((0, 384), dtype=np.float16)]
        with progress.task(f"sentence vectors of {label}", len(texts)) as advance:
            for start in range(0, len(texts), 512):
                batch = texts[start : start + 512]
                parts.append(encoder.embed_sentences(batch).astype(np.float16))
                advance(len(batch))
        with replacing(file) as temporary:
            np.save(temporary, np.concatenate(parts))
    return np.load(file, allow_pickle=False)


def class_vectors(encoder: Any) -> np.ndarray:
    """(1000, 384) sentence vectors of ImageNet's classes, in the order of the backbones."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    return encoder.embed_sentences([CLASS_PROMPT.format(name) for name in IMAGENET_CLASSNAMES])


def scores_of(tensors: dict[str, torch.Tensor], pairs: PairFeatures) -> np.ndarray:
    """(N, N): every photo's first view with every photo's first caption, as an engine scores them."""
    head = photo_pair.PhotoPairHead(tensors)
    seen = head.images(
        torch.from_numpy(pairs.images[0].astype(np.float32)), torch.from_numpy(pairs.probabilities.astype(np.float32))
    )
    return (seen @ head.texts(torch.from_numpy(pairs.first_captions().astype(np.float32))).T).numpy()


def cross_validated(
    photos: Sequence[Photo],
    pairs: PairFeatures,
    classes: np.ndarray,
    recipe: Recipe,
    seed: int,
    folds: int,
    more: np.ndarray | None,
    progress: ProgressReporter,
) -> dict[str, float | int]:
    """Mean figures over the folds; a photo is in one fold with all its captions and its group, by a hash."""
    fold_of = np.array([int(_draw(photo.group or photo.name, f"folds:{seed}") * folds) for photo in photos])
    found = []
    for fold in range(folds):
        test = np.flatnonzero(fold_of == fold)
        if len(test) < 2:
            raise ValueError(f"{len(photos)} photos are too few for {folds} folds; use --folds 0 or more photos")
        tensors = _fit(
            pairs[np.flatnonzero(fold_of != fold)], classes, recipe, seed, more, f"fold {fold + 1}", progress
        )
        found.append(figures(scores_of(tensors, pairs[test])).described())
        print(f"fold {fold + 1} of {folds}: {found[-1]}")
    return {"folds": folds, **{name: round(float(np.mean([one[name] for one in found])), 4) for name in found[0]}}


def _fit(
    pairs: PairFeatures,
    classes: np.ndarray,
    recipe: Recipe,
    seed: int,
    more: np.ndarray | None,
    label: str,
    progress: ProgressReporter,
) -> dict[str, torch.Tensor]:
    updates = recipe.epochs * max(1, len(pairs) // min(recipe.batch, len(pairs)))
    with progress.task(label, updates) as advance:
        return fit(pairs, classes, recipe, seed, more=more, advance=advance)


def save_heads(folder: Path, tensors: dict[str, torch.Tensor], card: dict[str, Any]) -> None:
    """DIR/photo_pair: head.safetensors and card.json."""
    with replaced_folder(folder) as temporary:
        save_file(tensors, temporary / photo_pair.HEAD_FILE)
        card = {**card, "weights_sha256": file_sha256(temporary / photo_pair.HEAD_FILE)}
        _write_json(temporary / "card.json", card)


def save_bank(folder: Path, captions: Sequence[str], sentences: np.ndarray, card: dict[str, Any]) -> None:
    """DIR/nearest_captions: captions.txt.xz, their sentence vectors, card.json."""
    with replaced_folder(folder) as temporary:
        packed = temporary / (nearest_captions.CAPTIONS_FILE + PACKED)
        packed.write_bytes(lzma.compress(("\n".join(captions) + "\n").encode()))
        save_file(nearest_captions.to_stored(sentences), temporary / nearest_captions.SENTENCES_FILE)
        card = {
            **card,
            "kind": nearest_captions.KIND,
            "captions": len(captions),
            "captions_sha256": unpacked_sha256(packed),
            "sentences_sha256": file_sha256(temporary / nearest_captions.SENTENCES_FILE),
        }
        _write_json(temporary / "card.json", card)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def run(given: argparse.Namespace) -> None:
    """What the module says."""
    clock = Clock()
    torch.set_num_threads(given.threads)
    progress = reporter_for(Console(stderr=True))
    recipe = Recipe(**{name: getattr(given, name) for name in _recipe_options() if getattr(given, name) is not None})
    work = given.work or given.out / ".work"
    work.mkdir(parents=True, exist_ok=True)
    photos = chosen_photos(read_photos(given.pairs), given.max_photos)
    chosen = {photo.name for photo in read_photos(given.photo_bank)} if given.photo_bank else set()
    photos, pairs = extract(photos, work, given.crops, progress)
    rows = np.flatnonzero([photo.name in chosen for photo in photos])
    if given.photo_bank and not len(rows):
        raise ValueError(f"--photo-bank: expected photos of {given.pairs} in {given.photo_bank}, got none of them")
    encoder: Any = load_engine("sentence_encoder", Profile("training", {"sentence_encoder": SENTENCE_ENCODER}))
    classes = class_vectors(encoder)
    print(f"{len(pairs):,} photos, {len(pairs.sentences):,} captions")
    more = embedded(captions_in(given.more_captions_in), encoder, "further captions", work, progress)
    measured = {}
    if given.folds:
        measured = cross_validated(photos, pairs, classes, recipe, given.seed, given.folds, _some(more), progress)
        print(f"cross-validated: {measured}")
    tensors = _fit(pairs, classes, recipe, given.seed, _some(more), "all photos", progress)
    card = {
        "kind": PHOTO_PAIR,
        "backbones": list(BACKBONES),
        "sentence_encoder": SENTENCE_ENCODER,
        "sentence_encoder_sha256": encoder.identity.weights_sha256,
        "recipe": asdict(recipe),
        "seed": given.seed,
        "photos": len(pairs),
        "captions": len(pairs.sentences),
        "further_captions": len(more),
        "cross_validated": measured,
    }
    folder = given.out / PHOTO_PAIR
    save_heads(folder, tensors, card)
    _record(given, work, card, clock)
    print(f"{folder}: {clock.seconds():.0f} CPU-seconds; in a profile image_text_encoder: path:{folder}")
    if given.bank:
        captions = captions_in(given.bank)
        bank = {
            "image_text_encoder": given.bank_encoder or f"path:{folder.absolute()}",
            "sentence_encoder_sha256": encoder.identity.weights_sha256,
        }
        sentences = embedded(captions, encoder, "the bank", work, progress).astype(np.float32)
        save_bank(given.out / nearest_captions.KIND, captions, sentences, bank)
        _record(given, work, card, clock)
        print(f"{given.out / nearest_captions.KIND}: {len(captions):,} captions")
    if len(rows):
        address = given.bank_encoder or f"path:{folder.absolute()}"
        made_by = identify_engine("image_text_encoder", Profile("training", {"image_text_encoder": address}))
        vectors = photo_pair.PhotoPairHead(tensors).images(
            torch.from_numpy(pairs.images[0][rows].astype(np.float32)),
            torch.from_numpy(pairs.probabilities[rows].astype(np.float32)),
        )
        with replaced_folder(given.out / nearest_photo.KIND) as temporary:
            nearest_photo.write_bank(temporary, vectors.numpy(), made_by)
        print(f"{given.out / nearest_photo.KIND}: {len(vectors):,} photographs")
        _record(given, work, card, clock)


def _record(given: argparse.Namespace, work: Path, card: Mapping[str, Any], clock: Clock) -> None:
    """In the shipped folder, hashes and how the heads were made: nothing is loaded from there without its hash."""
    if (given.out / "manifest.json").is_file():
        setup = Setup(given.out, work, threads=given.threads, seed=given.seed)
        facts = {name: card[name] for name in ("recipe", "seed", "photos", "captions", "further_captions")}
        record(setup, PHOTO_PAIR, {**facts, "cpu_seconds": clock.seconds()}, card["cross_validated"])
        manifest.run(setup)


def _some(vectors: np.ndarray) -> np.ndarray | None:
    return vectors if len(vectors) else None


def _recipe_options() -> list[str]:
    return [field.name for field in fields(Recipe)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lab photo_pair",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--pairs", type=Path, required=True, help="folder of tars, a tar, or a table of image and caption"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder that gets photo_pair/ (and nearest_captions/)")
    parser.add_argument("--work", type=Path, help="folder for features, kept for the next run (default OUT/.work)")
    parser.add_argument("--folds", type=int, default=4, help="of the cross-validation; 0: none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-photos", type=int, default=MAX_PHOTOS, help="more are drawn from")
    parser.add_argument("--crops", type=int, default=CROPS, help=f"random views of each photo (default {CROPS})")
    parser.add_argument(
        "--more-captions-in", type=Path, nargs="+", default=[], metavar="FILE",
        help="captions of other photos (one a line, or a column caption): further negatives",
    )  # fmt: skip
    parser.add_argument(
        "--bank", type=Path, nargs="+", default=[], metavar="FILE",
        help="captions of nearest_captions (one a line, or a column caption): choose ones that may be passed on",
    )  # fmt: skip
    parser.add_argument(
        "--photo-bank", type=Path, metavar="PAIRS",
        help="write OUT/nearest_photo too, for VBA: vectors of those photos that are in this folder, tar or table",
    )  # fmt: skip
    parser.add_argument("--bank-encoder", help=argparse.SUPPRESS)
    for field in fields(Recipe):
        kind = int if field.type in (int, "int") else float
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, help=f"default {field.default}")
    run_or_refuse(parser, run, arguments)


if __name__ == "__main__":
    main()

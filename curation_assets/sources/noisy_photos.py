"""A test pool from photographs of one's own: tars with planted noise as img2dataset writes them, the truth apart.

`write_noisy_photos([Path("photos")], Path("noisy"))`, then `curate pool add noisy noisy` with the option
`truth: noisy/truth/planted.parquet`, and the report has the table method × kind of noise.
"""

import hashlib
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from curation_assets.sources.kinds.webdataset import read_tar_rows
from curation_assets.stores.atomic import replacing
from curation_assets.stores.images import ImageRejected, check_image, decode_image, tar_index
from curation_assets.stores.parquet import read_parquet
from curation_assets.stores.tar_samples import find_tars, json_of, key_of
from curation_assets.stores.tar_writing import add_member
from curation_assets.world.photo_noise import (
    IS_ALIGNED,
    PHOTO_MIX,
    NoisyPhoto,
    Photo,
    noisy_image,
    noisy_sample_id,
    plant_photo_noise,
)
from curation_assets.world.web_texts import NoiseTexts

TRUTH = "truth/planted.parquet"  # below the pool's folder, where no tar is looked for
DEFAULT_SHARD_SIZE = 1000

#: Grain: one row per row of the pool. What no method may read.
TRUTH_SCHEMA = {
    "sample_id": pl.String,
    "shard": pl.String,  # name of the tar without .tar
    "key": pl.String,
    "kind": pl.String,  # 'clean', or what is wrong (numeric/metrics/separation.py)
    "is_aligned": pl.Boolean,  # whether the caption describes the image; null: it makes no such claim
    "photo": pl.String,  # TAR/KEY of the photograph shown; null for an image of words
    "caption_of": pl.String,  # TAR/KEY of the photograph that the caption was given to; null: to none
    "detail": pl.String,  # what was done to the image, or the words in it; null: shown byte for byte
}


@dataclass(frozen=True)
class _Source:
    """Where a photograph lies."""

    tar: Path
    member: str


def write_noisy_photos(
    sources: Sequence[Path],
    out: Path,
    *,
    size: int | None = None,
    seed: int = 0,
    texts: NoiseTexts | None = None,
    mix: Mapping[str, float] = PHOTO_MIX,
    shard_size: int = DEFAULT_SHARD_SIZE,
) -> pl.DataFrame:
    """Write the folder `out` and return its truth (TRUTH_SCHEMA), rows in the order of the pool.

    `sources`: tars of clean photographs with captions (KEY.jpg, KEY.txt, KEY.json), or folders of them; several
    captions of a photograph are the list `captions` of its json. `size`, `texts`, `mix`: as `plant_photo_noise`. The
    same arguments give the same bytes. Raises ValueError for an `out` that exists, sources without tars, tars of one
    name, a photograph that cannot be decoded, and as `plant_photo_noise` does.
    """
    if shard_size < 1:
        raise ValueError(f"shard_size must be at least 1, got {shard_size}")
    if out.exists():
        raise ValueError(f"{out} exists already; name a new folder, or remove it")
    photos, located = _read_photos(sources)
    rows = plant_photo_noise(photos, size=size, seed=seed, texts=texts, mix=mix)
    truth = []
    with replacing(out) as folder:
        (folder / TRUTH).parent.mkdir(parents=True)
        for number, start in enumerate(range(0, len(rows), shard_size)):
            truth += _write_shard(folder, f"{number:05d}", rows[start : start + shard_size], start, seed, located)
        frame = pl.DataFrame(truth, schema=TRUTH_SCHEMA, orient="row")
        frame.write_parquet(folder / TRUTH)
    return frame


def read_planted_truth(path: Path) -> pl.DataFrame:
    """A file of planted kinds with columns sample_id and kind, and others. Raises ValueError where these lack."""
    if not path.is_file():
        raise ValueError(f"truth: no file {path}; write_noisy_photos writes FOLDER/{TRUTH}")
    truth = read_parquet(path)
    if not {"sample_id", "kind"} <= set(truth.columns) or truth["sample_id"].n_unique() < truth.height:
        raise ValueError(
            f"truth: {path} must have the columns sample_id and kind, each sample once; got {truth.height} rows of "
            f"{', '.join(truth.columns)}"
        )
    return truth


# -- photographs ------------------------------------------------------------------------------------------------------


def _read_photos(sources: Sequence[Path]) -> tuple[list[Photo], dict[str, _Source]]:
    tars = [tar for source in sources for tar in find_tars(Path(source))]
    if not tars:
        raise ValueError(f"expected tars of photographs, or folders of them; none in {[str(one) for one in sources]}")
    if len({tar.stem for tar in tars}) < len(tars):
        raise ValueError(f"tars must have different names, got {sorted(str(tar) for tar in tars)}")
    photos, located = [], {}
    for tar in tars:
        usable = read_tar_rows(tar).filter(
            pl.col("source_reason").is_null()
            & ~pl.col("is_duplicate")
            & (pl.col("caption").fill_null("").str.strip_chars() != "")
        )
        for member, caption in usable.select("member", "caption").iter_rows():
            key = f"{tar.stem}/{key_of(member)}"
            photos.append(Photo(key, _captions(tar, member) or (caption.strip(),)))
            located[key] = _Source(tar, member)
    return photos, located


def _captions(tar: Path, member: str) -> tuple[str, ...]:
    """The list `captions` of a photograph's json, without blanks and repeats; empty where there is none."""
    index, name = tar_index(tar), f"{key_of(member)}.json"
    if name not in index.members:
        return ()
    given = json_of(index, name)[0].get("captions")
    texts = [text.strip() for text in given if isinstance(text, str)] if isinstance(given, list) else []
    return tuple(dict.fromkeys(text for text in texts if text))


# -- tars -------------------------------------------------------------------------------------------------------------


def _write_shard(
    folder: Path, name: str, rows: Sequence[NoisyPhoto], start: int, seed: int, located: Mapping[str, _Source]
) -> list[dict[str, Any]]:
    """The tar of these rows, img2dataset's table beside it; the truth about them."""
    truth, table = [], []
    with tarfile.open(folder / f"{name}.tar", "w") as tar:
        for row in rows:
            key, sample_id = f"{name}{row.index - start:04d}", noisy_sample_id(seed, row.index)
            image, extension, detail = _image_of(row, located)
            facts = check_image(image)
            entry = {
                "url": None, "caption": row.caption, "key": key, "uid": sample_id, "status": "success",
                "error_message": None, "width": facts.width, "height": facts.height, "original_width": facts.width,
                "original_height": facts.height, "sha256": hashlib.sha256(image).hexdigest(),
            }  # fmt: skip
            add_member(tar, f"{key}.{extension}", image)
            add_member(tar, f"{key}.txt", row.caption.encode())
            add_member(tar, f"{key}.json", json.dumps(entry, ensure_ascii=False).encode())
            table.append(entry)
            truth.append(
                {
                    "sample_id": sample_id, "shard": name, "key": key, "kind": row.kind,
                    "is_aligned": IS_ALIGNED[row.kind], "photo": row.photo, "caption_of": row.caption_of,
                    "detail": detail,
                }
            )  # fmt: skip
    numbers = dict.fromkeys(("width", "height", "original_width", "original_height"), pl.Int32)
    texts = dict.fromkeys(("url", "error_message"), pl.String)
    pl.DataFrame(table, schema_overrides={**numbers, **texts}).write_parquet(folder / f"{name}.parquet")
    return truth


def _image_of(row: NoisyPhoto, located: Mapping[str, _Source]) -> tuple[bytes, str, str | None]:
    """(image file, its extension, what was done to it)."""

    def data_of(key: str) -> bytes:
        return tar_index(located[key].tar).read(located[key].member)

    try:
        changed = noisy_image(row, lambda key: decode_image(data_of(key)))
        if changed is not None:
            return changed[0], "jpg", changed[1]
        assert row.photo is not None, row
        data = data_of(row.photo)
        check_image(data)
    except ImageRejected as rejection:
        raise ValueError(f"photograph {row.photo} is not sound ({rejection.reason}); leave it out") from rejection
    return data, located[row.photo].member.rpartition(".")[2].lower(), None

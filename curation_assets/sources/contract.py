"""The contract suite of a source: what every kind keeps to, tried on a small example of it."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl

from curation_assets.core.contract import Checked, Rule, tried
from curation_assets.core.own_modules import no_other_home, use_home
from curation_assets.core.settings import Settings, load_settings
from curation_assets.sources.base import OWN, Offered, Source, kinds_of_the_package
from curation_assets.sources.declaration import Pool, add_pool, load_pool
from curation_assets.sources.shards import build_samples, discover_shards, download, register_shard, source_fingerprint
from curation_assets.stores.denylist import TAKEDOWN, add_to_denylist
from curation_assets.stores.text_format import TextFormat

POOL = "contract"


def check_own_source(file: Path, example: Path) -> list[Checked]:
    """Try the source that `file` defines on what lies at `example`: a small source of its kind.

    Works in a home of its own, which goes; opens no URL. The first fault ends it. Raises ValueError for a file that
    cannot be loaded or is called as a kind of the package.
    """
    if file.stem in kinds_of_the_package():
        raise ValueError(f"{file}: a kind of the package is called {file.stem}; choose another name")
    source: Source = OWN.load(file.resolve()).value
    with TemporaryDirectory(prefix="curation_contract_") as folder, no_other_home():
        settings = load_settings(Path(folder) / "home")
        own = settings.pools_root / "sources"
        own.mkdir(parents=True)
        (own / file.name).write_bytes(file.read_bytes())
        use_home(settings.pools_root)
        return check_source(source, file.stem, example.absolute(), settings)


def check_source(source: Source, kind: str, example: Path, settings: Settings) -> list[Checked]:
    """Try a kind that is known on an example, in an empty home. The first fault ends it."""
    return tried(_rules(source, kind, example, settings))


def _rules(source: Source, kind: str, example: Path, settings: Settings) -> Iterator[Rule]:

    def pool() -> Pool:
        return load_pool(settings, POOL)

    def shard() -> str:
        return discover_shards(pool(), settings)[0]

    def leaves_others_alone() -> str | None:
        empty = settings.home / "empty"
        empty.mkdir(parents=True)
        taken = source.detect(Offered(empty, {}, TextFormat()))
        return None if taken is None else "takes an empty folder for its own"

    def is_detected() -> str | None:
        declared = add_pool(settings, POOL, example, shard_size=10)
        return None if declared.kind == kind else f"`pool add` takes {example} for {declared.kind}"

    def has_shards() -> str | None:
        keys = discover_shards(pool(), settings)
        if not keys or keys != sorted(set(keys)):
            return f"expected keys, sorted, each once; got {keys[:5]}"
        wrong = [key for key in keys if key.rpartition("-")[0] != POOL or not key.rpartition("-")[2].isdigit()]
        return f"expected {POOL}-000000, …; got {wrong[:5]}" if wrong else None

    def registers() -> str | None:
        rows = register_shard(pool(), shard(), settings)
        if not rows["source_row"].is_sorted() or rows["source_row"].n_unique() < rows.height:
            return "source_row does not ascend"
        if rows.filter(~pl.col("is_duplicate"))["sample_id"].n_unique() < rows.filter(~pl.col("is_duplicate")).height:
            return "two rows have one sample_id and neither is_duplicate"
        return "no row has a caption" if rows["caption"].null_count() == rows.height else None

    def gives_the_same_again() -> str | None:
        key, other = shard(), load_settings(settings.home / "again")  # where nothing is remembered
        first = register_shard(pool(), key, settings), source_fingerprint(pool(), key, settings)
        again = register_shard(pool(), key, other), source_fingerprint(pool(), key, other)
        if first[1] != again[1] or first[1] != source_fingerprint(pool(), key, settings):
            return f"the fingerprint is another where the source is read again: {first[1]}, {again[1]}"
        return None if first[0].equals(again[0]) else "the rows are others where the source is read again"

    def brings_images() -> str | None:
        if pool().opens_urls or not pool().has_images:
            return None  # nothing is fetched from servers here
        registered = register_shard(pool(), shard(), settings)
        samples = build_samples(pool(), shard(), registered, download(pool(), shard(), registered, settings), settings)
        if samples.filter(pl.col("status") == "kept").is_empty():
            return f"no row of {shard()} has an image that can be read: {samples['reason'].to_list()[:5]}"
        return None

    def forgets() -> str | None:
        row = register_shard(pool(), shard(), settings).filter(pl.col("source_reason").is_null()).row(0, named=True)
        add_to_denylist(settings.home, [("uid", row["sample_id"])])
        left = source.remove_samples(pool(), settings, [row["sample_id"]])
        if not isinstance(left, list):
            return f"remove_samples: expected a list of files that still hold the sample, got {left!r}"
        after = register_shard(pool(), shard(), settings).filter(pl.col("sample_id") == row["sample_id"])
        kept = [name for name in ("caption", "url") if after[name].null_count() < after.height]
        if after["source_reason"].to_list() != [TAKEDOWN] * after.height or kept:
            return f"a row on the denylist keeps {kept or 'its place without the reason takedown'}"
        return None

    def says_where_from() -> str | None:
        return None if source.collected(pool()).strip() else "collected: expected a sentence for an export's card"

    yield "It leaves an empty folder alone.", leaves_others_alone
    yield "`pool add` recognises the example.", is_detected
    yield "Its shards have keys.", has_shards
    yield "Its rows can be registered.", registers
    yield "The same source gives the same rows and the same fingerprint.", gives_the_same_again
    yield "Its images can be read.", brings_images
    yield "A sample on the denylist keeps nothing but its id.", forgets
    yield "It says where the pairs come from.", says_where_from

"""What a kind of source is: the contract behind which all that is known of a kind lies in its own file.

A module of `sources/kinds` that defines SOURCE is a kind, and its file name is the `kind` of a pool's declaration. A
user's own are files of `pools/sources` in the home, or entry points `curation_assets.sources` of installed packages
(docs/user/own_source.md). Nobody registers them, and nobody else compares a pool's kind with a name.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import polars as pl

from curation_assets.core.own_modules import OwnModules, own_version
from curation_assets.core.settings import Settings
from curation_assets.sources import kinds
from curation_assets.sources.pool_facts import ColumnNames, PoolFacts
from curation_assets.sources.text_columns import carried_columns
from curation_assets.stores.text_format import TextFormat


@dataclass(frozen=True)
class Offered:
    """What `pool add` was given."""

    path: Path
    columns: ColumnNames  # our name of a column → the source's, where the user names one; None: not read
    text: TextFormat  # how csv and tsv files are read


@dataclass(frozen=True)
class Found:
    """What a kind recognised: where its files lie, and which columns hold what (our name → the source's)."""

    path: Path
    columns: ColumnNames


@dataclass(frozen=True)
class Note:
    """A sentence of `pool add`."""

    text: str
    level: Literal["warning", "fact", "hint"]


class Source(ABC):
    """A kind of source. Its methods get the pool that is asked about, so that one instance serves all of them."""

    order: ClassVar[int] = 0  # detection goes from low to high; kinds of a user's own come first
    version: ClassVar[str] = "2"  # of raw/registered_shards: bump when the same source would give other rows
    is_planted: ClassVar[bool] = False  # drawn by the program: truth is known, and no person or web page is behind it
    has_own_tars: ClassVar[bool] = False  # images stay in tars that the source delivers: none is downloaded or copied
    opens_urls: ClassVar[bool] = True  # images that it does not bring along are fetched from servers

    # -- what must be there

    @abstractmethod
    def detect(self, offered: Offered) -> Found | None:
        """Whether a path is of this kind; None where not. Raises ValueError for one that is, and cannot be used."""

    @abstractmethod
    def shards(self, pool: PoolFacts, settings: Settings) -> list[str]:
        """Keys of the shards that the source holds now, sorted. Raises what reading a broken source raises."""

    @abstractmethod
    def fingerprint(self, pool: PoolFacts, shard: str, settings: Settings) -> dict[str, str]:
        """What identifies the content of a shard: it is registered again when that changes. Cheap while files rest."""

    @abstractmethod
    def rows(self, pool: PoolFacts, shard: str, settings: Settings) -> pl.DataFrame:
        """Grain: one row per input row of a shard, in source order; all but what registration adds of
        raw/registered_shards (REGISTERED_SCHEMA and `schema`). Rows on the denylist keep their id only.
        """

    # -- what may be otherwise

    def path(self, pool: PoolFacts, settings: Settings) -> Path:
        """Where the source lies."""
        return Path(pool.source)

    def check(self, pool: PoolFacts, settings: Settings) -> None:  # noqa: B027 most have nothing to check
        """Raise ValueError for a pool that is about to be declared and cannot be used."""

    def expected_rows(self, pool: PoolFacts, settings: Settings) -> int:
        """Input rows of the whole pool, exact or an estimate."""
        return sum(self.rows(pool, shard, settings).height for shard in self.shards(pool, settings))

    def has_images(self, pool: PoolFacts) -> bool:
        """False for captions only: methods that read images are then left out."""
        return True

    def schema(self, pool: PoolFacts) -> Mapping[str, pl.DataType | type[pl.DataType]]:
        """Columns of registered rows that only this kind has."""
        return {}

    def numbers(self, pool: PoolFacts) -> dict[str, str]:
        """Columns of numbers that the rows carry: our name → the source's."""
        return {}

    def carried(self, pool: PoolFacts) -> Collection[str]:
        """Columns on where a row comes from (stores/provenance.GIVEN) that the rows carry."""
        return carried_columns(pool.columns)

    def has_columns(self, pool: PoolFacts) -> bool:
        """Whether the source is a table whose columns the option `given_signals` may name."""
        return False

    def allow_hosts(self, pool: PoolFacts) -> tuple[str, ...]:
        """Hosts that may be private while images are fetched."""
        return pool.allow_hosts

    def download_config(self, pool: PoolFacts) -> dict[str, Any]:
        """The settings that may change what a download yields."""
        return {"settings": pool.download.config(), "allow_hosts": sorted(pool.allow_hosts)}

    def serving(
        self, pool: PoolFacts, requested: pl.DataFrame, settings: Settings
    ) -> AbstractContextManager[Mapping[str, Any]]:
        """Arguments of `download_shard` by which these rows get their images, while the context lasts: nothing for
        URLs; `local` where the source brings the images along."""
        return nullcontext({})

    def describe(self, pool: PoolFacts, settings: Settings, given: ColumnNames) -> Iterator[Note]:
        """What `pool add` has to say of a source: what was taken for what, and what could not be used. `given`: the
        columns that the user named. Raises ValueError where nothing can be used."""
        yield from (Note(sentence, "warning") for sentence in self.doubts(self.path(pool, settings)))

    def doubts(self, path: Path) -> list[str]:
        """Sentences on what lies in a source and may be meant otherwise; quick, and asked at every run."""
        return []

    @abstractmethod
    def collected(self, pool: PoolFacts) -> str:
        """How the pairs were collected, a sentence of an export's card."""

    def remove_samples(self, pool: PoolFacts, settings: Settings, sample_ids: Collection[str]) -> list[str]:
        """A takedown: empty the rows of what is ours of the source. Returns the files of its owner that still hold
        samples, which nobody but the owner may change."""
        return [pool.source]

    def restore(self, pool: PoolFacts, settings: Settings) -> Callable[[Path], None] | None:
        """What makes a damaged file of the source anew; None: it is its owner's."""
        return None


#: Kinds of a user's own.
OWN = OwnModules("sources", "SOURCE", Source)


@cache
def kinds_of_the_package() -> tuple[str, ...]:
    """Names of the kinds that come with the package, sorted; none is imported."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(kinds.__path__)))


def source_of(kind: str) -> Source:
    """The source of that kind; no other is imported. Raises ValueError that lists the kinds there are."""
    if kind in kinds_of_the_package():
        found: Source = importlib.import_module(f"{kinds.__name__}.{kind}").SOURCE
        return found
    own = OWN.get(kind)
    if own is None:
        known = ", ".join([*kinds_of_the_package(), *OWN.names()])
        raise ValueError(f"kind must be one of {known}, got {kind!r} (one of your own: pools/sources/{kind}.py)")
    source: Source = own.value
    return source


def version_of(kind: str) -> str:
    """Version of the code that registers rows of that kind; of a user's own its file's content is part of it."""
    version, own = source_of(kind).version, None if kind in kinds_of_the_package() else OWN.get(kind)
    return version if own is None else own_version(version, own)


def sources_in_order() -> Iterable[tuple[str, Source]]:
    """(kind, source) of all kinds in the order of detection. Raises ValueError for one of a user's own whose name a
    kind of the package has."""
    taken = sorted({*OWN.names()} & {*kinds_of_the_package()})
    if taken:
        raise ValueError(f"sources of your own may not be called {', '.join(taken)}, as kinds of the package are")
    found = [(kind, source_of(kind)) for kind in (*OWN.names(), *kinds_of_the_package())]
    return sorted(found, key=lambda named: named[1].order)

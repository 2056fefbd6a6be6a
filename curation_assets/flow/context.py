"""The context of a pool: all that the computation of a table may use."""

import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from curation_assets.core.errors import StoreError
from curation_assets.core.progress import ProgressReporter, Silent
from curation_assets.core.settings import Profile, Settings
from curation_assets.core.validation import check_known
from curation_assets.flow.options import FlowOptions
from curation_assets.methods import (
    TEXT_COLUMNS,
    Method,
    all_methods,
    get_method,
    method_names,
    named_method,
    teachers,
)
from curation_assets.scoring.parameters import described_settings, with_parameters
from curation_assets.sources.all_options import PoolOptions, with_profile_options
from curation_assets.sources.declaration import Pool, declared_options, load_pool
from curation_assets.sources.options import SourceOptions
from curation_assets.sources.shards import discover_shards
from curation_assets.stores.denylist import Denylist
from curation_assets.stores.images import ImageRejected, decode_image, printable, read_member, tar_index
from curation_assets.stores.provenance import PROVENANCE_SCHEMA
from curation_assets.stores.shard_store import ShardStore


@dataclass
class PoolContext:
    """All that the computation of a table may use: pool, store, models of the profile, progress."""

    settings: Settings
    pool: Pool
    store: ShardStore
    run_id: str = ""
    progress: ProgressReporter = field(default_factory=Silent)
    planned: frozenset[str] = frozenset()  # all tables of this run; those that read the same images share one pass
    is_stopped: threading.Event = field(default_factory=threading.Event)  # set: shards and downloads that wait end

    @classmethod
    def open(
        cls,
        settings: Settings,
        pool_name: str,
        *,
        run_id: str = "",
        progress: ProgressReporter | None = None,
        planned: Iterable[str] = (),
    ) -> "PoolContext":
        """Context of a declared pool. Raises what `load_pool` raises for an unknown name.

        In a home in a bucket, it sees what other machines wrote since the home was opened.
        """
        pool = load_pool(settings, pool_name)
        settings = settings.for_pool(pool.profile)
        return cls(
            settings, pool, ShardStore(settings.work(pool_name)), run_id, progress or Silent(), frozenset(planned)
        )

    @functools.cached_property
    def profile(self) -> Profile:
        """The profile in force, with the pool's own addresses where it names some."""
        addresses = dict(self.pool.roles)
        has_own = self.distils and self.ratings is not None  # without ratings its own student must be named to be used
        if not has_own and self.settings.profile.roles.get("student", "pool:").startswith("pool:"):
            addresses.setdefault("student", "embedded:icc_student")
        if self.has_photo_bank:
            addresses["text_to_image"] = "pool:photo_bank"
        profile = self.settings.profile.with_roles(**addresses)
        if self.trains_sba:
            profile = profile.with_generation("semantic_decoder", bridge="pool:sba_bridge")
        return profile

    @property
    def denylist(self) -> Denylist:
        """What must not be let in or shown of the pool, as the home lists it now."""
        return Denylist.load(self.settings.home, self.pool.implied_source)

    @property
    def trains_sba(self) -> bool:
        """Whether this pool trains the bridge of the semantic teacher on its own captions."""
        return self.distils and FlowOptions.of(self).train_sba is not None

    @property
    def has_photo_bank(self) -> bool:
        """Whether VBA finds its photograph among the pool's own images."""
        return self.distils and FlowOptions.of(self).photo_bank == "pool"

    @property
    def distils(self) -> bool:
        """Whether this pool runs the teachers and distils a student of its own."""
        options = SourceOptions.of(self)
        return self.pool.is_planted if options.distil is None else options.distil

    @property
    def ratings(self) -> Literal["human", "planted"] | None:
        """Which ratings of captions ICC is fitted on and compared with: people's (option `labels`),
        or those planted in the drawn world. None: the pool has real captions without ratings, and
        the shipped fusion weights are used."""
        if FlowOptions.of(self).labels is not None:
            return "human"
        return "planted" if self.pool.is_planted else None

    @property
    def trains_downstream(self) -> bool:
        """Whether this pool trains a small model on every subset. The default is yes for world
        pools alone, as only these come with held-out scenes."""
        options = FlowOptions.of(self)
        return self.pool.is_planted if options.downstream is None else options.downstream

    @property
    def pool_models(self) -> Path:
        """The folder of models that this pool distilled; `pool:NAME` addresses point into it."""
        return self.store.root / "distilled"

    @functools.cached_property
    def options(self) -> PoolOptions:
        """The options in force: the declaration's, else the profile's, else the defaults."""
        profile = self.settings.profile
        if not profile.options:
            return self.pool.options
        declared = declared_options(self.settings, self.pool)
        return with_profile_options(declared, profile.options, f"profile {profile.name!r}: options")

    def methods(self, stage: str) -> list[Method]:
        """The methods of a stage that this pool runs, with the settings that the profile gives them.

        A method that is no default runs where the profile's `methods` or the pool's option
        `methods` names it, or where its values are given (option `given_signals`). In a pool of
        captions only, a method that reads images is left out unless the option `methods` names it.
        Raises ValueError for an unknown name in these options.
        """
        named = FlowOptions.of(self).methods
        return [
            with_parameters(method, **self.profile.methods.get(method.name, {}))
            for method in self._chosen(stage)
            if method.name in named or not self.lacking(method.columns, method.name)
        ]

    def methods_without_values(self) -> list[Method]:
        """Signals that options and profile choose, but that no sample of the pool can have a value of."""
        return [method for method in self._chosen("signals") if self.lacking(method.columns, method.name)]

    def lacking(self, columns: Iterable[str], method: str | None = None) -> list[str]:
        """Columns that no sample of the pool can have: in a pool of captions only, those of images.

        Columns that are given and sizes that the source has are not lacking, nor is any column of a
        `method` whose values are given.
        """
        if self.pool.has_images or method in SourceOptions.of(self).given_signals:
            return []
        there = {*TEXT_COLUMNS, *FlowOptions.of(self).given, *self.pool.numbers, *PROVENANCE_SCHEMA}
        return [name for name in columns if name not in there and "." not in name]

    def _chosen(self, stage: str) -> list[Method]:
        """Methods of a stage that options and profile choose; the option `teachers` chooses teachers."""
        options = FlowOptions.of(self)
        if stage == "teachers" and options.teachers is not None:
            return self._named_teachers(options.teachers)
        listed = {*options.methods, *SourceOptions.of(self).given_signals}
        named = {name: named_method(name) for name in sorted(listed | (set(self.profile.methods) & method_names()))}
        run = {name: method for name, method in all_methods().items() if method.default} | named
        return [method for _, method in sorted(run.items()) if method.stage == stage]

    def _named_teachers(self, names: Iterable[str]) -> list[Method]:
        where = f"pool {self.pool.name!r}: option teachers"
        known = {method.name for method in teachers()}
        check_known(where, "teacher", names, known | (method_names() - set(all_methods())))
        named = [named_method(name) for name in sorted(set(names))]
        if others := [method.name for method in named if method.stage != "teachers"]:
            raise ValueError(f"{where} names {', '.join(others)}, of stage signals; known: {', '.join(sorted(known))}")
        return named

    def method_config(self, name: str) -> dict[str, Any]:
        """Settings of a method as its manifests record them, with the content of files that they name."""
        settings = dict(self.profile.methods.get(name, {}))
        if settings and name in method_names():
            return described_settings(get_method(name), settings)
        return settings

    def engines(self, roles: Iterable[str]) -> dict[str, Any]:
        """The engines that fill `roles`, loaded once per process."""
        from curation_assets.engines import load_engine  # heavy imports wait until a model is needed

        return {role: load_engine(role, self.profile, pool_models=self.pool_models) for role in roles}

    def identities(self, roles: Iterable[str]) -> list[Any]:
        """Identities of the models that fill `roles`, which are not loaded."""
        from curation_assets.engines import identify_engine

        return [identify_engine(role, self.profile, pool_models=self.pool_models) for role in roles]

    def distilled(self, roles: Iterable[str]) -> list[str]:
        """Tables of models that the pool distils itself and that fill some of `roles`: its student, or none."""
        address = self.profile.roles.get("student", "") if "student" in roles else ""
        return [f"distilled/{address.removeprefix('pool:')}"] if address.startswith("pool:") else []

    def batch_size(self, roles: Iterable[str], default: int = 256) -> int:
        """Largest batch that every role of a method takes, in samples."""
        return min((self.profile.batch_size.get(role, default) for role in roles), default=default)

    def image_loader(self, *, few: bool = False) -> Callable[[Mapping[str, Any]], Image.Image]:
        """A function from a row of raw/samples to its RGB image.

        It raises ImageRejected(reason) where there is no usable image, and StoreError where the tar
        no longer holds the image that was registered, so that no value of another image gets into a
        table.
        `few`: only few images of a tar are wanted; a tar in a bucket that has an index is then not
        fetched whole.
        """

        def load(row: Mapping[str, Any]) -> Image.Image:
            if row["tar"] is None or row["member"] is None:
                raise ImageRejected("no_image", f"sample {row['sample_id']} came without an image")
            # Tars of a webdataset pool lie where its owner put them (absolute path), ours under the work folder.
            tar, member = self.store.root / row["tar"], row["member"]
            try:
                data = read_member(tar, member) if few else tar_index(tar).read(member)
            except KeyError as error:
                raise self._changed(tar, member) from error
            registered = row.get("image_sha256")
            if registered is not None and hashlib.sha256(data).hexdigest() != registered:
                raise self._changed(tar, member)
            return decode_image(data, self.pool.download.limits)

        return load

    def _changed(self, tar: Path, member: str) -> StoreError:
        return StoreError(
            f"{tar} changed since it was registered: {printable(member)} is another image now, or missing. "
            f"`curate run {self.pool.name}` registers it anew; or bring back the file as it was"
        )

    def shards(self) -> list[str]:
        """Keys of the shards that the pool's source holds, sorted."""
        return discover_shards(self.pool, self.settings)

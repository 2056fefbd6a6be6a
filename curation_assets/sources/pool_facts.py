"""What a kind of source reads of a pool's declaration; `declaration.Pool` is one."""

from collections.abc import Mapping
from typing import Any, Protocol

from curation_assets.stores.text_format import TextFormat

#: Our name of a column → the source's; None: not read.
ColumnNames = Mapping[str, str | None]


class PoolFacts(Protocol):
    """A declared pool, as sources see it. Meanings and defaults: the fields of `declaration.Pool`."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def shard_size(self) -> int: ...

    @property
    def columns(self) -> ColumnNames: ...

    @property
    def allow_hosts(self) -> tuple[str, ...]: ...

    @property
    def options(self) -> Any: ...

    @property
    def download(self) -> Any: ...

    @property
    def has_images(self) -> bool: ...

    @property
    def planted(self) -> tuple[int, int]: ...

    @property
    def numbers(self) -> dict[str, str]: ...

    @property
    def implied_source(self) -> str: ...

    @property
    def text_format(self) -> TextFormat: ...

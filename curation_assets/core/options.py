"""A group of a pool's options, declared in the folder that reads them."""

from typing import Any, Protocol, Self


class HasOptions(Protocol):
    """A pool, or the context of one."""

    @property
    def options(self) -> Any:
        """All options of the pool, an instance of every group."""
        ...


class Options:
    """Base of the groups: `checked` classes, one in each `options.py`, whose fields are options of a pool."""

    @classmethod
    def of(cls, holder: HasOptions) -> Self:
        """The options of a pool as this group names them; its type lets a reader see no others."""
        options = holder.options
        if not isinstance(options, cls):
            raise TypeError(f"expected a pool's options with those of {cls.__name__}, got {type(options).__name__}")
        return options

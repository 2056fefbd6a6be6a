"""Errors that a user can do something about: shown as sentences. Anything else is a bug and keeps its traceback."""

from collections.abc import Iterable


class ExpectedError(Exception):
    """Base of the errors of this project that state what was got, what was expected and what to do."""


class StoreError(ExpectedError):
    """Something about a stored table that its reader must hear about."""


class ModelUnavailableError(ExpectedError, RuntimeError):
    """The weights at an address are not on this disk and cannot be fetched."""


class ProgramUnavailableError(ExpectedError, RuntimeError):
    """A program from outside this package (Java's) is absent, too old, or failed."""


def install_extra(extra: str) -> str:
    """The command that brings the packages of an extra of pyproject.toml."""
    return f"pip install 'curation_assets[{extra}]'"


def first_line(error: BaseException) -> str:
    """What an error says, short; its type where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def few(names: Iterable[str], most: int) -> str:
    """'a, b and 3 more': some names, for a sentence."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most:,} more" if len(listed) > most else "")


EXPECTED_ERRORS = (ExpectedError, ValueError, OSError)

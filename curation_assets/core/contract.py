"""The rules that a file of a user's own is tried against, one after the other."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Checked:
    """One rule and whether it holds; `fault`: what is wrong, None where nothing is."""

    rule: str
    fault: str | None = None


#: A rule in words, and a function that gives what is wrong or raises it.
Rule = tuple[str, Callable[[], str | None]]


def tried(rules: Iterable[Rule]) -> list[Checked]:
    """Every rule, each after the one before has held: the first fault ends it."""
    found: list[Checked] = []
    for rule, try_it in rules:
        try:
            fault = try_it()
        except Exception as error:  # whatever the code of a stranger raises is its fault, with its words
            fault = f"{type(error).__name__}: {error}"
        found.append(Checked(rule, fault))
        if fault is not None:
            break
    return found

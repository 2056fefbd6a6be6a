"""Methods: ways to get one number per sample; one pure file each, discovered, never registered.

A module of this package that defines `METHOD` is a method. To add one, copy `clip_score.py`, rename it, write the
example first, run `make check`. Pools run those of `default=True`, and others that they name.

A user's own are files of `pools/methods` in the home, or entry points `curation_assets.methods` of installed packages
(docs/user/own_methods.md): pools run those that they name.
"""

import difflib
import importlib
import inspect
import math
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from curation_assets.core.own_modules import Own, OwnModules, own_version
from curation_assets.core.roles import ROLES
from curation_assets.numeric.metrics.separation import KINDS

if TYPE_CHECKING:
    import polars as pl

#: What a sample without an image has; every other column that a method may read is made of the image, or its size.
TEXT_COLUMNS = ("sample_id", "caption", "url")

#: Details of a teacher: beams with their similarities (best first), the best one, and its similarity inside (0, 1).
TEACHER_DETAILS = ("reconstructions", "similarities", "best_reconstruction", "open_similarity")

Columns = dict[str, list[Any]]  # name → a cell for each row
Numbers = TypeVar("Numbers", float, np.ndarray, "pl.Expr", "pl.Series")


@dataclass(frozen=True)
class Values:
    """What a method returns for N samples."""

    value: np.ndarray  # (N,) float64 in the method's unit; NaN exactly where `reason` is not None
    reason: list[str | None]  # (N,) short machine word: why there is no value
    details: Columns = field(default_factory=dict)  # further columns, (N,) each, e.g. best_caption

    @classmethod
    def of(cls, value: np.ndarray, **details: list[Any]) -> "Values":
        """Values without failures."""
        value = np.asarray(value, dtype=np.float64)
        return cls(value, [None] * len(value), details)


@dataclass(frozen=True)
class Example:
    """A worked example: `columns` in (lists of equal length), `value` out, with role stubs where roles are needed."""

    columns: Mapping[str, list[Any]]
    value: list[float]
    roles: Mapping[str, Any] = field(default_factory=dict)  # role name → tiny hand-made stand-in
    settings: Mapping[str, Any] = field(default_factory=dict)  # keyword settings that the example is worked with


@dataclass(frozen=True)
class FileSetting:
    """A setting that names a file: whoever runs the method reads it, so that the method stays pure."""

    parameter: str  # keyword of the function that receives what `parse` returns
    parse: Callable[[Columns], Any]  # columns of the file → value; raises ValueError for a wrong file
    is_list: bool = False  # a text file without header, read as one column `line`, blank lines left out
    table: str | None = None  # table of statistics that a pool computes and the method reads there, "stage/name"


@dataclass(frozen=True)
class Method:
    """A method and the facts that a reader needs to use its numbers.

    The function's parameters without a default are what it takes, all as keywords: columns of samples as lists,
    "caption", "image" (PIL, RGB), "sample_id", "generated_captions" and "detected_objects" (lists of strings per
    sample), "text_boxes", "image_embedding"; models by the names of their roles. It returns `Values`; a sample's value
    depends on that sample alone. It never gets null entries, nor blank captions where `blank_caption` is their reason:
    scoring gives those rows a reason instead.

    A method of stage teachers reads captions (and sample_id) alone and returns the details TEACHER_DETAILS.
    Raises ValueError for unknown roles and kinds of noise, for bounds that are no interval, and for a `blank_caption`
    of a method that reads no captions.
    """

    function: Callable[..., Values]
    unit: str
    bounds: tuple[float, float]
    source: str  # paper, section
    example: Example
    name: str = ""  # as its file; left out, the function's
    columns: tuple[str, ...] = ()  # left out as `roles` is, both follow from the function's parameters
    roles: tuple[str, ...] = ()
    direction: Literal["higher", "lower"] = "higher"  # which end is better
    version: str = "1"  # bump when numbers change
    stage: Literal["signals", "teachers"] = "signals"
    summary: str = ""  # what the score is, one sentence
    made_for: tuple[str, ...] = ()  # planted KINDS of noise to separate from clean samples, the main one first
    known_limits: Mapping[str, str] = field(default_factory=dict)  # kind of made_for → why it cannot do well on scenes
    no_planted_kind: str = ""  # for a method without made_for: why no planted kind shows what it does
    blank_caption: str | None = None  # reason that a blank caption gets instead of a call; None: the function values it
    default: bool = False  # False: a pool runs it only where its option `methods`, or the profile's, names it
    #: (addresses by role, settings) → a sentence on why its values may mislead with these models; None: nothing known
    caution: Callable[[Mapping[str, str], Mapping[str, Any]], str | None] = lambda addresses, settings: None
    file_settings: Mapping[str, FileSetting] = field(default_factory=dict)  # setting in the profile → how it is read
    teacher_order: int = 100  # position among the teachers' columns, ties by name; the fused score's terms follow it
    origin: str = ""  # set where it is found: the file or the entry point of one of a user's own

    def __post_init__(self) -> None:
        if not self.columns and not self.roles:
            parameters = inspect.signature(self.function).parameters.values()
            files = {setting.parameter for setting in self.file_settings.values()}
            taken = [one.name for one in parameters if one.default is one.empty and one.name not in files]
            object.__setattr__(self, "roles", tuple(name for name in taken if name in ROLES))
            object.__setattr__(self, "columns", tuple(name for name in taken if name not in ROLES))
        object.__setattr__(self, "name", self.name or self.function.__name__)
        unknown = set(self.roles) - set(ROLES)
        if unknown:
            raise ValueError(f"method {self.name!r} needs unknown roles {sorted(unknown)}; known: {sorted(ROLES)}")
        kinds = {*self.made_for, *self.known_limits} - set(KINDS)
        if kinds:
            raise ValueError(f"method {self.name!r}: unknown kinds of noise {sorted(kinds)}; known: {', '.join(KINDS)}")
        if not set(self.known_limits) <= set(self.made_for) or (self.made_for and self.no_planted_kind):
            raise ValueError(
                f"method {self.name!r}: known_limits are of kinds in made_for, and no_planted_kind stands without "
                f"made_for; got made_for={self.made_for}, known_limits of {sorted(self.known_limits)}"
            )
        if self.blank_caption is not None and "caption" not in self.columns:
            raise ValueError(
                f"method {self.name!r}: blank_caption={self.blank_caption!r} needs the column caption, "
                f"got columns={self.columns}; leave it out"
            )
        if not self.bounds[0] < self.bounds[1]:
            raise ValueError(f"method {self.name!r}: bounds must be (low, high) with low < high, got {self.bounds}")

    @property
    def label(self) -> str:
        """'method 'sieve'', and of a user's own where it lies: for messages."""
        return f"method {self.name!r}" + (f" ({self.origin})" if self.origin else "")

    @property
    def image_columns(self) -> tuple[str, ...]:
        """The columns of the image that it reads: a sample that lacks one of them has no value."""
        return tuple(name for name in self.columns if name not in TEXT_COLUMNS)

    @property
    def unit_and_bounds(self) -> str:
        """'cosine, in [-1, 1]'; an end without a bound is left out."""
        low, high = self.bounds
        if math.isinf(high):
            return self.unit if math.isinf(low) else f"{self.unit}, at least {low:g}"
        return f"{self.unit}, at most {high:g}" if math.isinf(low) else f"{self.unit}, in [{low:g}, {high:g}]"


@cache
def _method_in(module: str) -> Method | None:
    """METHOD of a module of this package, None where it has none. Raises ValueError where file and name differ."""
    method = getattr(importlib.import_module(f"{__name__}.{module}"), "METHOD", None)
    if method is not None and method.name != module:
        raise ValueError(f"methods/{module}.py defines METHOD named {method.name!r}; name both alike")
    return method


@cache
def _modules() -> frozenset[str]:
    """Names of this package's modules: looking for them lists its folder, and the tables of a pool need them often."""
    return frozenset(module.name for module in pkgutil.iter_modules(__path__))


@cache
def all_methods() -> dict[str, Method]:
    """Every method of this package by name, sorted. Raises ValueError where file and method names differ."""
    named = {module: _method_in(module) for module in sorted(_modules())}
    return {name: method for name, method in sorted(named.items()) if method is not None}


#: Methods of a user's own.
OWN = OwnModules("methods", "METHOD", Method)


def method_names() -> frozenset[str]:
    """Names of this package's methods and of a user's own, which are not imported."""
    return frozenset({*all_methods(), *OWN.names()})


def own_methods() -> tuple[list[Method], list[str]]:
    """A user's own methods by name, sorted; and what is wrong with those that cannot be used, a sentence each."""
    found, faults = [], []
    for name in OWN.names():
        try:
            own = OWN.get(name)
            found += [] if own is None else [as_own_method(name, own)]
        except ValueError as error:
            faults.append(str(error))
    return found, faults


@lru_cache(maxsize=64)
def as_own_method(name: str, own: Own) -> Method:
    """The method of a file called `name`; the file's content is part of its version.

    Raises ValueError where the method is called otherwise, or as one of this package.
    """
    method: Method = own.value
    if method.name != name:
        raise ValueError(f"{own.where}: expected a METHOD named {name!r}, as its file is; got {method.name!r}")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ValueError(f"{own.where}: a method's name is lower-case letters, digits and _, got {name!r}")
    if taken := sorted({name, name.removesuffix("_score"), f"{name}_score"} & set(all_methods())):
        raise ValueError(f"{own.where}: this package has a method {taken[0]!r}; give yours another name")
    return replace(method, version=own_version(method.version, own), origin=own.where)


def find_method(name: str) -> Method | None:
    """The method called `name`, of this package or a user's own; None where there is none.

    No other module is imported. Raises ValueError for one of a user's own that cannot be used.
    """
    if name in _modules():
        return _method_in(name)
    own = OWN.get(name)
    return None if own is None else as_own_method(name, own)


def named_method(name: str) -> Method:
    """`get_method` of a name that a user wrote: nobody knows which one is meant where a method of this package and a
    file of the user's are called alike. Raises ValueError for that, too."""
    own = OWN.get(name) if name in _modules() else None
    return get_method(name) if own is None else as_own_method(name, own)


def lower_is_better(reference: str) -> bool:
    """Whether the lower value of a table 'stage.name' is the better one: where a method of lower direction gives it."""
    stage, _, name = reference.replace("/", ".").partition(".")
    method = find_method(name) if stage in ("signals", "teachers") else None
    return method is not None and method.stage == stage and method.direction == "lower"


def oriented(reference: str, values: Numbers) -> Numbers:
    """Values of a table 'stage.name' → negated where lower ones are better, so that higher is better; its own inverse.

    Everything that ranks, cuts or fuses by values reads them through this; what is stored and shown keeps its unit.
    """
    return -values if lower_is_better(reference) else values


def teachers() -> list[Method]:
    """Every method of stage teachers, by teacher_order and then by name."""
    methods = [method for method in all_methods().values() if method.stage == "teachers"]
    return sorted(methods, key=lambda method: (method.teacher_order, method.name))


def get_method(name: str) -> Method:
    """The method called `name`; no other module is imported. Raises ValueError that names the nearest and lists all, or
    what is wrong with one of a user's own."""
    method = find_method(name)
    if method is None:
        methods = sorted(method_names())
        near = difflib.get_close_matches(name, methods, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(f"no method {name!r}{hint} Available: {', '.join(methods)}")
    return method

"""Settings that check themselves: frozen dataclasses whose fields have a type, limits, a unit and a line of docs.

An error is one sentence: where, which setting, what was got, what is expected, and for an unknown name the nearest.
"""

import dataclasses
import difflib
import functools
import math
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Annotated, Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin

from pydantic import AfterValidator, AllowInfNan, BeforeValidator, ConfigDict, Field, Strict, ValidationError
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

T = TypeVar("T")


def _no_nan(value: float) -> float:
    if math.isnan(value):
        raise ValueError("nan is no threshold: no value is at or above it")
    return value


Whole = Annotated[int, Strict()]  # true is no number
Number = Annotated[int, Strict()] | Annotated[float, Strict(), AllowInfNan(False)]  # 1 stays 1, which hashes see
Threshold = Annotated[int, Strict()] | Annotated[float, Strict(), AfterValidator(_no_nan)]  # infinite ones too
Switch = Annotated[bool, Strict()]
#: '2025-01' or '2025-01-31'; YAML reads the second as a date.
Day = Annotated[str, BeforeValidator(lambda given: given.isoformat() if isinstance(given, date) else given)]


def _switched(value: Any) -> Any:
    if value is True:
        return {}
    return None if value is False or value == {} else value


class _MayBeSwitched(BeforeValidator):
    """Whose JSON schema takes true and false, too."""

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> Any:
        return {"anyOf": [{"type": "boolean"}, handler(schema)]}


_SWITCHED = _MayBeSwitched(_switched)
#: A `checked` class that may be switched: true for its defaults; false, null or nothing inside for None.
Switched = Annotated[T | None, _SWITCHED]

MAX_SHOWN = 80  # characters of a bad value
_LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def setting(
    *,
    description: str,
    default: Any = ...,
    default_factory: Callable[[], Any] | None = None,
    unit: str | None = None,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    of_one_pool: bool = False,
    file_of: Sequence[str] = (),
) -> Any:
    """A field of a `checked` class: one line on what it does, its default (none: required), unit and limits.

    `of_one_pool`: an option that belongs to one pool alone, so that no profile may set it. `file_of`: it names a file
    or folder that these tables read, which has to be there before a run begins.
    """
    start: dict[str, Any] = {"default": default} if default_factory is None else {"default_factory": default_factory}
    extra: Any = {"unit": unit, "of_one_pool": of_one_pool, "file_of": list(file_of)}
    return Field(**start, description=description, json_schema_extra=extra, ge=ge, gt=gt, le=le, lt=lt)


@dataclass_transform(frozen_default=True, field_specifiers=(setting,))
def checked(noun: str) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass that checks types, limits and names when built.

    `noun` names it in errors ("pool 'scenes': …"). Building it raises ValueError with one sentence; a ValueError of its
    own `__post_init__` gets the same beginning.
    """

    def decorate(cls: type[T]) -> type[T]:
        made: Any = dataclass(frozen=True, config=ConfigDict(extra="forbid"))(cls)
        build_checked = made.__init__
        first = next(iter(made.__pydantic_fields__))

        @functools.wraps(build_checked)
        def initialise(self: Any, *args: Any, **given: Any) -> None:
            try:
                build_checked(self, *args, **given)
            except ValidationError as error:
                name = given.get("name", next(iter(args), None)) if first == "name" else None
                raise ValueError(_sentence(error, made, noun if name is None else f"{noun} {name!r}")) from None

        made.__init__ = initialise
        return made

    return decorate


def build(cls: type[T], content: Any, where: str) -> T:
    """The `checked` class from a mapping, such as a YAML file's. Raises ValueError that begins with `where`."""
    try:
        return cls.__pydantic_validator__.validate_python(content)  # type: ignore[attr-defined]
    except ValidationError as error:
        raise ValueError(_sentence(error, cls, where)) from None


def content_of(value: Any) -> Any:
    """What a file must hold for a value: of a `checked` one only what differs from the defaults, plain lists and dicts.

    The inverse of `build`.
    """
    if dataclasses.is_dataclass(value):
        changed = {}
        for name, info in fields_of(type(value)).items():
            content, default = getattr(value, name), info.get_default(call_default_factory=True)
            if repr(content) != repr(default):  # 1 is not 1.0: hashes see it
                changed[name] = content_of(content)
        return {name: True if content == {} else content for name, content in changed.items()}  # see Switched
    if isinstance(value, Mapping):
        return {key: content_of(content) for key, content in value.items()}
    return [content_of(part) for part in value] if isinstance(value, list | tuple) else value


def fields_of(cls: Any) -> dict[str, FieldInfo]:
    """Fields of a `checked` class by name, in order."""
    return dict(cls.__pydantic_fields__)


def unit_of(info: FieldInfo) -> str | None:
    """Unit of a field."""
    unit = _extra(info, "unit")
    return None if unit is None else str(unit)


def is_of_one_pool(info: FieldInfo) -> bool:
    """Whether an option belongs to one pool alone."""
    return bool(_extra(info, "of_one_pool"))


def readers_of(info: FieldInfo) -> tuple[str, ...]:
    """Tables that read the file or folder which an option names; none of other options."""
    return tuple(_extra(info, "file_of") or ())


def _extra(info: FieldInfo, name: str) -> Any:
    return info.json_schema_extra.get(name) if isinstance(info.json_schema_extra, dict) else None


def unknown_name(name: Any, known: Iterable[str]) -> str:
    """ "'lenght'; did you mean 'length'? known: length, width": the end of a sentence on a name that does not exist."""
    names = sorted(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    return f"{name!r}; {f'did you mean {near[0]!r}? ' if near else ''}known: {', '.join(names) or 'none'}"


def check_known(where: str, what: str, names: Iterable[Any], known: Iterable[str]) -> None:
    """Raise ValueError where one of `names` is not known: "roles has no role 'captoiner'; did you mean …"."""
    known = set(known)
    unknown = sorted(set(names) - known, key=str)
    if unknown:
        raise ValueError(f"{where} has no {what} {unknown_name(unknown[0], known)}")


# -- what a field takes, in words -------------------------------------------------------------------------------------


def described(info: FieldInfo) -> str:
    """What a field takes, in words: 'an integer ≥ 1', 'one of length, global', 'a string or null'."""
    return _described(info.annotation, info.metadata)


def nested(annotation: Any) -> type | None:
    """The `checked` class that a field holds, if it holds one (or null)."""
    plain = _without_null(annotation)[0]
    return plain if hasattr(plain, "__pydantic_fields__") else None


def _described(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    plain, is_nullable = _without_null(annotation)
    if _SWITCHED in metadata:
        return "true, false or a mapping"
    limits = {
        name: getattr(constraint, name) for constraint in metadata for name in _LIMITS if hasattr(constraint, name)
    }
    if plain is bool and is_nullable:
        return "true, false or null"
    return _phrase(plain) + _range(limits) + (" or null" if is_nullable else "")


def _without_null(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) is Annotated:
        return _without_null(get_args(annotation)[0])
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation, False
    arms = {_without_null(arm)[0] for arm in get_args(annotation)}
    is_nullable = type(None) in arms
    arms -= {type(None)}
    if arms == {int, float}:
        return float, is_nullable
    return (arms.pop() if len(arms) == 1 else annotation), is_nullable


def _phrase(plain: Any, *, is_plural: bool = False) -> str:
    origin, parts = get_origin(plain), get_args(plain)
    if origin is Literal:
        return f"{'' if is_plural else 'one of '}{', '.join(map(str, parts))}"
    if origin in (tuple, list):
        inner = _without_null(parts[0])[0]
        return f"a list of{':' if get_origin(inner) is Literal else ''} {_phrase(inner, is_plural=True)}"
    if origin is not None and issubclass(origin, Mapping):
        values = _phrase(_without_null(parts[1])[0], is_plural=True)
        return f"{'mappings' if is_plural else 'a mapping'} of names to {values}"
    if plain is Any:
        return "any values"
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}.get(plain, "a mapping")
    return f"{words.removeprefix('an').removeprefix('a').strip()}s" if is_plural and plain is not bool else words


def _range(limits: Mapping[str, Any]) -> str:
    low = next((name for name in ("ge", "gt") if name in limits), None)
    high = next((name for name in ("le", "lt") if name in limits), None)
    if low and high:
        left, right = "[" if low == "ge" else "(", "]" if high == "le" else ")"
        return f" in {left}{limits[low]}, {limits[high]}{right}"
    return "".join(f" {_LIMITS[name]} {limits[name]}" for name in (low, high) if name)


# -- errors -----------------------------------------------------------------------------------------------------------


def _sentence(error: ValidationError, cls: type, where: str) -> str:
    """All that pydantic reports, in one sentence; the arms of a union are one mistake."""
    sentences = dict.fromkeys(_mistake(mistake, cls) for mistake in error.errors(include_url=False))
    return f"{where}: {'; '.join(sentences)}"


def _mistake(error: Any, cls: type) -> str:
    kind, location = error["type"], error["loc"]
    if kind in ("unexpected_keyword_argument", "invalid_key"):
        path, owner, _ = _walk(cls, location[:-1])
        parent = f"{'.'.join(path)} has no" if path else "there is no"
        return f"{parent} setting {unknown_name(location[-1], fields_of(nested(owner)))}"
    if location and location[-1] == "[key]":  # of a mapping whose names are listed
        path, annotation, _ = _walk(cls, location[:-2])
        names = get_args(_without_null(get_args(_without_null(annotation)[0])[0])[0])
        return f"{'.'.join(path)} has no {unknown_name(error['input'], map(str, names))}"
    path, annotation, expected = _walk(cls, location)
    name = ".".join(path)
    if kind == "missing":
        return f"{name} is missing"
    if kind == "value_error":
        return ": ".join(filter(None, (name, str(error["ctx"]["error"]))))
    got = repr(error["input"])
    got = got if len(got) <= MAX_SHOWN else got[:MAX_SHOWN] + "…"
    if kind == "unexpected_positional_argument":
        return f"takes {len(fields_of(nested(annotation)))} settings, got a further {got}"
    return f"{name} must be {expected}, got {got}" if name else f"expected {expected}, got {got}"


def _walk(cls: type, location: Iterable[Any]) -> tuple[list[str], Any, str]:
    """Path of names to an error, the annotation at that path, and what it takes."""
    path: list[str] = []
    annotation: Any = cls
    expected = _phrase(cls)
    for part in location:
        plain = _without_null(annotation)[0]
        origin, parts = get_origin(plain), get_args(plain)
        if nested(plain) is not None:
            fields = fields_of(plain)
            part = list(fields)[part] if isinstance(part, int) and part < len(fields) else part  # a positional argument
            if part not in fields:
                break
            annotation, expected = fields[part].annotation, described(fields[part])
            path.append(part)
        elif origin in (tuple, list):
            annotation, expected = parts[0], _described(parts[0])
            path[-1] += f"[{part}]"
        elif origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
            annotation, expected = parts[1], _described(parts[1])
            path.append(str(part))
        else:  # the arm of a union
            break
    return path, annotation, expected

"""The contract that every method keeps, of the package or a user's own, tried on its own worked example."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from curation_assets.core.contract import Checked, tried
from curation_assets.methods import OWN, TEACHER_DETAILS, TEXT_COLUMNS, Method, Values, all_methods, as_own_method
from curation_assets.scoring.derived import DERIVED_COLUMNS
from curation_assets.scoring.samples import score_samples

TOLERANCE = 1e-7  # of a value against the one that the example states


def check_own_method(file: Path) -> list[Checked]:
    """Try the method that `file` defines. The first fault ends it.

    Raises ValueError for a file that cannot be loaded, or that is called as a method of the package.
    """
    return check_method(as_own_method(file.stem, OWN.load(file.resolve())))


def check_method(method: Method) -> list[Checked]:
    """Try a method by all rules, each after the one before has held."""
    return tried((rule, partial(holds, method)) for rule, holds in RULES.items())


def _run(method: Method, columns: Mapping[str, list[Any]] | None = None) -> Values:
    """What the function returns, of the worked example's columns unless others are given."""
    example = method.example
    values = method.function(**(columns or example.columns), **example.roles, **example.settings)
    if not isinstance(values, Values):
        raise TypeError(f"the function returned {type(values).__name__}, expected curation_assets.methods.Values")
    return values


def _at(method: Method, rows: list[int]) -> Values:
    """The method's values of these rows of the example, in this order."""
    return _run(method, {name: [column[row] for row in rows] for name, column in method.example.columns.items()})


def _facts(method: Method) -> str | None:
    wanting = [name for name in ("unit", "source", "version", "summary") if not getattr(method, name).strip()]
    wanting += [] if (method.function.__doc__ or "").strip() else ["docstring of the function"]
    if wanting:
        return f"empty: {', '.join(wanting)}"
    if method.direction not in ("higher", "lower"):
        return f"direction: expected higher or lower, got {method.direction!r}"
    return (
        None if method.summary.endswith(".") else f"summary: expected a sentence with a full stop: {method.summary!r}"
    )


def _reads_what_there_is(method: Method) -> str | None:
    if method.name in DERIVED_COLUMNS:
        return f"signals/{method.name} is the table of a derived column; choose another name"
    known = {
        *TEXT_COLUMNS,
        "image",
        *DERIVED_COLUMNS,
        *(name for one in all_methods().values() for name in one.columns),
    }
    unknown = sorted(set(method.columns) - known)
    if unknown:
        return f"columns: no {', '.join(unknown)}; there are {', '.join(sorted(known))}"
    wanting = sorted({*method.columns} ^ {*method.example.columns}) + sorted({*method.roles} ^ {*method.example.roles})
    return (
        f"example: expected the columns and roles of the method, differs in {', '.join(wanting)}" if wanting else None
    )


def _example_reproduces(method: Method) -> str | None:
    stated = np.asarray(method.example.value, dtype=np.float64)
    if len(stated) < 2 or len(set(method.example.value)) < 2:
        return f"expected at least two different values in the example, got {method.example.value}"
    got = np.asarray(_run(method).value, dtype=np.float64)
    if got.shape == stated.shape and np.allclose(got, stated, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
        return None
    return f"expected {stated.tolist()}, got {got.tolist()}"


def _is_well_formed(method: Method) -> str | None:
    values, n = _run(method), len(method.example.value)
    if values.value.dtype != np.float64 or values.value.shape != (n,):
        return f"value: expected float64 of shape ({n},), got {values.value.dtype} of shape {values.value.shape}"
    lengths = {"reason": len(values.reason), **{name: len(column) for name, column in values.details.items()}}
    if wrong := {name: length for name, length in lengths.items() if length != n}:
        return f"expected {n} entries each, got {wrong}"
    is_valued = ~np.isnan(values.value)
    if mixed := [row for row in range(n) if is_valued[row] == (values.reason[row] is not None)]:
        row = mixed[0]
        return (
            f"expected NaN and a reason, or a value and none; row {row} has {values.value[row]}, {values.reason[row]}"
        )
    low, high = method.bounds
    outside = values.value[is_valued & ~((low <= values.value) & (values.value <= high))]
    return f"expected values in [{low:g}, {high:g}], got {outside[0]}" if len(outside) else None


def _gives_what_a_teacher_must(method: Method) -> str | None:
    if method.stage != "teachers":
        return None
    if others := sorted(set(method.columns) - {"caption", "sample_id"}):
        return f"expected columns caption, sample_id, got {', '.join(others)} besides"
    details = _run(method).details
    if set(details) != set(TEACHER_DETAILS):
        return f"details: expected {', '.join(TEACHER_DETAILS)}, got {', '.join(sorted(details)) or 'none'}"
    outside = [one for one in details["open_similarity"] if not 0 < one < 1]  # the logit is taken of it
    return f"open_similarity: expected inside (0, 1), got {outside[0]}" if outside else None


def _follows_its_columns_without_images(method: Method) -> str | None:
    """What a pool of captions only leaves out follows from the columns that the method declares."""
    columns = {
        name: [None] * len(values) if name in method.image_columns else values
        for name, values in method.example.columns.items()
        if name != "image"
    }
    ids = {"sample_id": [f"{number:032x}" for number in range(len(method.example.value))]}
    samples = pl.DataFrame({**ids, **columns}, schema_overrides=dict.fromkeys(method.image_columns, pl.Null))
    has_values = score_samples(_fixed(method), samples, method.example.roles)["value"].drop_nulls().len() > 0
    if has_values == bool(method.image_columns):
        return f"got {'values' if has_values else 'no value'}, though it reads {', '.join(method.columns)}"
    return None


def _ignores_order(method: Method) -> str | None:
    order = np.random.default_rng(0).permutation(len(method.example.value)).tolist()
    whole, shuffled = _run(method), _at(method, order)
    if not np.array_equal(shuffled.value, whole.value[order], equal_nan=True):
        return f"expected {whole.value[order].tolist()} of the rows {order}, got {shuffled.value.tolist()}"
    other = [name for name, column in whole.details.items() if shuffled.details[name] != [column[i] for i in order]]
    return f"details {', '.join(other)} are others in another order" if other else None


def _ignores_neighbours(method: Method) -> str | None:
    whole = _run(method)
    for row in range(len(method.example.value)):
        alone = _at(method, [row])
        if not np.array_equal(alone.value, whole.value[[row]], equal_nan=True) or alone.reason != [whole.reason[row]]:
            return f"row {row} has {whole.value[row]} among the others, {alone.value[0]} alone"
    return None


def _runs_as_a_table(method: Method) -> str | None:
    example, n = method.example, len(method.example.value)
    columns = {name: column for name, column in example.columns.items() if name != "image"}
    samples = pl.DataFrame({"sample_id": [f"{i:032x}" for i in range(n)], **columns})
    images = example.columns.get("image")
    frames = [
        score_samples(
            _fixed(method),
            samples,
            example.roles,
            load_image=None if images is None else lambda row: images[int(row["sample_id"], 16)],
            batch_size=size,
        )
        for size in (1, 2, n)
    ]
    if not frames[0].equals(frames[1]) or not frames[0].equals(frames[2]):
        return f"expected the same of batches of 1, 2 and {n} rows, got {[one['value'].to_list() for one in frames]}"
    got = frames[0]["value"].cast(pl.Float64).to_numpy()
    same = np.allclose(got, np.asarray(example.value, dtype=np.float64), rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    return None if same else f"expected {example.value}, got {got.tolist()}: {frames[0]['reason'].to_list()}"


def _fixed(method: Method) -> Method:
    """With the settings that its example is worked with."""
    settings = method.example.settings
    if not settings:
        return method
    example = replace(method.example, settings={})
    return replace(method, function=partial(method.function, **settings), example=example)


#: Rule → what is wrong with a method by it, None where it holds.
RULES: Mapping[str, Callable[[Method], str | None]] = {
    "Its facts are stated.": _facts,
    "It reads columns and roles that there are, and its example has them.": _reads_what_there_is,
    "Its worked example gives the values that it states.": _example_reproduces,
    "It returns one value a sample, within its bounds, or a reason.": _is_well_formed,
    "As a teacher it gives what is fused.": _gives_what_a_teacher_must,
    "Without images it has values exactly if it reads none.": _follows_its_columns_without_images,
    "The order of samples changes no value.": _ignores_order,
    "A sample's neighbours change no value.": _ignores_neighbours,
    "It runs as a table in batches of any size.": _runs_as_a_table,
}

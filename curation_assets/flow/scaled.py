"""Views that recipes read: each signal on [0, 1] by its frozen range, and the signals of one recipe side by side.

`fused.<signal>_scaled` has sample_id, shard, source_row, `<signal>_score`, reason: min–max over the pool by the frozen
`fused.<signal>_range` (SIEVE §3.3), the best value at 1, so a late sample may lie outside [0, 1] and moves no other
sample's score. A constant signal carries no order and is .5 throughout.

`fused.scaled` has one row per row of raw.samples: sample_id, shard, source_row, the score of every signal that the
recipe names, in the order of naming, and reason: why the first that is missing is missing. Views of the connection that
runs the recipe: nothing of them is stored (docs/decisions/0021).
"""

import difflib
from collections.abc import Sequence

from curation_assets.methods import OWN, all_methods, get_method, lower_is_better

SCALED = "_scaled"
ALL_SCALED = "fused.scaled"
#: Columns of `fused.scaled` besides the scores.
OTHER_COLUMNS = ("sample_id", "shard", "source_row", "reason")

_SIGNAL = """select
    signal.sample_id,
    signal.shard,
    signal.source_row,
    case
        when extent.high > extent.low then {above_worst} / (extent.high - extent.low)
        when signal.value is not null then 0.5
    end as {score},
    signal.reason
from signals.{signal} as signal
cross join fused.{signal}_range as extent"""

_RECIPE = """select
    samples.sample_id,
    samples.shard,
    samples.source_row,
    {scores},
    case
        when samples.status <> 'kept'
            then 'upstream_' || samples.status || ':' || coalesce(samples.reason, 'no_reason')
        {reasons}
    end as reason
from raw.samples as samples
{joins}"""


def score_column(signal: str) -> str:
    """Column of a signal's score: sieve → sieve_score, clip_score → clip_score."""
    return signal if signal.endswith("_score") else f"{signal}_score"


def signal_of(column: str) -> str:
    """The signal whose score a column is. Raises ValueError, with the nearest name, for a column of no signal."""
    columns = {score_column(name): name for name in OWN.names()}
    columns |= {score_column(name): name for name, method in all_methods().items() if method.stage == "signals"}
    if column not in columns or get_method(columns[column]).stage != "signals":
        near = difflib.get_close_matches(column, columns, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ValueError(
            f"{ALL_SCALED} has no column {column!r}{hint} It has {', '.join(OTHER_COLUMNS)} and <signal>_score"
        )
    return columns[column]


def scaled_views(signals: Sequence[str]) -> dict[str, str]:
    """The views of a recipe that names `signals` in this order: name → statement, each after what it reads."""
    views = {f"fused.{signal}{SCALED}": _signal_view(signal) for signal in sorted(signals)}
    return views | {ALL_SCALED: _recipe_view(signals)} if signals else {}


def _signal_view(signal: str) -> str:
    is_lower = lower_is_better(f"signals.{signal}")
    above_worst = "(extent.high - signal.value)" if is_lower else "(signal.value - extent.low)"
    return _SIGNAL.format(signal=signal, score=score_column(signal), above_worst=above_worst)


def _recipe_view(signals: Sequence[str]) -> str:
    """The statement of `fused.scaled` for a recipe that names `signals` in this order."""
    scores = ",\n    ".join(f"{signal}.{score_column(signal)}" for signal in signals)
    reasons = "\n        ".join(
        f"when {signal}.{score_column(signal)} is null then '{signal}:' || coalesce({signal}.reason, 'no_row')"
        for signal in signals
    )
    joins = "\n".join(
        f"left join fused.{signal}{SCALED} as {signal} on samples.shard = {signal}.shard "
        f"and samples.source_row = {signal}.source_row"
        for signal in signals
    )
    return _RECIPE.format(scores=scores, reasons=reasons, joins=joins)

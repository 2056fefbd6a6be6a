"""The `curate` command. One file per group of commands; each parses, calls one function and shows its result."""

import atexit
import os
import sys

import typer

from curation_assets.cli import (
    agree,
    bench,
    cost,
    diff,
    drift,
    explain,
    export,
    label,
    lineage,
    plan,
    pool,
    recut,
    reward,
    run,
    score,
    takedown,
    train_sba,
    why,
    word_weights,
)


def _mute_standard_error() -> None:
    sys.stderr.flush()
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stderr.fileno())


# Registered first, so run last: after it DuckDB's binding lists, on standard error, objects that it thinks are leaked
# whenever img2dataset was loaded beside it. Nothing of ours is written that late.
if "pytest" not in sys.modules:
    atexit.register(_mute_standard_error)

app = typer.Typer(
    name="curate",
    help="From a noisy image–text pool to an audited, high-quality subset.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    add_completion=False,
)
app.command("demo")(run.demo)
app.command("run")(run.run)
app.command("ui")(run.ui)
app.command("score")(score.score)
app.command("methods")(score.methods)
app.command("agree")(agree.agree)
app.command("explain-icc")(explain.explain_icc)
app.command("train-sba")(train_sba.train_sba)
app.command("word-weights")(word_weights.word_weights)
app.command("why")(why.why)
app.command("diff")(diff.diff)
app.command("recut")(recut.recut)
app.command("plan")(plan.plan)
app.add_typer(takedown.app, name="takedown")
app.command("export")(export.export)
app.command("lineage")(lineage.lineage)
app.command("cost")(cost.cost)
app.add_typer(label.app, name="label")
app.add_typer(pool.app, name="pool")
app.add_typer(reward.app, name="reward")
app.add_typer(bench.app, name="bench")
app.add_typer(drift.app, name="drift")

"""The `curate` command. One file per group of commands; each parses, calls one function and shows its result."""

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
    pool,
    run,
    score,
    train_sba,
    why,
)

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
app.command("why")(why.why)
app.command("diff")(diff.diff)
app.command("export")(export.export)
app.command("lineage")(lineage.lineage)
app.command("cost")(cost.cost)
app.add_typer(label.app, name="label")
app.add_typer(pool.app, name="pool")
app.add_typer(bench.app, name="bench")
app.add_typer(drift.app, name="drift")

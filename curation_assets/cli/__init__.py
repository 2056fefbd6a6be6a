"""The `curate` command. One file per group of commands; each parses, calls one function and shows its result."""

import typer

from curation_assets.cli import bench, pool, run, score

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
app.add_typer(pool.app, name="pool")
app.add_typer(bench.app, name="bench")

"""curate why: the reason of one sample's fate."""

import math
from typing import Annotated, Any

import typer
from rich.markup import escape

from curation_assets.audit.why import as_json, explain, sentence
from curation_assets.cli.common import HomeOption, console, errors_as_sentences, settings_from

COLOURS = {"kept": "green", "dropped": "yellow", "failed": "red"}


@errors_as_sentences
def why(
    identifier: Annotated[
        str, typer.Argument(metavar="ID", help="sample_id, URL, or sha256 of an image (as stored or downloaded).")
    ],
    pool: Annotated[list[str] | None, typer.Option("--pool", help="Only this pool (repeat).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Everything, as JSON on standard output.")] = False,
    home: HomeOption = None,
) -> None:
    """Say why a sample was kept or dropped, by which model at which threshold, in every pool and policy."""
    told = explain(settings_from(home), identifier, pool or None)
    if json:
        typer.echo(as_json(told))
        return
    for one in told:
        _show(one)


def _show(one: dict[str, Any]) -> None:
    console.print(f"[bold]{one['sample_id']}[/]  pool {one['pool']}, shard {one['shard']}, row {one['source_row']}")
    for name in ("caption", "url", "image_sha256"):
        if one[name] is not None:
            console.print(f"  {name:<13} {escape(str(one[name]))}", highlight=False, soft_wrap=True)
    raw = one["raw"]
    console.print(f"  raw           {raw['status']}" + (f": {raw['reason']}" if raw["reason"] else ""), highlight=False)
    if not one["policies"]:
        console.print("  No ledger yet: `curate run " + one["pool"] + "` writes it.", highlight=False)
        return
    for verdict in one["policies"]:
        when = "" if verdict["in_force"] else " [dim](an earlier ledger)[/]"
        colour = COLOURS[verdict["verdict"]]
        console.print(
            f"  [{colour}]●[/] {verdict['policy']:<16} {escape(sentence(verdict))}{when}",
            highlight=False,
            soft_wrap=True,
        )
    signals = {name: value for verdict in one["policies"] for name, value in verdict["signals"].items()}
    shown = {name: value for name, value in signals.items() if value is not None and math.isfinite(value)}
    if shown:
        text = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
        console.print(f"  signals       {text}", highlight=False, soft_wrap=True)
    seen = {made["table"]: made for verdict in one["policies"] if verdict["in_force"] for made in verdict["made_by"]}
    for name, made in sorted(seen.items()):
        if not made["models"] and name.split("/")[0] not in ("raw", "signals", "fused"):
            continue  # --json has them all
        models = ", ".join(f"{m['address']} {m['weights_sha256'][:8]}" for m in made["models"] or [])
        code = made["code_version"][:8]
        data, run = (made["content_sha256"] or "")[:12], (made["run_id"] or "")[:8]
        line = f"  {name:<26} code {code}  data {data:<12}  run {run:<8}  {models}".rstrip()
        console.print(line, highlight=False, soft_wrap=True)

"""curate why: the reason of one sample's fate."""

import math
from functools import partial
from typing import Annotated, Any

import typer
from rich.text import Text

from curation_assets.audit.why import explain, sentence, with_rank
from curation_assets.cli.commands import command
from curation_assets.cli.common import HomeOption, JsonOption, settings_from, show, show_json
from curation_assets.core.table_names import stage_of
from curation_assets.core.visible import visible
from curation_assets.flow.declared import policy_names

COLOURS = {"kept": "green", "dropped": "yellow", "failed": "red"}


@command("why", "Why, and what if")
def why(
    identifier: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="sample_id, URL, sha256 of an image (stored or downloaded), or key in a tar.",
        ),
    ],
    pool: Annotated[list[str] | None, typer.Option("--pool", help="Only this pool (repeat).")] = None,
    rank: Annotated[bool, typer.Option("--rank", help="Count the exact rank, over the whole pool.")] = False,
    as_json: JsonOption = False,
    home: HomeOption = None,
) -> None:
    """Show why a sample was kept or dropped, by which model at which threshold.

    In every pool and policy.
    """
    settings = settings_from(home)
    explanations = explain(settings, identifier, pool or None, partial(policy_names, settings))
    for explanation in explanations if rank else ():
        explanation["policies"] = [
            with_rank(settings, verdict, explanation["pool"], explanation["sample_id"])
            for verdict in explanation["policies"]
        ]
    if as_json:
        show_json(explanations)
        return
    for explanation in explanations:
        _show(explanation)


def _show(explanation: dict[str, Any]) -> None:
    position = f"  pool {explanation['pool']}, shard {explanation['shard']}, row {explanation['source_row']}"
    show(Text.assemble((explanation["sample_id"], "bold"), position))
    for name in ("caption", "url", "image_sha256"):
        if explanation[name] is not None:
            show(f"  {name:<13} {explanation[name]}")
    raw = explanation["raw"]
    show(f"  raw           {raw['status']}" + (f": {raw['reason']}" if raw["reason"] else ""))
    origin = {name: value for name, value in explanation["origin"].items() if isinstance(value, str)}
    if origin:
        show("  from          " + ", ".join(f"{name} {value}" for name, value in origin.items()))
    for signal in explanation["origin"].get("rights_signals", ()):
        show(f"  declared      {signal['kind']} {signal['value']} ({signal['where']})")
    if not explanation["policies"]:
        show("  No verdicts yet: `curate run " + explanation["pool"] + "` makes them.")
        return
    for verdict in explanation["policies"]:
        dot = ("  ● ", COLOURS[verdict["verdict"]])
        show(Text.assemble(dot, f"{verdict['policy']:<16} {visible(sentence(verdict))}"))
    signals = {name: value for verdict in explanation["policies"] for name, value in verdict["signals"].items()}
    shown = {name: value for name, value in signals.items() if value is not None and math.isfinite(value)}
    if shown:
        text = ", ".join(f"{name} {value:.4g}" for name, value in shown.items())
        show(f"  signals       {text}")
    seen = {made["table"]: made for verdict in explanation["policies"] for made in verdict["made_by"]}
    for name, made in sorted(seen.items()):
        if not made["models"] and stage_of(name) not in ("raw", "signals", "fused"):
            continue  # --json has them all
        models = ", ".join(f"{m['address']} {m['weights_sha256'][:8]}" for m in made["models"] or [])
        code = made["code_version"][:8]
        data, run = (made["content_sha256"] or "")[:12], (made["run_id"] or "")[:8]
        line = f"  {name:<26} code {code}  data {data:<12}  run {run:<8}  {models}".rstrip()
        show(line)

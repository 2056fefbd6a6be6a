"""The table of commands: name, function, one line of help, panel. A command's module is loaded when it is called.

A command is a function of any file of this folder, or of the folder `commands/` of another room, under
`@command(NAME, PANEL)`. `curate --help` is drawn from the texts of the files alone; a test holds them against what
Python reads.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])


class Entry(NamedTuple):
    """One command. `name`: its words; `target`: module of this package and function."""

    name: str
    target: str
    help: str
    panel: str


#: Panels of `curate --help`; a group stands where its first command does.
PANELS = ("Pools", "Health", "Scores", "Why, and what if", "Subsets", "Evaluation", "People")

#: Commands in the order of the help. Those that are not here come after them, file by file.
_ORDER = (
    "demo", "look", "plan", "run", "refit", "retry", "explore", "ui", "pool add", "pool list", "pool set",
    "pool remove", "pool remove-shard", "pool word-weights", "verify", "doctor", "score", "methods", "icc explain",
    "icc train-bridge", "why", "diff", "show lineage", "show cost", "drift freeze", "drift show", "drift accept",
    "export", "release create", "release list", "release show", "release diff", "release verify", "summary",
    "takedown add", "takedown apply", "evaluate captions", "evaluate compare", "evaluate clip", "annotate sample",
    "annotate benchmark", "annotate rate", "annotate merge", "annotate candidates", "annotate rank", "annotate judge",
    "agreement scores", "agreement raters", "agreement rankings", "reward train", "reward evaluate",
)  # fmt: skip

#: Spellings of before: an option of `run` → the command that it is now.
FORMER: Mapping[str, str] = {"--dry-run": "curate plan", "--refit-cuts": "curate refit"}

GROUPS: Mapping[str, str] = {
    "pool": "Declare, list, change and remove pools.",
    "icc": "Explain an ICC score; train what its semantic teacher needs.",
    "show": "Show what a subset was made from, and what it has cost.",
    "drift": "Canary scores of every model build, and their drift.",
    "release": "Subsets under names that never change: freeze, compare, check.",
    "takedown": "Take samples down: denylist, purge, certificate.",
    "evaluate": "Measure captions, retrieval and what subsets are worth.",
    "annotate": "Draw, rate and rank captions; merge ratings into labels.",
    "agreement": "How scores agree with ratings, and raters with each other.",
    "reward": "Learn which captions people prefer (Compress & Align).",
}


def command(name: str, panel: str) -> Callable[[Function], Function]:
    """Declare a function as the command of these words, shown in this panel with the first line of its docstring."""
    return lambda function: function


_PACKAGE = Path(__file__).parents[1]
_DECLARED = re.compile(
    r'^@command\("([^"]+)", "([^"]+)"\)\ndef (\w+)\(.*?^ {4}"""(.+?)(?:""")?$', re.MULTILINE | re.DOTALL
)


@functools.cache
def entries() -> tuple[Entry, ...]:
    """All commands, in the order of the help: read from the files' text, since importing them takes seconds."""
    found = [
        Entry(name, f"{'.'.join(path.relative_to(_PACKAGE).with_suffix('').parts)}:{function}", line, panel)
        for path in sorted([*_PACKAGE.glob("cli/*.py"), *_PACKAGE.glob("*/commands/*.py")])
        for name, panel, function, line in _DECLARED.findall(path.read_text(encoding="utf-8"))
    ]
    places = {name: place for place, name in enumerate(_ORDER)}
    return tuple(sorted(found, key=lambda one: (PANELS.index(one.panel), places.get(one.name, len(places)))))


def load(entry: Entry) -> Any:
    """The function of a command; imports its module."""
    module, function = entry.target.split(":")
    return getattr(import_module(f"curation_assets.{module}"), function)


def takes_home(words: Sequence[str]) -> bool:
    """Whether the command that the words begin with has the option --home; imports its module."""
    names = {entry.name: entry for entry in entries()}
    entry = names.get(" ".join(words[:2])) or names.get(" ".join(words[:1]))
    return entry is not None and "home" in signature(load(entry)).parameters


class LazyCommand(TyperCommand):
    """A name and a line of help, until it is called."""

    def __init__(self, entry: Entry, panel: str | None) -> None:
        super().__init__(name=entry.name.split()[-1], help=entry.help, rich_help_panel=panel)
        self.entry = entry
        self.others: dict[str, LazyCommand] = {}  # such as `methods check`, where `methods` is a command, too

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command, which takes over from here.

        A pool is `--pool NAME` or an argument: the first of commands about a pool, the last of others.
        """
        if args and args[0] in self.others:
            return self.others[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent=parent, **extra)
        single = typer.Typer(add_completion=False)
        single.command(self.name)(load(self.entry))
        command = typer.main.get_command(single)
        _keep_brackets(command)
        pool = next((parameter for parameter in command.params if parameter.name in ("pool", "pools")), None)
        if pool is None:
            return command.make_context(info_name, args, parent=parent, **extra)
        if pool.param_type_name == "argument":
            return command.make_context(info_name, _pools_first(args), parent=parent, **extra)
        command.allow_extra_args = True  # one word more than the command has arguments for
        ctx = command.make_context(info_name, args, parent=parent, **extra)
        if ctx.args:
            if len(ctx.args) > 1 or ctx.params["pool"]:
                ctx.fail(f"Got unexpected extra argument ({' '.join(ctx.args)})")
            ctx.params["pool"] = [ctx.args.pop()] if getattr(pool, "multiple", False) else ctx.args.pop()
        return ctx


def _pools_first(args: list[str]) -> list[str]:
    """Words of a command whose first arguments are pools: `--pool NAME` counts as such an argument."""
    pools, others, words = [], [], iter(args)
    for word in words:
        if word == "--":
            others += [word, *words]
        elif word == "--pool":
            pools += [next(words, word)]
        elif word.startswith("--pool="):
            pools.append(word.removeprefix("--pool="))
        else:
            others.append(word)
    return [*pools, *others]


def _keep_brackets(command: Any) -> None:
    """Show help as it is written: Typer reads it as Rich's markup, where `[extra]` is a style and vanishes."""
    for described in (command, *command.params):
        if getattr(described, "help", None):
            described.help = escape(described.help)


def command_tree() -> dict[str, Any]:
    """Name → command or group, as `curate --help` lists them."""
    tree: dict[str, Any] = {}
    for entry in entries():
        group, _, name = entry.name.rpartition(" ")
        if not group:
            tree[name] = LazyCommand(entry, entry.panel)
            continue
        if isinstance(tree.get(group), LazyCommand):
            tree[group].others[name] = LazyCommand(entry, None)
            continue
        if group not in tree:
            tree[group] = TyperGroup(
                name=group, help=GROUPS.get(group, ""), rich_help_panel=entry.panel, no_args_is_help=True, commands={}
            )
        tree[group].add_command(LazyCommand(entry, None))
    return tree

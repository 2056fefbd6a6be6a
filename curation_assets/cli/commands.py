"""The table of commands: name, function, one line of help, panel. A command's module is loaded when it is called.

`curate --help` is drawn from this table alone; a test holds each line against the first line of the function's
docstring.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from inspect import signature
from typing import Any, NamedTuple

import typer
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup


class Entry(NamedTuple):
    """One command. `name`: its words; `target`: module of this package and function."""

    name: str
    target: str
    help: str


#: Panel of `curate --help` → what it lists, in order; a group stands where its first command does.
PANELS: Mapping[str, tuple[Entry, ...]] = {
    "Pools": (
        Entry("demo", "run:demo", "Run everything on the embedded pool of rendered scenes and write the report."),
        Entry("run", "run:run", "Bring every table of a pool up to date; what is up to date is not made again."),
        Entry(
            "retry",
            "retry:retry",
            "Fetch failed downloads and ask models for failed rows again; what depends on them follows.",
        ),
        Entry(
            "explore",
            "explore:explore",
            "Open a pool in a viewer: thumbnails, values, verdicts, and a plane where like samples lie near.",
        ),
        Entry("ui", "ui:ui", "Open the Dagster UI and daemon on 127.0.0.1: the same graph and sensors."),
        Entry("pool add", "pool:add", "Declare a pool; its kind and columns are recognised from what lies at PATH."),
        Entry("pool list", "pool:list_all", "Show the declared pools."),
        Entry("pool set", "pool:set_values", "Change values of a pool's declaration; comments stay."),
        Entry(
            "pool remove",
            "pool:remove",
            "Remove a pool's declaration; its tables stay where --tables is not given.",
        ),
        Entry("pool remove-shard", "pool:remove_shard", "Delete all tables of shards that the source no longer has."),
        Entry("pool word-weights", "word_weights:word_weights", "Weigh the words of captions for `score relatedness`."),
    ),
    "Health": (
        Entry("verify", "verify:verify", "Read every file again and compare it with its recorded sha256; repair."),
        Entry(
            "doctor",
            "doctor:doctor",
            "Look at what every run needs: packages, GPU, disks, Dagster, pools; exit 1 where something is broken.",
        ),
    ),
    "Scores": (
        Entry("score", "score:score", "Score every caption, or image–caption pair, of a file."),
        Entry("methods", "score:methods", "List every scoring method with unit, direction, source and profiles."),
        Entry("icc explain", "explain:explain_icc", "Score a caption with ICC, and again without each of its words."),
        Entry(
            "icc train-bridge",
            "train_bridge:train_bridge_of_captions",
            "Fit the linear layer from CLIP's text feature into the frozen language model (ICC §4.2).",
        ),
    ),
    "Why, and what if": (
        Entry("why", "why:why", "Show why a sample was kept or dropped, by which model at which threshold."),
        Entry(
            "diff",
            "diff:diff",
            "Show what two policies keep apart, or one with another cut or against a file of ids.",
        ),
        Entry("show lineage", "lineage:lineage", "Show shards, data versions, code and models that made a subset."),
        Entry("show cost", "cost:cost", "Show wall, CPU and GPU seconds and bytes per stage and per kept sample."),
        Entry("drift freeze", "drift:freeze", "Draw samples of a pool and store them with their hashes."),
        Entry("drift show", "drift:show_drift", "Show every statistic with its limits; exit 1 when one is outside."),
        Entry("drift accept", "drift:accept", "Take the builds in force as the references of later builds."),
    ),
    "Subsets": (
        Entry("export", "export:export", "Export a subset for trainers and catalogues, with a manifest of hashes."),
        Entry("release create", "release:create", "Freeze a subset under a name that never changes."),
        Entry("release list", "release:list_all", "List the releases, oldest first."),
        Entry("release show", "release:show_release", "Show what a release holds, what made it, and its hash."),
        Entry("release diff", "release:diff", "Show which samples a release has that another has not, and why."),
        Entry(
            "release verify", "release:verify", "Check a release from its folder alone; exit 1 if anything is wrong."
        ),
        Entry("takedown add", "takedown:add", "Put samples on the denylist, as salted hashes."),
        Entry("takedown apply", "takedown:apply", "Purge what is on the denylist; write a certificate per pool."),
    ),
    "Evaluation": (
        Entry(
            "evaluate captions",
            "evaluate_captions:captions",
            "Measure captions against references: BLEU, METEOR, ROUGE-L, CIDEr-D, SPICE, BERTScore, CLIPScore.",
        ),
        Entry(
            "evaluate suite",
            "evaluate_suite:suite",
            "Score every data set of a table of metrics; correlate measures of the data sets with the scores.",
        ),
        Entry(
            "evaluate compare",
            "evaluate_compare:compare",
            "Compare what models trained on subsets are worth, over pools and seeds, with intervals.",
        ),
        Entry("tables", "paper_tables:tables", "Write the papers' tables for these pools, beside the printed numbers."),
        Entry(
            "evaluate clip",
            "clip:train_clip_of_export",
            "Train CLIP from scratch on exported tars, at one of DataComp's scales.",
        ),
        Entry(
            "evaluate retrieval",
            "evaluate_sets:retrieval",
            "Measure recall@k between the images and captions of a set, both ways.",
        ),
        Entry(
            "evaluate zero-shot",
            "evaluate_sets:zero_shot",
            "Measure zero-shot classification of a set's images by its class names.",
        ),
    ),
    "People": (
        Entry("annotate sample", "annotate:sample", "Draw captions evenly over the (VBA, SBA) plane, to be rated."),
        Entry("annotate benchmark", "annotate:benchmark", "Draw a caption benchmark by the ICC paper's rules."),
        Entry("annotate rate", "annotate:rate", "Rate every caption of a file 0–3; stop whenever you like."),
        Entry("annotate merge", "annotate:merge", "Write the mean rating per caption, as a pool's option `labels`."),
        Entry("annotate candidates", "annotate:candidates", "Gather captions of each image, to be ranked."),
        Entry("annotate rank", "annotate:rank", "Rank the captions of every image; stop whenever you like."),
        Entry("agreement scores", "agreement:scores", "Correlate a file of scores with a file of ratings."),
        Entry("agreement raters", "agreement:raters", "Show how well raters agree, all together and two by two."),
        Entry(
            "agreement rankings",
            "agreement:rankings",
            "Show how alike raters order captions, all together and two by two.",
        ),
        Entry("reward train", "reward:train", "Train a reward model on ranked captions and judge it on unseen images."),
        Entry("reward evaluate", "reward:evaluate", "Show how often a model orders two captions as people do."),
    ),
}

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

#: Commands of versions before 0.3 → what to run instead. The longest that fits is taken.
REMOVED: Mapping[str, str] = {
    "plan": "curate run POOL --dry-run",
    "recut": "curate run POOL --refit-cuts",
    "explain-icc": "curate icc explain",
    "train-sba": "curate icc train-bridge",
    "agree": "curate agreement scores",
    "word-weights": "curate pool word-weights",
    "lineage": "curate show lineage",
    "cost": "curate show cost",
    "label": "curate annotate rate",
    "label sample": "curate annotate sample",
    "label benchmark": "curate annotate benchmark",
    "label merge": "curate annotate merge",
    "label agreement": "curate agreement raters",
    "reward candidates": "curate annotate candidates",
    "reward rank": "curate annotate rank",
    "reward agreement": "curate agreement rankings",
    "bench": "python benchmarks/quality.py, or python benchmarks/throughput.py, of the repository",
    "bench embedded": "python benchmarks/quality.py of the repository",
    "bench icc": "python benchmarks/throughput.py of the repository",
}


def entries() -> list[Entry]:
    """All commands, in the order of the help."""
    return [entry for listed in PANELS.values() for entry in listed]


def load(entry: Entry) -> Any:
    """The function of a command; imports its module."""
    module, function = entry.target.split(":")
    return getattr(import_module(f"curation_assets.cli.{module}"), function)


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

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command, which takes over from here.

        A pool is `--pool NAME` or an argument: the first of commands about a pool, the last of others.
        """
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
    for panel, listed in PANELS.items():
        for entry in listed:
            group, _, name = entry.name.rpartition(" ")
            if not group:
                tree[name] = LazyCommand(entry, panel)
                continue
            if group not in tree:
                tree[group] = TyperGroup(
                    name=group, help=GROUPS[group], rich_help_panel=panel, no_args_is_help=True, commands={}
                )
            tree[group].add_command(LazyCommand(entry, None))
    return tree


def check_not_removed(args: list[str]) -> None:
    """Raises ValueError for a command of an earlier version, with what to run instead."""
    for count in (2, 1):
        old = " ".join(args[:count])
        if len(args) >= count and old in REMOVED:
            raise ValueError(f"there is no `curate {old}` since version 0.3; run {REMOVED[old]}")

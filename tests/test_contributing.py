"""CONTRIBUTING's promises: how many files each kind of addition touches, in a copy of the package that then runs."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from curation_assets.defs.instance_records import InstanceRecords
from curation_assets.flow.holder import all_holders
from tests.mutants import HOLDERS, MUTANTS, Mutant
from tests.support.paths import REPOSITORY

PACKAGE = "curation_assets"
HOME = "home"  # in the copy: what a user adds without touching the package
#: Addition → files it may touch, as CONTRIBUTING.md states them.
PROMISED = {
    "method": 1, "recipe": 1, "policy": 1, "teacher": 1, "trainer": 1, "export format": 1, "role": 3,
    "stage table": 1, "option": 1, "holder": 1, "command": 1, "kind of source": 1,
    "method of a user's own": 0, "recipe of a user's own": 0, "policy of a user's own": 0,
    "source of a user's own": 0,
}  # fmt: skip

METHOD = '''
"""Commas: how many a caption has."""

import numpy as np

from curation_assets.methods import Example, Method, Values


def commas(caption, comma_counter):
    """Number of commas of each caption."""
    return Values.of(np.array(comma_counter.count_commas(caption), dtype=np.float64))


class _ExampleCounter:
    def count_commas(self, captions):
        return [text.count(",") for text in captions]


METHOD = Method(
    function=commas,
    unit="commas",
    bounds=(0.0, float("inf")),
    source="this test",
    default=True,
    summary="Number of commas in the caption.",
    made_for=("short",),
    example=Example(columns={"caption": ["a", "a, b"]}, value=[0.0, 1.0], roles={"comma_counter": _ExampleCounter()}),
)
'''

RECIPE = """-- Grain: one row per row of raw.samples.
-- applied: per shard
-- made for: short
-- test: unique shard source_row
with final as (
    select
        * exclude (reason),
        1 - commas_score as quality,
        reason
    from fused.scaled
)

select * from final
"""

POLICY = """name: plain
rank_by: fused.few_commas
fraction: 0.5
description: The half with the fewest commas.
"""

#: A method of which lower values are better, a recipe over it and policies that rank by both.
LOWER = {
    "curation_assets/methods/digits.py": METHOD.replace("commas", "digits")
    .replace("Commas", "Digits")
    .replace("caption, comma_counter", "caption")
    .replace("comma_counter.count_digits(caption)", "[sum(one.isdigit() for one in text) for text in caption]")
    .replace(', roles={"comma_counter": _ExampleCounter()}', "")
    .replace('["a", "a, b"]', '["a", "1"]')
    .replace("    unit=", '    direction="lower",\n    unit='),
    "dbt_like_sql/fused/few_digits.sql": RECIPE.replace("1 - commas_score", "digits_score"),
    "curation_assets/selection/policies/wordy.yaml": POLICY.replace("plain", "wordy").replace(
        "fused.few_commas", "signals.digits"
    ),
    "curation_assets/selection/policies/few_digits.yaml": POLICY.replace("plain", "few_digits").replace(
        "few_commas", "few_digits"
    ),
    "curation_assets/selection/policies/one_digit.yaml": POLICY.replace("plain", "one_digit")
    .replace("fused.few_commas", "signals.digits")
    .replace("fraction: 0.5", "threshold: 1"),
}

#: In a home: a method (a caption's nines), a recipe over it, a policy that keeps those with one.
OWN_METHOD = (
    LOWER["curation_assets/methods/digits.py"]
    .replace("digits", "nines")
    .replace("one.isdigit()", "one == '9'")
    .replace('["a", "1"]', '["a", "9"]')
    .replace('direction="lower"', 'direction="higher"')
)
OWN_RECIPE = RECIPE.replace("1 - commas_score", "nines_score")
OWN_POLICY = POLICY.replace("plain", "with_nine").replace("few_commas", "nine").replace("fraction: 0.5", "threshold: 1")

TEACHER = '''
"""Reversal: does a caption read the same backwards?"""

import numpy as np

from curation_assets.methods import TEACHER_DETAILS, Example, Method, Values


def reversal(caption):
    """Share of characters that stay in place when the caption is reversed."""
    back = [text[::-1] for text in caption]
    value = np.array([np.mean([a == b for a, b in zip(x, y)]) for x, y in zip(caption, back)])
    columns = ([[text] for text in back], [[float(one)] for one in value], back, np.clip(value, 0.01, 0.99).tolist())
    return Values.of(value, **dict(zip(TEACHER_DETAILS, columns)))


METHOD = Method(
    function=reversal,
    unit="share of characters",
    bounds=(0.0, 1.0),
    source="this test",
    default=True,
    stage="teachers",
    summary="Share of characters that stay in place when the caption is reversed.",
    made_for=("abstract",),
    example=Example(columns={"caption": ["abba", "abcb"]}, value=[1.0, 0.0]),
)
'''

TRAINER = '''
"""A trainer that counts captions."""

from curation_assets.evaluation.trainers import Trainer, metrics_frame


def counting(task):
    return metrics_frame({"captions": float(len(task.training))})


TRAINER = Trainer(
    name="counting",
    train=counting,
    gives="metrics",
    reads="images",
    budget={"samples_seen": 1, "batch_size": 1},
    shown_metrics=("captions",),
    measures="how many captions there are",
)
'''

EXPORT = '''
"""A list of ids, one a line."""

from curation_assets.outputs.exports.formats import export_format
from curation_assets.outputs.exports.manifest import exporting


@export_format("ids", "ids, one a line")
def export_ids(subset, out):
    """`out`/ids.txt."""
    with exporting(subset, out, "ids") as export:
        (export.folder / "ids.txt").write_text("\\n".join(subset.sample_ids))
    return out / "ids.txt"
'''

STAGE_TABLE = '''
"""Captions with few commas, as the pool's option `most_commas` has it."""

import polars as pl

from curation_assets.flow.table import Table
from curation_assets.stages.filtered.options import FilteredOptions


def tables(ctx):
    """One table, of the signal commas."""
    yield Table(
        name="filtered/with_few_commas",
        grain="shard",
        inputs=("signals/commas",),
        version="1",
        compute=_few_commas,
        config=lambda ctx: {"most": FilteredOptions.of(ctx).most_commas},
        description="One row per sample: whether it has few commas.",
    )


def _few_commas(ctx, shard):
    most = FilteredOptions.of(ctx).most_commas
    return ctx.store.read("signals/commas", shard).select("sample_id", few=pl.col("value") <= most)
'''

OPTION = '''
"""Options of the stage filtered."""

from curation_assets.core.options import Options
from curation_assets.core.validation import Whole, checked, setting


@checked("options")
class FilteredOptions(Options):
    """How many commas are few."""

    most_commas: Whole = setting(default=1, ge=0, unit="commas", description="Captions with so many have few.")
'''

HOLDER = '''
"""A caption that a program of its own keeps beside the tables."""

from curation_assets.flow.holder import Holder
from curation_assets.stores.damage import Damage


class Kept(Holder):
    """The file costs/kept.bin."""

    def purge(self, ctx, tables, takedown):
        path = ctx.store.root / "costs" / "kept.bin"
        if path.is_file() and takedown.needles.matches_in(path):
            path.unlink()

    def searched(self, ctx, tables, takedown):
        return (ctx.store.root / "costs").glob("kept.bin")

    def checks(self, ctx, tables):
        for path in (ctx.store.root / "costs").glob("kept.bin"):
            yield lambda: [Damage(path, "kept", "no caption", path.read_text(), "remove it")]
'''

COMMAND = '''
"""curate commas: how many a caption has."""

from curation_assets.cli.commands import command
from curation_assets.cli.common import show


@command("commas", "Scores")
def commas(caption: str) -> None:
    """Count the commas of a caption."""
    show(str(caption.count(",")))
'''

SOURCE = '''
"""Captions of one JSON document: a list of texts."""

import json

from curation_assets.sources.own_rows import Row, RowSource


class JsonDocument(RowSource):
    order = 15
    images = "none"

    def recognises(self, path):
        return path.is_file() and path.suffix == ".json"

    def read(self, path):
        return (Row(caption) for caption in json.loads(path.read_text()))


SOURCE = JsonDocument()
'''

OWN_SOURCE = (
    SOURCE.replace("JsonDocument", "Lines")
    .replace(".json", ".lines")
    .replace("json.loads(path.read_text())", "path.read_text().splitlines()")
)

CONTRACT = '''@runtime_checkable
class CommaCounter(Engine, Protocol):
    """Counts commas."""

    def count_commas(self, captions: Sequence[str]) -> list[int]:
        """(N,) captions → N counts."""
        ...


'''

ENGINE = '''
"""The role comma_counter: counts a character that a file names."""

from curation_assets.engines.addresses import local_folder


class Counter:
    def __init__(self, identity, character):
        self.identity, self.character = identity, character

    def count_commas(self, captions):
        return [text.count(self.character) for text in captions]


def load(request):
    """A folder with character.txt."""
    return Counter(request.identity, (local_folder(request.address) / "character.txt").read_text().strip())
'''

#: Runs in the copy: what was added is there, and a pool of captions reaches a subset through it.
CHECK = """
import json, sys
from pathlib import Path

import numpy as np
import polars as pl
from typer.testing import CliRunner

import curation_assets
from curation_assets.cli import app
from curation_assets.core.settings import load_settings
from curation_assets.flow.context import PoolContext
from curation_assets.flow.declared import made_for, read_weights, teacher_names
from curation_assets.flow.freshness import materialise_table
from curation_assets.flow.graph import tables_of
from curation_assets.flow.run_table import run_with_upstream
from curation_assets.operations.takedown import begin_takedown, finish_takedown
from curation_assets.operations.verify import verify_pool
from curation_assets.outputs.exports.formats import get_format
from curation_assets.outputs.exports.subset import find_subset
from curation_assets.sources.base import source_of
from curation_assets.sources.contract import check_source
from curation_assets.sources.declaration import add_pool, add_world_pool
from curation_assets.stores.denylist import add_to_denylist

home = Path(sys.argv[1])
sys.path.append(sys.argv[2])  # docs/
from make_options import options_page

rng = np.random.default_rng(0)
captions = [f"thing {at}" + "," * (at % 4) + " end" for at in range(40)]
pl.DataFrame({"caption": captions}).write_csv(home / "captions.csv")
pl.DataFrame({"caption": captions[:20], "rating": [float(at % 4) for at in range(20)]}).write_csv(home / "labels.csv")
settings = load_settings(home, "embedded")

# a method, its role, a recipe, a policy and an export format, from captions to a list of ids
low = ["wordy", "few_digits", "one_digit", "with_nine"]
texts = {"distil": False, "policies": ["plain", *low], "downstream": False, "most_commas": 2, "methods": ["nines"]}
add_pool(settings, "texts", home / "captions.csv", options=texts)
ctx = PoolContext.open(settings, "texts")
run_with_upstream(ctx, "filtered/subsets", "filtered/with_few_commas")
few = ctx.store.scan("filtered/with_few_commas").collect()["few"].to_list()
try:
    add_pool(settings, "wrong", home / "captions.csv", options={"most_commas": -1})
except ValueError as error:
    refused = str(error)
quality = ctx.store.scan("fused/few_commas").collect()
verdicts = ctx.store.scan("filtered/plain").collect()
samples = ctx.store.scan("raw/samples").select("sample_id", "caption").collect()
kept_by = {
    name: samples.join(ctx.store.scan(f"filtered/{name}").filter(pl.col("verdict") == "kept").collect(), on="sample_id")
    for name in low
}
ids = get_format("ids").write(find_subset(ctx, "plain"), home / "exported").read_text().split()

# a teacher: with scores of the other two planted, its own column is scaled, weighted and fused with theirs
add_pool(settings, "distilled", home / "captions.csv", options={"distil": True, "labels": str(home / "labels.csv")})
distilled = PoolContext.open(settings, "distilled")
tables, shard = tables_of(distilled), distilled.shards()[0]
names = teacher_names(distilled)
sample = pl.DataFrame({"sample_id": [f"{at:032x}" for at in range(40)], "caption": captions})
scores = sample.with_columns(pl.Series(name, rng.uniform(0.1, 0.9, 40)) for name in names)
plant = dict(code_version="1", inputs=[], config={})
distilled.store.write("standardised/teacher_scores", scores, shard, **plant)
rated = scores[:20].with_columns(pl.Series("rating", [float(at % 4) for at in range(20)]))
distilled.store.write("standardised/labelled_scores", rated, None, **plant)
materialise_table(distilled, tables["distilled/fusion_weights"], tables=tables)
materialise_table(distilled, tables["distilled/targets"], shard, tables=tables)

# a kind of source: found by `pool add`, registered by a run, and a takedown names the file that is its owner's
document = home / "captions.json"
document.write_text(json.dumps(captions))
kind = add_pool(settings, "documents", document, options={"distil": False, "downstream": False}).kind
documents = PoolContext.open(settings, "documents")
run_with_upstream(documents, "raw/samples")
before = documents.store.scan("raw/samples").collect()
add_to_denylist(home, [("uid", before["sample_id"][3])])
begun = begin_takedown(documents, tables_of(documents))
run_with_upstream(documents, "raw/samples")
certificate, _ = finish_takedown(documents, tables_of(documents), begun)
after = documents.store.scan("raw/samples").collect()
(home / "a.lines").write_text("one\\ntwo\\n")
lines = add_pool(settings, "lines", home / "a.lines", options={"distil": False, "downstream": False})
run_with_upstream(PoolContext.open(settings, "lines"), "raw/samples")
own_captions = PoolContext.open(settings, "lines").store.scan("raw/samples").collect()["caption"].to_list()
rules = check_source(source_of(kind), kind, document, load_settings(home / "contract", "embedded"))

add_world_pool(settings, "scenes", size=10, seed=0)
scenes = tables_of(PoolContext.open(settings, "scenes"))
listed = CliRunner().invoke(app, ["methods", "--markdown"]).output
# a holder: its file is verified, purged and searched
kept_file, sample = ctx.store.root / "costs" / "kept.bin", samples.row(7, named=True)
kept_file.write_text(sample["caption"])
damages = [str(damage.kind) for damage in verify_pool(ctx, tables_of(ctx)).damages]
add_to_denylist(home, [("uid", sample["sample_id"])])
begun = begin_takedown(ctx, tables_of(ctx))
is_purged = not kept_file.exists()
kept_file.write_text(sample["caption"])
left = finish_takedown(ctx, tables_of(ctx), begun)[0]["left"]

print(json.dumps({
    "few": few,
    "refused": refused,
    "options": [line for line in options_page().splitlines() if "most_commas" in line],
    "damages": damages,
    "is_purged": is_purged,
    "left": [(Path(one["path"]).name, one["what"]) for one in left],
    "caption": sample["caption"],
    "command": [CliRunner().invoke(app, words).output for words in (["commas", "a,b,c"], ["--help"])],
    "package": curation_assets.__file__,
    "source": {
        "kind": kind,
        "captions": before["caption"].to_list() == captions,
        "statuses": before["status"].unique().to_list(),
        "emptied": after["caption"].null_count(),
        "left": certificate["left"],
        "sources_not_ours": certificate["sources_not_ours"] == [str(document)],
        "faults": [rule.fault for rule in rules if rule.fault],
        "rules": len(rules),
    },
    "own_source": [lines.kind, own_captions],
    "tables": sorted(scenes),
    "listed": [line.split("`")[1] for line in listed.splitlines() if "`" in line],
    "made_for": {name: made_for(distilled).get(name) for name in ("commas", "few_commas", "reversal")},
    "quality": quality["quality"].to_list(),
    "kept": sorted(verdicts.filter(pl.col("verdict") == "kept")["sample_id"]),
    "exported": sorted(ids),
    "few_digits": {name: sorted(kept["caption"]) for name, kept in kept_by.items()},
    "teachers": names,
    "weights": len(read_weights(distilled).weights),
    "targets": distilled.store.read("distilled/targets", shard)["value"].drop_nulls().len(),
    "teacher_inputs": scenes["standardised/teacher_scores"].inputs,
    "report_inputs": scenes["downstream/report"].inputs,
    "separated": scenes["downstream/separation"].inputs,
}))
"""


def contents(root: Path) -> dict[str, str]:
    """Files of the copy and a digest of each, models aside."""
    files = (path for part in (PACKAGE, "dbt_like_sql") for path in (root / part).rglob("*") if path.is_file())
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if "weights" not in path.parts and "__pycache__" not in path.parts
    }


def insert(path: Path, before: str, text: str) -> None:
    source = path.read_text(encoding="utf-8")
    assert source.count(before) == 1, f"{path}: expected {before!r} once"
    path.write_text(source.replace(before, text + before), encoding="utf-8")


def add(kind: str, root: Path) -> None:
    """Make one addition as CONTRIBUTING.md describes it."""
    package = root / PACKAGE
    pools = f"../{HOME}/pools"
    new = {
        "method": ("methods/commas.py", METHOD),
        "recipe": ("../dbt_like_sql/fused/few_commas.sql", RECIPE),
        "policy": ("selection/policies/plain.yaml", POLICY),
        "teacher": ("methods/reversal.py", TEACHER),
        "trainer": ("evaluation/trainers/counting.py", TRAINER),
        "export format": ("outputs/exports/ids.py", EXPORT),
        "role": ("engines/comma_counter.py", ENGINE),
        "stage table": ("stages/filtered/with_few_commas.py", STAGE_TABLE),
        "option": ("stages/filtered/options.py", OPTION),
        "holder": ("stages/filtered/holders.py", HOLDER),
        "command": ("cli/commas.py", COMMAND),
        "kind of source": ("sources/kinds/json_document.py", SOURCE),
        "method of a user's own": (f"{pools}/methods/nines.py", OWN_METHOD),
        "recipe of a user's own": (f"{pools}/recipes/nine.sql", OWN_RECIPE),
        "policy of a user's own": (f"{pools}/policies/with_nine.yaml", OWN_POLICY),
        "source of a user's own": (f"{pools}/sources/lines.py", OWN_SOURCE),
    }
    name, text = new[kind]
    (package / name).parent.mkdir(parents=True, exist_ok=True)
    (package / name).write_text(text.lstrip("\n"), encoding="utf-8")
    if kind == "role":
        insert(package / "core/roles.py", "#: role name → contract", CONTRACT)
        model = root / "counter"
        model.mkdir()
        (model / "character.txt").write_text(",")
        insert(
            package / "core/profiles/embedded.yaml",
            "  captioner: embedded:captioner #",
            f"  comma_counter: path:{model}\n",
        )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Mapping[str, int]]:
    """A copy of the package with every addition, and how many files each touched."""
    root = tmp_path_factory.mktemp("copy")
    for part in (PACKAGE, "dbt_like_sql"):
        shutil.copytree(REPOSITORY / part, root / part, ignore=shutil.ignore_patterns("__pycache__", "weights"))
    (root / PACKAGE / "embedded" / "weights").symlink_to(REPOSITORY / PACKAGE / "embedded" / "weights")
    touched, before = {}, contents(root)
    for kind in PROMISED:
        add(kind, root)
        after = contents(root)
        touched[kind] = sum(before.get(name) != digest for name, digest in after.items())
        before = after
    for name, text in LOWER.items():
        (root / name).write_text(text.lstrip("\n"), encoding="utf-8")
    return root, touched


def in_copy(root: Path, *arguments: str) -> str:
    """Standard output of Python in the copy, which imports no other checkout."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "CURATION_WORKERS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def facts(copy: tuple[Path, Mapping[str, int]]) -> dict[str, Any]:
    """What a program in the copy reports."""
    (copy[0] / "check.py").write_text(CHECK, encoding="utf-8")
    output = in_copy(copy[0], "check.py", str(copy[0] / HOME), str(REPOSITORY / "docs/contributor"))
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert Path(found["package"]).is_relative_to(copy[0])
    return found


def test_additions_touch_as_many_files_as_promised(copy: tuple[Path, Mapping[str, int]]) -> None:
    assert dict(copy[1]) == PROMISED
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for kind, count in PROMISED.items():
        assert f"| {kind} | {count} |" in page, "CONTRIBUTING.md states another number"


@pytest.mark.slow
def test_a_method_a_role_a_recipe_a_policy_and_a_format_run(facts: dict[str, Any]) -> None:
    """Captions have 0 to 3 commas; the score is 1 − commas / 3 and half of the 40 are kept."""
    assert {"signals/commas", "fused/commas_range", "fused/few_commas", "filtered/plain", "filtered/plain_cut"} <= set(
        facts["tables"]
    )
    assert {"commas", "reversal"} <= set(facts["listed"])
    assert facts["made_for"] == {"commas": ["short"], "few_commas": ["short"], "reversal": ["abstract"]}
    assert facts["quality"] == pytest.approx([1 - (at % 4) / 3 for at in range(40)])
    assert len(facts["kept"]) == 20
    assert facts["exported"] == facts["kept"]
    assert {"signals/commas", "fused/few_commas"} <= set(facts["separated"])


@pytest.mark.slow
def test_what_lies_in_the_home_runs_without_touching_the_package(facts: dict[str, Any]) -> None:
    """A 9 is in four of the captions "thing 0 end" to "thing 39 end"."""
    assert sorted(one.split()[1].rstrip(",") for one in facts["few_digits"]["with_nine"]) == ["19", "29", "39", "9"]
    assert facts["own_source"] == ["lines", ["one", "two"]]


@pytest.mark.slow
def test_a_stage_table_reads_an_option_of_its_own(facts: dict[str, Any]) -> None:
    """Captions have 0 to 3 commas; few are at most 2, the pool's own value."""
    assert {"filtered/with_few_commas"} <= set(facts["tables"])
    assert facts["few"].count(True) == 30
    assert facts["refused"].endswith("options.most_commas must be an integer ≥ 0, got -1")
    assert facts["options"] == ["| `most_commas` | an integer ≥ 0 | `1` | commas | Captions with so many have few. |"]


@pytest.mark.slow
def test_a_holder_is_verified_purged_and_searched(facts: dict[str, Any]) -> None:
    assert facts["damages"] == ["kept"]
    assert facts["is_purged"]
    assert facts["left"] == [["kept.bin", facts["caption"]]]


@pytest.mark.slow
def test_a_command_runs_and_is_in_the_help(facts: dict[str, Any]) -> None:
    counted, shown = facts["command"]
    assert counted.strip() == "2"
    assert "Count the commas of a caption." in shown


@pytest.mark.slow
def test_of_a_method_of_direction_lower_the_lowest_are_kept(facts: dict[str, Any]) -> None:
    """Ten captions have one digit ("thing 7 end"), thirty have two; half of the 40 are kept, or those of one digit."""
    kept = facts["few_digits"]
    short = {caption for caption in kept["one_digit"] if sum(one.isdigit() for one in caption) == 1}
    assert len(kept["one_digit"]) == len(short) == 10
    assert len(kept["wordy"]) == len(kept["few_digits"]) == 20
    assert short <= set(kept["wordy"])
    assert short <= set(kept["few_digits"])


@pytest.mark.slow
def test_a_teacher_and_a_trainer_take_part(facts: dict[str, Any]) -> None:
    assert facts["teachers"] == ["vba", "sba", "reversal"], "a new teacher's column comes last"
    assert facts["weights"] == 3
    assert facts["targets"] == 40
    assert "teachers/reversal" in facts["teacher_inputs"]
    assert {"teachers/reversal", "downstream/counting"} <= set(facts["tables"])
    assert "downstream/counting" in facts["report_inputs"]


@pytest.mark.slow
def test_a_source_is_found_registered_and_taken_down(facts: dict[str, Any]) -> None:
    assert facts["source"] == {
        "kind": "json_document",
        "captions": True,
        "statuses": ["kept"],
        "emptied": 1,
        "left": [],
        "sources_not_ours": True,
        "faults": [],
        "rules": 8,
    }


@pytest.mark.slow
def test_the_contract_suite_tests_what_was_added(copy: tuple[Path, Mapping[str, int]]) -> None:
    shutil.copy(REPOSITORY / "tests/methods/test_contract.py", copy[0] / "test_contract.py")
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-q", "test_contract.py", "-k"]
    output = in_copy(copy[0], *words, "commas or reversal or digits")
    assert output.strip().splitlines()[-1].startswith("3 passed")


# -- faults that `make mutants` puts in


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_put_into_a_line_that_is_there(mutant: Mutant) -> None:
    text = (REPOSITORY / mutant.file).read_text(encoding="utf-8")
    assert text.count(mutant.before) == 1
    if mutant.file.endswith(".py"):
        compile(text.replace(mutant.before, mutant.after), mutant.file, "exec")
    assert all((REPOSITORY / tests).is_file() for tests in mutant.tests)


def test_every_holder_that_purges_is_left_out_once() -> None:
    purging = {type(holder).__name__ for holder in all_holders() if "purge" in vars(type(holder))}
    assert {*purging, InstanceRecords.__name__} == set(HOLDERS)

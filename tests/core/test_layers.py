"""The layers: pure folders stay pure, only the wiring imports Dagster, only settings.py reads the environment."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY

ROOT = REPOSITORY
PACKAGE = ROOT / "curation_assets"
PURE_FOLDERS = ("methods", "numeric")
HEAVY = {"dagster", "torch", "transformers", "duckdb", "open_clip", "diffusers", "requests", "sentence_transformers"}
MACHINE = {"time", "random", "os", "subprocess", "socket", "urllib", "datetime", "tempfile"}
DRAWING_BY_ARGUMENT = {"Generator", "default_rng", "SeedSequence", "PCG64"}


def modules() -> dict[str, Path]:
    """Dotted name → file of every module of the package."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def nodes_of(text: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(text)))


@cache
def facts_of(name: str) -> tuple[set[str], list[str], set[str], list[str], list[str]]:
    """What a module imports, does that is impure, reads of the environment, loads, and reads by pattern."""
    nodes = nodes_of(MODULES[name].read_text(encoding="utf-8"))
    used = imports(nodes, package_of(name)), impurities(nodes), environment_reads(nodes)
    return *used, unsafe_loads(nodes), reads_by_pattern(nodes)


def imports(nodes: list[ast.AST], package: str = "") -> set[str]:
    """Absolute dotted names that a module imports anywhere in its body; `from a import b` gives a and a.b."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(filter(None, [*package.split(".")[: len(package.split(".")) - node.level + 1], base]))
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found


def impurities(nodes: list[ast.AST]) -> list[str]:
    """What a pure module must not do, one word each."""
    roots = {name.split(".")[0] for name in imports(nodes)}
    found = sorted(roots & (HEAVY | MACHINE))
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("open", "eval", "exec"):
            found.append(node.func.id)
        if isinstance(node, ast.Attribute):
            if node.attr in ("read_text", "write_text", "read_bytes", "write_bytes"):
                found.append(node.attr)
            owner = node.value
            if isinstance(owner, ast.Attribute) and owner.attr == "random" and node.attr not in DRAWING_BY_ARGUMENT:
                found.append(f"random.{node.attr}")
    return found


def closure(start: set[str]) -> set[str]:
    """Modules of the package that `start` import, directly or not, themselves included."""
    reached: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name in reached or name not in MODULES:
            continue
        reached.add(name)
        waiting += facts_of(name)[0]
    return reached


def package_of(name: str) -> str:
    return name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]


#: Imports methods of a user's own, as `pkgutil` does the package's; no method reads by it.
FINDER = "curation_assets.core.own_modules"


def test_pure_modules_stay_pure() -> None:
    in_folders = {name for name in MODULES if name.split(".")[1:2] and name.split(".")[1] in PURE_FOLDERS}
    pure = closure(in_folders) - {FINDER}
    assert {"curation_assets.numeric.fusion", "curation_assets.methods.sieve", "curation_assets.core.roles"} <= pure
    assert not {name for name in pure if ".stores" in name or ".engines" in name or ".flow" in name}
    found = {name: facts_of(name)[1] for name in sorted(pure)}
    assert {name: used for name, used in found.items() if used} == {}, "reached from methods or numeric"


def test_the_check_itself_can_fail() -> None:
    text = "import torch\nfrom time import sleep\nnp.random.rand(3)\nopen('x')\nrng: np.random.Generator"
    assert set(impurities(nodes_of(text))) == {"torch", "time", "random.rand", "open"}
    assert imports(nodes_of("from . import a\nfrom ..b import c"), "p.q") == {"p.q", "p.q.a", "p.b", "p.b.c"}


def test_only_the_wiring_imports_dagster() -> None:
    users = {name for name in MODULES if any(module.split(".")[0] == "dagster" for module in facts_of(name)[0])}
    allowed = {
        name for name in MODULES if name.startswith(("curation_assets.defs", "curation_assets.foreign.dagster_"))
    } | {"curation_assets.definitions"}
    assert users - allowed == set()


def environment_reads(nodes: list[ast.AST]) -> set[str]:
    """Our variables (CURATION_…) that a module reads; setting one for a child process is no reading."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            arguments = node.args if node.func.attr in ("get", "getenv", "pop") else []
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            arguments = [node.slice]
        else:
            continue
        texts = [a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        found |= {text for text in texts if text.startswith("CURATION_")}
    return found


def test_only_settings_reads_our_environment_variables() -> None:
    readers = {name for name in MODULES if facts_of(name)[2]}
    assert readers == {"curation_assets.core.settings"}
    assert environment_reads(
        nodes_of("import os\nos.environ['CURATION_A'] = 'x'\nprint(os.environ['CURATION_B'])")
    ) == {"CURATION_B"}


def unsafe_loads(nodes: list[ast.AST]) -> list[str]:
    """Ways to load a file that can run its code."""
    found = sorted({name.split(".")[0] for name in imports(nodes)} & {"pickle", "joblib", "dill", "cloudpickle"})
    for node in nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        keywords = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
        called = ast.unparse(node.func)
        if called == "torch.load" and keywords.get("weights_only") is not True:
            found.append("torch.load without weights_only=True")
        if called in ("np.load", "numpy.load") and keywords.get("allow_pickle") is True:
            found.append("numpy.load with allow_pickle=True")
    return found


def test_nothing_is_loaded_that_can_run_code() -> None:
    found = {name: facts_of(name)[3] for name in MODULES}
    assert {name: loads for name, loads in found.items() if loads} == {}
    assert len(unsafe_loads(nodes_of("import pickle\ntorch.load(p)\nnp.load(p, allow_pickle=True)"))) == 3
    assert unsafe_loads(nodes_of("torch.load(p, weights_only=True)")) == []


def loaded_by(code: str, names: tuple[str, ...]) -> list[str]:
    """Which of these modules a fresh process has imported after running `code`."""
    code = f"{code}\nimport sys; print('loaded', [name for name in {names} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: list[str] = ast.literal_eval(run.stdout.splitlines()[-1].removeprefix("loaded "))
    return found


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("dagster", "duckdb", "numpy", "pandas", "polars", "pyarrow", "scipy", "torch")
    heavy += ("transformers", "typer", "rich", "PIL")
    assert loaded_by("import curation_assets", heavy) == []


@pytest.mark.slow
def test_scoring_icc_and_explaining_it_load_torch_and_no_model_library() -> None:
    """A head on four layers of MiniLM: transformers and what it imports would take longer than all the rest."""
    heavy = ("dagster", "diffusers", "duckdb", "open_clip", "pandas", "pyarrow", "requests", "scipy.sparse")
    heavy += ("scipy.special", "scipy.stats", "sentence_transformers", "sklearn", "torch")
    heavy += ("torchvision", "transformers")
    code = """
import polars as pl
from curation_assets.core.settings import load_profile
from curation_assets.engines import load_engine
from curation_assets.methods import get_method
from curation_assets.scoring.samples import score_samples
profile = load_profile("embedded").with_roles(student="embedded:icc_student")
samples = pl.DataFrame({"sample_id": ["0" * 32], "caption": ["a red kite"]})
engines = {role: load_engine(role, profile) for role in get_method("icc").roles}
scored = score_samples(get_method("icc"), samples, engines)
assert scored["value"][0] > 0.5, scored
"""
    assert loaded_by(code, heavy) == ["torch"]
    bank = """
scenes, cosines = load_engine("scene_bank", profile).nearest_scenes(["a red kite"], 3)
assert "kite" in scenes[0][0], scenes
"""
    assert loaded_by(code + bank, heavy) == ["torch"]


PARQUET = "curation_assets.stores.parquet"
GLOBBING = {
    "pl": {"read_parquet", "scan_parquet", "read_parquet_schema", "scan_ndjson", "scan_ipc"},
    "duckdb": {"read_parquet", "from_parquet", "read_csv", "read_json"},
    "glob": {"glob", "iglob"},
}


def reads_by_pattern(nodes: list[ast.AST]) -> list[str]:
    """Calls and SQL that take a path for a pattern."""
    found = []
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    literal = [call.func for call in calls if any(keyword.arg == "glob" for keyword in call.keywords)]
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in GLOBBING.get(node.value.id, ()):
                found.append(f"{node.value.id}.{node.attr}")
            if node.attr in ("read_csv", "scan_csv") and node not in literal:
                found.append(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "read_parquet(" in node.value:
            found.append(node.value)
    return found


def test_parquet_is_read_in_one_place() -> None:
    """Where `[ ] * ?` of a path are taken as they are."""
    found = {name: facts_of(name)[4] for name in MODULES if name != PARQUET}
    assert {name: reads for name, reads in found.items() if reads} == {}
    assert len(reads_by_pattern(nodes_of("pl.scan_parquet(p); f\"select * from read_parquet('{p}')\""))) == 2
    assert reads_by_pattern(nodes_of("pl.scan_csv(p, glob=False); pl.read_csv(p)")) == ["pl.read_csv"]

"""The room `foreign`: nothing private of another library is used elsewhere, and each use can be left out."""

import ast
import logging
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from curation_assets.foreign.guards import GUARDS, Guard
from tests.support.paths import REPOSITORY

PACKAGE = REPOSITORY / "curation_assets"
#: Attributes with an underscore that are documented: `os._exit`, and `_asdict` and `_replace` of a named tuple.
DOCUMENTED = {"_exit", "_asdict", "_replace"}


def private_uses(tree: ast.Module) -> Iterator[str]:
    """Imports of private modules or names, private attributes of what this file does not define, modules of others that
    are changed, and `package._module` as text, such as for `python -m`.

    An attribute counts as this file's own where a class or function here has it, or where something here sets it.
    """
    own: set[str] = set()
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            own.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "object.__setattr__":  # of a frozen class
            own.add(ast.literal_eval(node.args[1]))
        elif isinstance(node, ast.Import):
            imported |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("curation_assets"):
            imported |= {alias.asname or alias.name for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_private_path(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            yield from (
                f"{node.module}.{alias.name}" for alias in node.names if _is_private_path(f"{node.module}.{alias.name}")
            )
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            if isinstance(node.ctx, ast.Load) and node.attr not in own | DOCUMENTED:
                yield ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if all(part.isidentifier() for part in node.value.split(".")) and _is_private_path(node.value, start=1):
                yield node.value
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and _root(target) in imported:
                    yield ast.unparse(target)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_private_path(name: str, start: int = 0) -> bool:
    return any(_is_private(part) for part in name.split(".")[start:])


#: Switches that their libraries document, set as documented.
SWITCHES = {
    ("stores/images.py", "Image.MAX_IMAGE_PIXELS"),
    ("evaluation/models/open_clip_main.py", "Image.MAX_IMAGE_PIXELS"),
    ("training/bridge.py", "torch.backends.cuda.matmul.allow_tf32"),
}


@pytest.mark.slow
def test_private_parts_of_other_libraries_are_used_in_one_room() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), use)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "foreign"
        for use in private_uses(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == SWITCHES, "move it into curation_assets/foreign/, behind a guard (docs/contributor/upgrading.md)"


@pytest.mark.parametrize(
    "line",
    [
        "from dagster._core.events import ASSET_EVENTS",
        "import dagster_webserver._x",
        "from click import _compat",
        "def f(step):\n    return step._metadata_accumulator",
        "call([python, '-m', 'dagster._daemon'])",
        "import webdataset\nwebdataset.shuffle = 1",
    ],
)
def test_the_search_finds_what_it_is_for(line: str) -> None:
    assert len(list(private_uses(ast.parse(line)))) == 1


def test_what_is_ones_own_is_no_private_use() -> None:
    text = "class A:\n    def set(self):\n        self._x = 1\n    def get(self, other):\n        return other._x\n"
    assert list(private_uses(ast.parse(text + "os._exit(0)"))) == []


# -- guards and versions ----------------------------------------------------------------------------------------------


def test_the_installed_versions_are_those_tried() -> None:
    assert [guard.name for guard in GUARDS if not guard.is_on()] == []
    assert len({guard.name for guard in GUARDS}) == len(GUARDS) > 5


def test_a_guarded_library_has_an_upper_bound_that_its_guards_do_not_pass() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = {one.name: one.specifier for one in map(Requirement, project["dependencies"])}
    for guard in GUARDS:
        assert _upper(SpecifierSet(guard.tried)) == _upper(bounds[guard.library]), guard
    for name in ("dagster-webserver", "typer"):
        assert _upper(bounds[name]), name


def _upper(specifiers: SpecifierSet) -> list[str]:
    return [one.version for one in specifiers if one.operator == "<"]


def test_a_version_that_was_not_tried_turns_a_guard_off_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard("faster", "packaging", "<1", "it is slow")
    with caplog.at_level(logging.WARNING):
        assert not guard.is_on()
        assert not guard.is_on()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "is not among the versions tried (<1): without faster, it is slow" in line


def test_the_environment_turns_guards_off_by_name_or_all(monkeypatch: pytest.MonkeyPatch) -> None:
    guard, other = GUARDS[:2]
    monkeypatch.setenv("CURATION_FOREIGN_OFF", f"{guard.name}, nothing")
    assert (guard.is_on(), other.is_on()) == (False, True)
    monkeypatch.setenv("CURATION_FOREIGN_OFF", "all")
    assert not any(one.is_on() for one in GUARDS)


def test_guards_load_no_library() -> None:
    script = "import sys, curation_assets.foreign.guards; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert {"dagster", "transformers", "webdataset", "packaging"}.isdisjoint(done.stdout.split())


def test_every_guard_is_used() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if path.name != "guards.py")
    defined = ast.parse((PACKAGE / "foreign" / "guards.py").read_text(encoding="utf-8")).body
    names = [
        node.targets[0].id
        for node in defined
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and "Guard(" in ast.unparse(node.value)
    ]
    assert len(names) == len(GUARDS)
    assert [name for name in names if name not in text] == []


def test_a_file_of_the_room_is_about_one_library() -> None:
    own = {path.stem for path in (PACKAGE / "foreign").glob("*.py")} - {"__init__", "guards"}
    assert {name.split("_")[0] for name in own} == {"dagster", "open", "transformers"}
    assert Path(PACKAGE / "foreign" / "__init__.py").read_text().startswith('"""')

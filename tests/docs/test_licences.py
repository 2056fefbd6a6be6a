"""The page of licences lists every direct dependency and every folder of shipped weights, as their metadata states."""

import sys

from tests.support.paths import REPOSITORY, WEIGHTS

sys.path.insert(0, str(REPOSITORY / "docs" / "contributor"))

from make_licences import NOT_INSTALLED, PAGE, TERMS, direct_dependencies, licence_of, page


def test_the_page_is_current() -> None:
    """Packages of extras that are not installed here keep the line that they have."""
    expected, written = page().splitlines(), PAGE.read_text(encoding="utf-8").splitlines()
    assert len(written) == len(expected), "run make docs"
    differing = [line for line, old in zip(expected, written, strict=True) if line != old]
    assert [line for line in differing if NOT_INSTALLED not in line] == [], "run make docs"


def test_every_dependency_states_something() -> None:
    packages = direct_dependencies()
    assert len(packages) > 50
    assert licence_of("numpy").startswith("BSD-3-Clause")  # an expression
    assert licence_of("typer") == "MIT"
    assert licence_of("scipy") == "BSD License"  # whose text is pages long: its classifier


def test_every_folder_of_weights_has_its_terms() -> None:
    assert sorted(TERMS) == sorted(path.name for path in WEIGHTS.iterdir() if path.is_dir())

"""pyproject.toml, requirements.lock and what is installed agree; the lock has hashes and no addresses."""

import importlib.metadata
import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.support.paths import REPOSITORY

LOCK = (REPOSITORY / "requirements.lock").read_text()
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
SHA256 = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def locked() -> dict[str, list[tuple[Requirement, int]]]:
    """Name → its entries (several where platforms differ): the pin and the number of hashes."""
    entries: dict[str, list[tuple[Requirement, int]]] = {}
    for line in LOCK.replace("\\\n", " ").splitlines():
        pin, *_ = line.split("--hash", 1)
        requirement = Requirement(pin.strip())
        entries.setdefault(canonicalize_name(requirement.name), []).append((requirement, len(SHA256.findall(line))))
    return entries


def version_of(pin: Requirement) -> str:
    """The version of `name==version`."""
    (specifier,) = pin.specifier
    assert specifier.operator == "==", f"{pin} is no pin"
    return specifier.version


LOCKED = locked()
EXTRAS = PROJECT["optional-dependencies"]
#: Extras that `make lock` takes in, so that `make install` brings them.
IN_LOCK = re.findall(r"--extra (\w+)", (REPOSITORY / "Makefile").read_text())
OWN = [text for text in EXTRAS["dev"] if Requirement(text).name == PROJECT["name"]]  # extras that dev takes over
DECLARED = [
    Requirement(text)
    for text in (
        *PROJECT["dependencies"],
        *(text for extra in IN_LOCK if extra != "dev" for text in EXTRAS[extra]),
        *(text for text in EXTRAS["dev"] if text not in OWN),
        *(text for own in OWN for extra in sorted(Requirement(own).extras) for text in EXTRAS[extra]),
    )
]


def here() -> dict[str, str]:
    """Name → locked version on this platform and Python."""
    return {
        name: version_of(pin)
        for name, pins in LOCKED.items()
        for pin, _ in pins
        if pin.marker is None or pin.marker.evaluate()
    }


@pytest.mark.parametrize("requirement", DECLARED, ids=lambda requirement: requirement.name)
def test_every_declared_dependency_is_locked_at_an_allowed_version(requirement: Requirement) -> None:
    pins = LOCKED.get(canonicalize_name(requirement.name))
    assert pins, f"{requirement} is not in requirements.lock; run make lock"
    for pin, _ in pins:
        assert requirement.specifier.contains(version_of(pin)), f"{requirement} is locked at {pin}; run make lock"


def test_make_install_brings_what_the_readme_s_commands_need() -> None:
    assert "curate explore" in (REPOSITORY / "README.md").read_text()
    assert {"dev", "explore"} <= set(IN_LOCK)
    assert "embedding-atlas" in LOCKED


def test_every_entry_is_one_version_with_hashes() -> None:
    without = [str(pin) for pins in LOCKED.values() for pin, hashes in pins if hashes == 0 or not version_of(pin)]
    assert without == []


def test_the_lock_holds_no_addresses_and_no_options() -> None:
    assert "://" not in LOCK
    assert [line for line in LOCK.splitlines() if line.startswith(("-", "#"))] == []


def test_pins_satisfy_what_the_installed_packages_require() -> None:
    """Offline: metadata of the packages of this environment that are installed at the locked version."""
    pins = here()
    problems = []
    checked = 0
    for distribution in importlib.metadata.distributions():
        name = canonicalize_name(distribution.name)
        if pins.get(name) != distribution.version:
            continue
        for requirement in map(Requirement, distribution.requires or ()):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            pin = pins.get(canonicalize_name(requirement.name))
            checked += 1
            if pin is None or not requirement.specifier.contains(pin, prereleases=True):
                problems.append(f"{name} {distribution.version} requires {requirement}, locked: {pin}")
    assert checked > 100
    assert problems == []


def test_the_lock_covers_every_supported_python() -> None:
    """A marker may leave out Windows, another interpreter or a later Python, never a Python that we support."""
    supported = SpecifierSet(PROJECT["requires-python"])
    pythons = [f"3.{minor}" for minor in range(8, 20) if supported.contains(f"3.{minor}")]
    assert pythons == ["3.11", "3.12", "3.13"]
    platforms = [
        {"sys_platform": "linux", "platform_machine": "x86_64"},
        {"sys_platform": "linux", "platform_machine": "aarch64"},
        {"sys_platform": "darwin", "platform_machine": "arm64"},
    ]
    common = {
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
    }
    for requirement in DECLARED:
        pins = [pin for pin, _ in LOCKED[canonicalize_name(requirement.name)]]
        for python in pythons:
            for platform in platforms:
                environment = {**common, **platform, "python_version": python, "python_full_version": f"{python}.0"}
                assert any(pin.marker is None or pin.marker.evaluate(environment) for pin in pins), (
                    requirement.name,
                    environment,
                )

"""pyproject.toml, both locks and what is installed agree; the locks have hashes and no addresses."""

import importlib.metadata
import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from curation_assets.core.errors import ModelUnavailableError
from curation_assets.core.roles import ROLES
from curation_assets.core.settings import load_profile
from curation_assets.engines import identify_engine
from curation_assets.engines.needs import needs_of
from curation_assets.engines.presence import parts_of
from tests.support.paths import REPOSITORY

LOCK = (REPOSITORY / "requirements.lock").read_text()
DEV_LOCK = (REPOSITORY / "requirements-dev.lock").read_text()  # what extras and tests add to it
MOST_PACKAGES = 200  # of what everybody gets
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
SHA256 = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def locked(text: str) -> dict[str, list[tuple[Requirement, int]]]:
    """Name → its entries (several where platforms differ): the pin and the number of hashes."""
    entries: dict[str, list[tuple[Requirement, int]]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        pin, *_ = line.split("--hash", 1)
        requirement = Requirement(pin.strip())
        entries.setdefault(canonicalize_name(requirement.name), []).append((requirement, len(SHA256.findall(line))))
    return entries


def version_of(pin: Requirement) -> str:
    """The version of `name==version`."""
    (specifier,) = pin.specifier
    assert specifier.operator == "==", f"{pin} is no pin"
    return specifier.version


OF_RUNS, OF_DEVELOPERS = locked(LOCK), locked(DEV_LOCK)
LOCKED = {**OF_RUNS, **OF_DEVELOPERS}
EXTRAS = PROJECT["optional-dependencies"]
OWN = [text for text in EXTRAS["dev"] if Requirement(text).name == PROJECT["name"]]  # extras that dev takes over
IN_DEV = sorted(extra for text in OWN for extra in Requirement(text).extras)
REGULAR = [Requirement(text) for text in PROJECT["dependencies"]]
DECLARED = [
    *REGULAR,
    *(Requirement(text) for text in EXTRAS["dev"] if text not in OWN),
    *(Requirement(text) for extra in IN_DEV for text in EXTRAS[extra]),
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
    assert pins, f"{requirement} is in neither lock; run make lock"
    for pin, _ in pins:
        assert requirement.specifier.contains(version_of(pin)), f"{requirement} is locked at {pin}; run make lock"


def test_make_install_brings_what_a_run_needs_and_no_more() -> None:
    """Servers for tests, Ray, Kubernetes' client and the viewer are of the second lock or of nobody's."""
    assert len(OF_RUNS) <= MOST_PACKAGES
    assert not OF_RUNS.keys() & OF_DEVELOPERS.keys()
    assert {canonicalize_name(requirement.name) for requirement in REGULAR} <= OF_RUNS.keys()
    mission = (
        "dagster dagster-webserver torch transformers diffusers open-clip-torch sentence-transformers duckdb polars"
    )
    assert {*mission.split(), "img2dataset"} <= OF_RUNS.keys()
    others = "moto cfn-lint ray kubernetes embedding-atlas litellm numba openlineage-python imagehash pytest"
    assert set(others.split()) <= OF_DEVELOPERS.keys()
    assert "accelerate" not in OF_RUNS


def test_every_entry_is_one_version_with_hashes() -> None:
    without = [str(pin) for pins in LOCKED.values() for pin, hashes in pins if hashes == 0 or not version_of(pin)]
    assert without == []


def test_the_lock_holds_no_addresses_and_no_options() -> None:
    assert "://" not in LOCK + DEV_LOCK
    assert [line for line in (LOCK + DEV_LOCK).splitlines() if line.startswith(("-", "#"))] == []


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


def _made(*arguments: str, target: str = "install") -> str:
    """What make would run, in an environment that is not there yet."""
    command = ["make", "--no-print-directory", "-n", target, "VENV=/nowhere/venv", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout


def test_without_cuda_all_else_keeps_its_hashes(tmp_path: Path) -> None:
    """`make install TORCH=cpu`: of PyTorch's index come torch and torchvision at the locked versions, nothing else."""
    default, cpu = _made(), _made("TORCH=cpu")
    assert "make install TORCH=cpu leaves out" in default
    assert "requirements-dev.lock" not in default + cpu
    assert "requirements-dev.lock" in _made(target="test")
    assert "https://" not in default + cpu
    assert "--compile-bytecode --require-hashes -r requirements.lock" in default
    (made,) = [line for line in cpu.splitlines() if line.startswith("awk")]
    installs = [line for line in cpu.splitlines() if " pip install " in line and "--python" in line]
    hashed, plain, own = installs
    assert "--require-hashes" in hashed
    assert "requirements.cpu.lock" in hashed
    assert "--torch-backend" not in hashed + own
    versions = {name: version_of(LOCKED[name][0][0]) for name in ("torch", "torchvision")}
    assert plain.split("--torch-backend")[1].split() == [
        "cpu",
        *(f"{name}=={version}" for name, version in versions.items()),
    ]
    page = (REPOSITORY / "docs" / "user" / "install.md").read_text()
    assert plain.split("--torch-backend")[1] in page  # who installs by hand types the same versions
    assert made.rpartition(" > ")[0] in page
    rest = tmp_path / "rest.lock"
    with rest.open("w") as file:
        subprocess.run(["sh", "-c", made.rpartition(" > ")[0]], cwd=REPOSITORY, check=True, stdout=file)
    left = locked(rest.read_text())
    left_out = OF_RUNS.keys() - left.keys()
    assert {"torch", "torchvision", "triton", "nvidia-cublas", "cuda-toolkit"} <= left_out
    assert all(name in versions or name == "triton" or name.startswith(("nvidia-", "cuda-")) for name in left_out)
    assert all(left[name] == LOCKED[name] for name in left)
    needed = {  # by what stays: only torch itself and what its index brings
        canonicalize_name(requirement.name)
        for name in left
        for requirement in map(Requirement, requires_of(name))
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }
    assert needed & left_out <= {"torch", "torchvision"}


def requires_of(name: str) -> list[str]:
    """What an installed package requires; nothing is known of one that is not installed."""
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def test_extras_that_sentences_name_are_declared_and_come_with_the_second_lock() -> None:
    """A role whose engine imports an extra's package says which."""
    named = [needs_of(role) for role in ROLES if needs_of(role).package]
    assert {one.extra for one in named} == {"texts", "ocr"}
    for one in named:
        assert one.package in [Requirement(text).name for text in EXTRAS[one.extra]]
        assert one.extra in IN_DEV
    sources = [path.read_text() for path in (REPOSITORY / "curation_assets").rglob("*.py")]
    used = {extra for text in sources for extra in re.findall(r"install_extra\(['\"](\w+)['\"]\)", text)}
    assert {"photos", "objects", "ray", "c2pa", "lineage"} <= used
    assert used <= set(EXTRAS)


def test_a_role_whose_extra_is_missing_says_so_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> Any:
        return None if name in ("spacy", "rapidocr", "wordfreq") else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    profile = load_profile("photos")
    for role, extra in (("parser", "texts"), ("lexicon", "texts"), ("text_spotter", "ocr")):
        with pytest.raises(ModelUnavailableError, match=rf"{role} needs the package .*curation_assets\[{extra}\]"):
            identify_engine(role, profile)
        (part,) = parts_of(role, profile)
        assert part.state == "missing"
        assert f"[{extra}]" in part.advice
    assert identify_engine("student", profile.with_roles(student="embedded:icc_student"))

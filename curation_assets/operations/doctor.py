"""What this installation needs and whether it is there: one finding per line, each with what to do.

Every check stands alone: it imports what it needs itself, has a time limit, and a check that breaks is a finding.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from curation_assets.core.errors import few
from curation_assets.foreign.guards import GUARDS

State = Literal["ok", "warning", "broken"]
PACKAGE = "curation_assets"
GIB = 2**30
LITTLE_BYTES, TOO_FEW_BYTES = 5 * GIB, GIB // 2
FEW_FILES = 20_000  # a pool of 100 shards makes some 5,000
SECONDS = 15.0  # for a check


@dataclass(frozen=True)
class Finding:
    """`broken`: something that every run needs. `warning`: what only parts need, or what will fail soon."""

    check: str
    state: State
    sentence: str
    advice: str = ""


Check = Callable[[], Iterator[Finding]]


def findings_of(checks: Mapping[str, Check], seconds: float = SECONDS) -> list[Finding]:
    """Run all checks side by side; what they yield, in their order. None lasts longer than `seconds`."""
    found: dict[str, list[Finding]] = {name: [] for name in checks}

    def run(name: str, check: Check) -> None:
        try:
            for finding in check():
                found[name].append(finding)
        except Exception as error:  # a broken installation raises anything, anywhere: that is what is looked for
            words = f"{type(error).__name__}: {str(error).strip() or 'without a message'}"
            found[name].append(Finding(name, "broken", words.splitlines()[0], "mend that, then look again"))

    threads = {
        name: threading.Thread(target=run, args=(name, check), name=name, daemon=True) for name, check in checks.items()
    }
    for thread in threads.values():
        thread.start()
    until = time.monotonic() + seconds
    for name, thread in threads.items():
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            sentence = f"no answer within {seconds:g} s"
            found[name] = [*found[name], Finding(name, "warning", sentence, "look at what holds it up: disk, network")]
    return [finding for name in checks for finding in list(found[name])]


# -- Python and packages ----------------------------------------------------------------------------------------------


def python() -> Iterator[Finding]:
    """This Python against the range that the package states."""
    from packaging.specifiers import SpecifierSet

    version = ".".join(str(part) for part in sys.version_info[:3])
    wanted = str(metadata.metadata(PACKAGE)["Requires-Python"])
    if SpecifierSet(wanted).contains(version):
        yield Finding("python", "ok", f"{version} ({sys.executable})")
    else:
        yield Finding("python", "broken", f"{version}, expected {wanted}", "make an environment with such a Python")


def packages() -> Iterator[Finding]:
    """Every dependency: there, within its bounds, and as locked."""
    from packaging.requirements import Requirement

    needed = [Requirement(text) for text in metadata.requires(PACKAGE) or ()]
    needed = [each for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
    versions = {each.name: _version(each.name) for each in needed}
    missing = [each.name for each in needed if versions[each.name] is None]
    outside = [
        f"{each.name} {version} (expected {each.specifier})"
        for each in needed
        if (version := versions[each.name]) is not None and not each.specifier.contains(version, prereleases=True)
    ]
    advice = "pip install --no-deps -r requirements.lock, or pip install curation_assets again"
    if missing:
        yield Finding("packages", "broken", f"missing: {', '.join(missing)}", advice)
    if outside:
        yield Finding("packages", "broken", f"out of bounds: {', '.join(outside)}", advice)
    if not missing and not outside:
        yield Finding("packages", "ok", f"{len(needed)} dependencies within their bounds")
    for guard in (guard for guard in GUARDS if guard.library not in missing and not guard.is_on()):
        sentence = f"{guard.name} of {guard.library} {versions[guard.library]} is off: {guard.gain}"
        yield Finding(
            "packages", "warning", sentence, f"install {guard.library}{guard.tried} (docs/contributor/upgrading.md)"
        )
    lock = _lock_file()
    if lock is not None:
        differ = [
            f"{name} {found} (lock: {locked})"
            for name, locked in _locked(lock).items()
            if (found := _version(name)) is not None and found not in locked
        ]
        if differ:
            yield Finding("lock", "warning", f"{len(differ)} packages are not as locked: {few(differ, 4)}", advice)
        else:
            yield Finding("lock", "ok", f"all as in {lock}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _lock_file() -> Path | None:
    """The lock file of a checkout; a wheel has none."""
    path = Path(__file__).parents[2] / "requirements.lock"
    return path if path.is_file() else None


def _locked(lock: Path) -> dict[str, set[str]]:
    """Name → the versions that the lock has, one per platform where they differ."""
    pins: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock.read_text(encoding="utf-8"), re.MULTILINE):
        pins.setdefault(name, set()).add(version)
    return pins


def torch_and_gpu() -> Iterator[Finding]:
    """torch's build and the GPUs of this machine, without importing torch."""
    version, spec = _version("torch"), find_spec("torch")
    if version is None or spec is None or spec.origin is None:
        yield Finding("torch", "broken", "torch is not installed", "install it for this machine: pip install torch")
        return
    built = re.search(
        r"^cuda[^=]*= *['\"](.*)['\"]", Path(spec.origin).with_name("version.py").read_text(), re.MULTILINE
    )
    build = f"CUDA {built[1]}" if built else "CPU only"
    gpus = _gpus()
    if not gpus:
        yield Finding("torch", "ok", f"{version} ({build}); no GPU is seen, models run on the CPU")
    elif built:
        yield Finding("torch", "ok", f"{version} ({build}); {', '.join(gpus)}")
    else:
        sentence = f"{version} is built for the CPU, and this machine has {', '.join(gpus)}"
        yield Finding("torch", "warning", sentence, "install torch's CUDA build, or go on without the GPU")


def _gpus() -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    done = subprocess.run(
        [program, "--query-gpu=name,memory.total", "--format=csv,noheader"],
        capture_output=True, text=True, timeout=SECONDS / 2, check=False,
    )  # fmt: skip
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def java() -> Iterator[Finding]:
    """What METEOR, SPICE and the Penn Treebank tokeniser run on."""
    from curation_assets.core.errors import ProgramUnavailableError
    from curation_assets.engines.caption_programs import find_java

    try:
        known = find_java()
    except ProgramUnavailableError as error:
        sentence, _, advice = str(error).partition("; ")
        yield Finding("java", "warning", f"{sentence}; METEOR and SPICE give reasons instead of values", advice)
    else:
        yield Finding("java", "ok", f"{known.version} ({known.path})")


# -- disks ------------------------------------------------------------------------------------------------------------


def disks(folders: Mapping[str, Path]) -> Iterator[Finding]:
    """Room, files that may still be made, and whether one can be, where `folders` lie; of the home locks, too."""
    for name, folder in folders.items():
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        usage, files = shutil.disk_usage(there), os.statvfs(there)
        try:
            with tempfile.TemporaryFile(dir=there) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            advice = "make it writable, or name another (--home, TMPDIR, CURATION_CACHE)"
            yield Finding(name, "broken", f"{there}: {error.strerror}", advice)
            continue
        room = f"{folder}: {usage.free / GIB:.1f} of {usage.total / GIB:.0f} GiB free"
        advice = "free some, or name a folder on another disk (--home, TMPDIR, CURATION_CACHE)"
        if usage.free < LITTLE_BYTES:
            yield Finding(name, "broken" if usage.free < TOO_FEW_BYTES else "warning", room, advice)
        elif files.f_files and files.f_favail < FEW_FILES:
            yield Finding(name, "warning", f"{folder}: only {files.f_favail:,} more files fit (inodes)", advice)
        else:
            yield Finding(name, "ok", room)


def caches(cache: Path) -> Iterator[Finding]:
    """The model caches, and whether anything may be fetched into them."""
    from curation_assets.core.settings import hub_is_offline

    hub = Path(
        os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or _user_cache() / "huggingface") / "hub"
    )
    models = len(list(hub.glob("models--*"))) if hub.is_dir() else 0
    offline = hub_is_offline()
    sentence = f"{hub}: {models} models of the hub, {'offline: none is fetched' if offline else 'fetched when needed'}"
    if offline and not models:
        yield Finding(
            "hub cache", "warning", sentence, "profiles with hub: addresses fail; unset HF_HUB_OFFLINE for them"
        )
    else:
        yield Finding("hub cache", "ok", sentence)
    yield Finding("own cache", "ok", f"{cache}{'' if cache.is_dir() else ' (made when needed)'}")


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


# -- pools ------------------------------------------------------------------------------------------------------------


def pools(home: Path) -> Iterator[Finding]:
    """Declarations that do not load, and who holds a pool."""
    from curation_assets.core.settings import load_settings
    from curation_assets.flow.context import PoolContext
    from curation_assets.flow.graph import why_broken
    from curation_assets.sources.declaration import list_pools
    from curation_assets.stores.lease import holder_of

    settings = load_settings(home)
    names = list_pools(settings)
    wrong = 0
    for name in names:
        why = why_broken(settings, name)
        if why is not None:
            wrong += 1
            sentence = f"{name}: {why}"
            advice = f"correct {settings.pools_root / (name + '.yaml')}: the UI and every command of the pool need it"
            yield Finding("pools", "broken", sentence, advice)
            continue
        ctx = PoolContext.open(settings, name)
        if (source := ctx.pool.source) and not ctx.pool.source_path(settings).exists():
            yield Finding(
                "pools", "warning", f"{name}: its source {source} is not there", "mount it, or correct source:"
            )
        holder = holder_of(settings.work(name))
        if holder is not None:
            yield Finding("pools", "ok", f"{name} is held by {holder}; other commands of it wait")
    if not wrong:
        yield Finding("pools", "ok", f"{len(names)} declared under {settings.pools_root}")


def is_broken(findings: Sequence[Finding]) -> bool:
    """Whether something that every run needs is broken."""
    return any(finding.state == "broken" for finding in findings)

"""The compose file and its image, as far as no Docker daemon is needed.

Compose's own client checks the file where it is installed (`docker compose`, or the older docker-compose). The image is
not built here: its lines are read, and what it takes of the lock is computed by its own script.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.support.paths import REPOSITORY

FOLDER = REPOSITORY / "infra/compose"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
OURS = ("code", "webserver", "daemon")
LOCK = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
CUDA = re.compile(r"^(torch|torchvision|triton|nvidia-.*|cuda-.*)$")


def client() -> list[str]:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) and subprocess.run([*command, "version"], capture_output=True).returncode == 0:
            return command
    pytest.skip("neither `docker compose` nor docker-compose is installed here")


def test_compose_accepts_the_file() -> None:
    environment = {**os.environ, "DAGSTER_PG_PASSWORD": "a secret"}
    command = [*client(), "-f", str(FOLDER / "compose.yaml"), "config"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert sorted(services) == sorted((*OURS, "postgres"))


def test_compose_refuses_to_start_without_a_password(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "DAGSTER_PG_PASSWORD"}
    folder = tmp_path / "compose"  # without a .env that a user may have
    folder.mkdir()
    shutil.copy(FOLDER / "compose.yaml", folder)
    done = subprocess.run(
        [*client(), "-f", str(folder / "compose.yaml"), "config"], env=environment, capture_output=True, text=True
    )
    assert done.returncode != 0
    assert "set it in the environment or in .env" in done.stderr


def test_nothing_but_this_machine_reaches_a_port() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert ports == ["127.0.0.1:3000:3000"]


def test_only_what_starts_runs_holds_the_socket_of_docker() -> None:
    holders = {
        name
        for name, service in COMPOSE["services"].items()
        if "docker.sock" in yaml.safe_dump(service.get("volumes", []))
    }
    assert holders == {"daemon", "webserver"}


def test_runs_get_the_environment_and_volume_of_the_code_location() -> None:
    launcher = yaml.safe_load((FOLDER / "dagster.yaml").read_text(encoding="utf-8"))["run_launcher"]["config"]
    daemon: dict[str, Any] = COMPOSE["services"]["daemon"]
    assert set(launcher["env_vars"]) == set(daemon["environment"]), "the daemon hands on what it has"
    assert set(launcher["container_kwargs"]["volumes"]) <= set(daemon["volumes"])
    assert COMPOSE["networks"][launcher["network"]]["name"] == launcher["network"], "compose would add a prefix"
    assert COMPOSE["volumes"]["curation_data"]["name"] == "curation_data"


def test_the_workspace_names_the_service_and_the_port() -> None:
    (entry,) = yaml.safe_load((FOLDER / "workspace.yaml").read_text(encoding="utf-8"))["load_from"]
    command = COMPOSE["services"][entry["grpc_server"]["host"]]["command"]
    assert str(entry["grpc_server"]["port"]) in command
    (own,) = yaml.safe_load((REPOSITORY / "workspace.yaml").read_text(encoding="utf-8"))["load_from"]
    assert own["python_module"]["module_name"] in command
    assert own["python_module"]["location_name"] == entry["grpc_server"]["location_name"]


def lock_of(variant: str) -> str:
    done = subprocess.run(["sh", str(FOLDER / "lock_of.sh"), variant], input=LOCK, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(lock: str) -> set[str]:
    return {Requirement(line.split("\\")[0]).name for line in lock.splitlines() if line[:1].isalnum()}


def test_the_image_on_a_cpu_leaves_out_what_is_of_cuda_and_nothing_else() -> None:
    assert lock_of("cuda") == LOCK
    left_out = names(LOCK) - names(lock_of("cpu"))
    assert left_out == {name for name in names(LOCK) if CUDA.match(name)}
    assert len(left_out) > 10
    replaced = lock_of("torch").split()
    assert {pin.split("==")[0] for pin in replaced} == {"torch", "torchvision"}
    assert all(pin in LOCK for pin in replaced)
    assert lock_of("cpu").count("--hash") > 1000


def test_an_unknown_variant_ends_the_build() -> None:
    done = subprocess.run(["sh", str(FOLDER / "lock_of.sh"), "gpu"], input=LOCK, capture_output=True, text=True)
    assert done.returncode == 2
    assert "got 'gpu'" in done.stderr


def instructions() -> list[tuple[str, str]]:
    """(word, rest) of each instruction, lines joined."""
    lines = [line for line in (FOLDER / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined.splitlines() if line.strip()]


def test_the_image_runs_as_nobody_special_and_installs_by_hash() -> None:
    found = instructions()
    stages = [number for number, (word, _) in enumerate(found) if word == "FROM"]
    last = found[stages[-1] :]
    assert [rest for word, rest in last if word == "USER"] == ["curation"]
    assert not [rest for word, rest in last if word == "RUN" and re.search(r"\b(pip|apt-get|curl|wget)\b", rest)]
    installs = " ".join(rest for word, rest in found if word == "RUN")
    assert "--require-hashes" in installs
    assert "HF_HUB_OFFLINE=1" in " ".join(rest for word, rest in last if word == "ENV")
    assert not [
        rest for word, rest in found if word in ("ARG", "ENV") and re.search(r"(?i)password|secret|token", rest)
    ]


def test_what_the_image_copies_is_there_and_is_let_through() -> None:
    ignore = (FOLDER / "Dockerfile.dockerignore").read_text().split("\n")
    copied = [
        source
        for word, rest in instructions()
        if word == "COPY" and "--from" not in rest
        for source in shlex.split(rest)[:-1]
    ]
    assert len(copied) > 8
    for source in copied:
        assert (REPOSITORY / source).exists(), source
        assert f"!{source.split('/')[0]}" in ignore, source

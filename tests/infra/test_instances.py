"""Instance files of infra/: Dagster loads each, with its storage, launcher and queue, as it does for its commands.

Not tried here: a Docker daemon or a cluster. test_postgres and test_ray try Postgres and Ray with real servers.
"""

from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._config import process_config, resolve_to_config_type
from dagster._core.instance.config import dagster_instance_config
from dagster._core.instance.ref import InstanceRef
from dagster._core.run_coordinator import QueuedRunCoordinator

from curation_assets.defs.run_pools import RunPoolCoordinator
from tests.support.paths import REPOSITORY

INFRA = REPOSITORY / "infra"
FILES = sorted(INFRA.rglob("dagster.yaml"))
ENVIRONMENT = {
    "DAGSTER_HOME": "/opt/dagster",
    "DAGSTER_PG_HOST": "127.0.0.1",
    "DAGSTER_PG_PORT": "5432",
    "DAGSTER_PG_DB": "curation",
    "DAGSTER_PG_USER": "curation",
    "DAGSTER_PG_PASSWORD": "p@ss/word",
    "CURATION_IMAGE": "curation-assets:cpu",
    "RAY_JOBS": "http://127.0.0.1:8265",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=FILES, ids=lambda file: file.parent.name)
def instance_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file of infra/ in a DAGSTER_HOME of its own."""
    home = tmp_path / "dagster.yaml"
    home.write_text(request.param.read_text(encoding="utf-8"), encoding="utf-8")
    return home


def test_there_is_one_for_each_engine() -> None:
    assert {file.parent.name for file in FILES} == {"infra", "compose", "postgres", "ray"}


def test_dagster_accepts_it_and_every_class_that_it_names_accepts_its_config(instance_file: Path) -> None:
    config, _ = dagster_instance_config(str(instance_file.parent))
    assert config["telemetry"] == {"enabled": False}
    assert config["nux"] == {"enabled": False}
    reference = InstanceRef.from_dir(str(instance_file.parent))
    for data in (reference.run_launcher_data, reference.run_coordinator_data, reference.storage_data):
        if data is None or data.module_name == "dagster.core.storage.sql":
            continue
        named = getattr(__import__(data.module_name, fromlist=[data.class_name]), data.class_name)
        result = process_config(resolve_to_config_type(named.config_type()), data.config_dict)
        assert result.success, (data.class_name, result.errors)


def test_secrets_come_from_the_environment(instance_file: Path) -> None:
    content = yaml.safe_load(instance_file.read_text(encoding="utf-8"))
    postgres = content.get("storage", {}).get("postgres", {}).get("postgres_db")
    if postgres is None:
        assert "password" not in yaml.safe_dump(content)
        return
    assert postgres["password"] == {"env": "DAGSTER_PG_PASSWORD"}
    assert postgres["scheme"] == "postgresql+psycopg2"


def test_launchers_are_made_with_their_settings(tmp_path: Path) -> None:
    pytest.importorskip("dagster_docker")
    pytest.importorskip("dagster_ray")
    made = {}
    for name in ("compose", "ray"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "dagster.yaml").write_bytes((INFRA / name / "dagster.yaml").read_bytes())
        made[name] = InstanceRef.from_dir(str(tmp_path / name))
    docker = made["compose"].run_launcher
    assert type(docker).__name__ == "DockerRunLauncher"
    assert docker.image == ENVIRONMENT["CURATION_IMAGE"]
    assert docker.container_kwargs["volumes"] == ["curation_data:/data"]
    assert "DAGSTER_PG_PASSWORD" in docker.env_vars, "its name, not its value"
    ray = made["ray"].run_launcher
    assert type(ray).__name__ == "RayRunLauncher"
    assert ray.address == ENVIRONMENT["RAY_JOBS"]
    coordinator = made["ray"].run_coordinator
    assert isinstance(coordinator, RunPoolCoordinator)
    assert isinstance(coordinator, QueuedRunCoordinator), "Dagster's daemon looks for this class"


def test_limits_are_those_of_the_instance_on_sqlite() -> None:
    """Downloads take turns, as do models on one GPU, wherever the records of runs lie."""
    pools = [yaml.safe_load(file.read_text(encoding="utf-8"))["concurrency"]["pools"] for file in FILES]
    values = yaml.safe_load((INFRA / "helm/values.yaml").read_text(encoding="utf-8"))
    pools.append(values["additionalInstanceConfig"]["concurrency"]["pools"])
    assert all(pool == pools[0] for pool in pools)


def test_a_wrong_field_is_refused(tmp_path: Path) -> None:
    """What the tests above rest on: Dagster's schema refuses what it does not know."""
    text = (INFRA / "postgres/dagster.yaml").read_text(encoding="utf-8").replace("hostname:", "host:")
    (tmp_path / "dagster.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(dg.DagsterInvalidConfigError):
        dagster_instance_config(str(tmp_path))

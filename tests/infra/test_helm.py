"""Values for Dagster's chart: what the chart passes on is accepted by the classes that it is for.

The chart and its schema are in no package, so names of its own (dagsterWebserver, includeConfigInLaunchedRuns, …) are
not tried here. What is: the launcher's and the queue's configuration, and every Kubernetes object in the values.
"""

import re
from typing import Any

import pytest
import yaml
from dagster._config import process_config, resolve_to_config_type

from curation_assets.core.version import __version__
from curation_assets.defs.run_pools import RunPoolCoordinator, load_run_pools
from tests.support.paths import REPOSITORY

VALUES = yaml.safe_load((REPOSITORY / "infra/helm/values.yaml").read_text(encoding="utf-8"))
(DEPLOYMENT,) = VALUES["dagster-user-deployments"]["deployments"]


def snake_case(values: dict[str, Any]) -> dict[str, Any]:
    """Keys as the chart writes them into dagster.yaml: of one level."""
    return {re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower(): value for key, value in values.items()}


def test_the_launcher_accepts_its_config() -> None:
    launcher = pytest.importorskip("dagster_k8s").K8sRunLauncher
    config = snake_case(VALUES["runLauncher"]["config"]["k8sRunLauncher"])
    config["run_k8s_config"] = snake_case(config["run_k8s_config"])
    config |= {
        "service_account_name": "dagster", "instance_config_map": "dagster-instance", "dagster_home": "/opt/dagster",
        "postgres_password_secret": VALUES["global"]["postgresqlSecretName"],
    }  # fmt: skip
    result = process_config(resolve_to_config_type(launcher.config_type()), config)
    assert result.success, result.errors


def test_the_queue_accepts_its_config_and_limits_pools_that_exist() -> None:
    coordinator = VALUES["dagsterDaemon"]["runCoordinator"]["config"]["customRunCoordinator"]
    assert (coordinator["module"], coordinator["class"]) == (RunPoolCoordinator.__module__, RunPoolCoordinator.__name__)
    result = process_config(resolve_to_config_type(RunPoolCoordinator.config_type()), coordinator["config"])
    assert result.success, result.errors
    limited = {limit["value"] for limit in coordinator["config"]["tag_concurrency_limits"]}
    assert limited <= set(load_run_pools(coordinator["config"]["run_pools"]).run_pools)


def test_kubernetes_knows_every_object_of_the_values() -> None:
    """Unknown fields raise in dagster-k8s' reading of the models of Kubernetes' Python client."""
    models = pytest.importorskip("dagster_k8s.models")
    client = pytest.importorskip("kubernetes").client
    for holder in (VALUES["dagsterWebserver"], VALUES["dagsterDaemon"], DEPLOYMENT):
        context = models.k8s_model_from_dict(
            client.V1PodSecurityContext,
            models.k8s_snake_case_dict(client.V1PodSecurityContext, holder["podSecurityContext"]),
        )
        assert context.run_as_non_root is True
    for name, model in (("volumes", client.V1Volume), ("volumeMounts", client.V1VolumeMount), ("env", client.V1EnvVar)):
        for entry in DEPLOYMENT[name]:
            models.k8s_model_from_dict(model, models.k8s_snake_case_dict(model, entry))
    mounted = {mount["name"] for mount in DEPLOYMENT["volumeMounts"]}
    assert mounted == {volume["name"] for volume in DEPLOYMENT["volumes"]}


def test_images_are_of_this_version_and_no_password_is_in_the_file() -> None:
    for holder in (VALUES["dagsterWebserver"], VALUES["dagsterDaemon"], DEPLOYMENT):
        assert holder["image"]["tag"].startswith(f"{__version__}-")
    assert VALUES["postgresql"]["postgresqlScheme"] == "postgresql+psycopg2"
    assert "postgresqlPassword" not in VALUES["postgresql"]
    assert VALUES["generatePostgresqlPasswordSecret"] is False
    assert VALUES["dagsterWebserver"]["service"]["type"] == "ClusterIP"

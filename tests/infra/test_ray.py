"""Dagster's runs as jobs of a real Ray cluster on 127.0.0.1: the UI queues, the daemon launches, Ray runs.

The instance lies in SQLite here, and all nodes are of this machine; infra/ray/dagster.yaml puts it on Postgres.
"""

import json
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

from curation_assets.defs.launch import RANGE_END, RANGE_START, prepare_instance
from curation_assets.defs.run_pools import RUN_POOL
from curation_assets.flow.context import PoolContext
from tests.support.lineage_pools import webdataset_pool
from tests.support.paths import REPOSITORY
from tests.support.ray_cluster import LOOPBACK, ray_cluster
from tests.support.webserver import curate_ui

pytest.importorskip("dagster_ray")
RAW = ("raw/registered_shards", "raw/downloads", "raw/samples")
LAUNCH = """
mutation ($selector: JobOrPipelineSelector!, $tags: [ExecutionTag!]!) {
  launchRun(executionParams: {selector: $selector, mode: "default", executionMetadata: {tags: $tags}}) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on InvalidSubsetError { message }
  }
}
"""


def instance_file(home: Path, jobs_port: int) -> None:
    """infra/ray's own, less Postgres, with run pools of one CPU: all that a node here has."""
    content = yaml.safe_load((REPOSITORY / "infra/ray/dagster.yaml").read_text(encoding="utf-8"))
    del content["storage"]
    config = content["run_launcher"]["config"]["ray"]
    config["address"] = f"http://127.0.0.1:{jobs_port}"
    config["env_vars"] = ["CURATION_HOME", "CURATION_PROFILE=embedded", "DAGSTER_HOME", f"PYTHONPATH={REPOSITORY}"]
    table = yaml.safe_load((REPOSITORY / "infra/ray/run_pools.yaml").read_text(encoding="utf-8"))
    table["run_pools"] = {name: {"dagster-ray/config": {"num_cpus": 1}} for name in table["run_pools"]}
    own = home / "run_pools.yaml"
    own.write_text(yaml.safe_dump(table, sort_keys=False), encoding="utf-8")
    content["run_coordinator"]["config"]["run_pools"] = str(own)
    (home / "dagster").mkdir(parents=True, exist_ok=True)
    (home / "dagster/dagster.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")


def launched(url: str, tables: tuple[str, ...], first: str, last: str) -> str:
    """Id of a run of some tables of a range of shards, started as the UI does."""
    selector = {
        "repositoryLocationName": "curation",
        "repositoryName": "__repository__",
        "pipelineName": "__ASSET_JOB",
        "assetSelection": [{"path": ["photos", *table.split("/")]} for table in tables],
    }
    tags = [{"key": RANGE_START, "value": first}, {"key": RANGE_END, "value": last}]
    body = json.dumps({"query": LAUNCH, "variables": {"selector": selector, "tags": tags}}).encode()
    request = urllib.request.Request(f"{url}/graphql", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = json.load(response)
    assert answer.get("data", {}).get("launchRun", {}).get("__typename") == "LaunchRunSuccess", answer
    return str(answer["data"]["launchRun"]["run"]["runId"])


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_run_of_the_ui_is_a_job_of_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**LOOPBACK, "CURATION_PROFILE": "embedded"}.items():
        monkeypatch.setenv(name, value)
    settings = webdataset_pool(tmp_path, shards=2, per_shard=3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    instance_file(tmp_path, port)
    keys = PoolContext.open(settings, "photos").shards()
    with ray_cluster(jobs_port=port), prepare_instance(settings) as instance:
        instance.add_dynamic_partitions("photos", keys)
        with curate_ui(tmp_path) as url:
            run_id = launched(url, RAW, keys[0], keys[-1])
            for _ in range(300):
                run = instance.get_run_by_id(run_id)
                if run is not None and run.is_finished:
                    break
                time.sleep(2)
        run = instance.get_run_by_id(run_id)
        assert run is not None
        said = [entry.message for entry in instance.all_logs(run_id)]
        assert run.status == dg.DagsterRunStatus.SUCCESS, said
        assert run.tags[RUN_POOL] == "cpu"
        assert any("Ray run job created" in message for message in said), said
    store = PoolContext.open(settings, "photos").store
    assert store.partitions("raw/samples") == keys

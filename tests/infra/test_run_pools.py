"""Run pools: which tags a run gets from the table, and what Kubernetes and Ray make of them.

The job that Kubernetes would be sent is built by dagster-k8s itself; no cluster runs it here.
"""

from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from curation_assets.core.stages import STAGES
from curation_assets.defs.run_pools import RUN_POOL, load_run_pools, stages_of
from tests.support.paths import REPOSITORY

INFRA = REPOSITORY / "infra"


def run_of(*tables: str) -> dg.DagsterRun:
    return dg.DagsterRun(
        job_name="tiny_shards",
        asset_selection=frozenset(dg.AssetKey(["tiny", *table.split("/")]) for table in tables) or None,
    )


def origin_of(job: str) -> RemoteJobOrigin:
    """Where a run of the UI has its code from: the queue wants to know."""
    location = RegisteredCodeLocationOrigin("curation")
    return RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), job)


@pytest.mark.parametrize("engine", ["helm", "ray"])
def test_a_run_takes_the_largest_machine_of_its_stages(engine: str) -> None:
    table = load_run_pools(f"infra/{engine}/run_pools.yaml")
    assert list(table.run_pools) == ["cpu", "memory", "gpu"]
    assert table.tags_of(stages_of(run_of("raw/samples")))[RUN_POOL] == "cpu"
    assert table.tags_of(stages_of(run_of("raw/samples", "filtered/subsets")))[RUN_POOL] == "memory"
    assert table.tags_of(stages_of(run_of("raw/samples", "filtered/subsets", "signals/icc")))[RUN_POOL] == "gpu"
    assert table.tags_of(stages_of(run_of()))[RUN_POOL] == "cpu", "a job that makes no tables, such as verify"


def test_a_job_that_is_run_as_a_whole_is_known_by_its_steps() -> None:
    assert stages_of(run_of(), ["my_pool__raw__samples", "my_pool__fused__clip_score", "verify_tiny"]) == {
        "raw",
        "fused",
    }


def test_a_table_that_leaves_out_a_stage_or_names_no_pool_is_refused(tmp_path: Path) -> None:
    whole = yaml.safe_load((INFRA / "ray/run_pools.yaml").read_text(encoding="utf-8"))
    file = tmp_path / "run_pools.yaml"
    file.write_text(yaml.safe_dump({**whole, "stages": {"raw": "cpu"}}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"stages must be raw, teachers, .* got raw"):
        load_run_pools(str(file))
    file.write_text(
        yaml.safe_dump({**whole, "stages": dict.fromkeys(STAGES, "tpu")}, sort_keys=False), encoding="utf-8"
    )
    with pytest.raises(ValueError, match="stages name tpu; run_pools has cpu, memory, gpu"):
        load_run_pools(str(file))
    with pytest.raises(FileNotFoundError):
        load_run_pools(str(tmp_path / "absent.yaml"))


def test_the_queue_tags_what_it_is_given(tmp_path: Path) -> None:
    """A real instance with the coordinator; a tag that a person gave stays."""
    coordinator = {
        "module": "curation_assets.defs.run_pools",
        "class": "RunPoolCoordinator",
        "config": {"run_pools": "infra/ray/run_pools.yaml", "max_concurrent_runs": 3},
    }
    with dg.instance_for_test(overrides={"run_coordinator": coordinator}, temp_dir=str(tmp_path)) as instance:

        @dg.asset(key=dg.AssetKey(["tiny", "signals", "icc"]))
        def icc() -> None: ...

        definitions = dg.Definitions([icc], jobs=[dg.define_asset_job("tiny_shards")])
        job = definitions.resolve_job_def("tiny_shards")
        submitted = {}
        for name, tags in {"as it comes": {}, "chosen": {RUN_POOL: "cpu"}}.items():
            run = instance.create_run_for_job(job, tags=tags, remote_job_origin=origin_of("tiny_shards"))
            workspace = type("Workspace", (), {"instance": instance})()
            context = type("Context", (), {"dagster_run": run, "workspace": workspace})()
            submitted[name] = instance.run_coordinator.submit_run(context)
        queue = instance.run_coordinator.get_run_queue_config()
    assert queue.max_concurrent_runs == 3
    assert submitted["as it comes"].status == dg.DagsterRunStatus.QUEUED
    assert submitted["as it comes"].tags[RUN_POOL] == "gpu"
    assert submitted["as it comes"].tags["dagster-ray/config"] == '{"num_cpus": 4, "num_gpus": 1}'
    assert submitted["chosen"].tags[RUN_POOL] == "cpu"


def test_ray_reads_the_tags() -> None:
    configs = pytest.importorskip("dagster_ray.configs")
    table = load_run_pools("infra/ray/run_pools.yaml")
    gpu = configs.RayExecutionConfig.from_tags(table.tags_of({"signals"}))
    assert (gpu.num_cpus, gpu.num_gpus) == (4, 1)
    memory = configs.RayExecutionConfig.from_tags(table.tags_of({"filtered"}))
    assert (memory.memory, memory.num_gpus) == (32 * 2**30, None)


def test_kubernetes_jobs_ask_for_the_machines_of_the_table() -> None:
    """Through dagster-k8s's own building of a job, and the models of Kubernetes' Python client."""
    jobs = pytest.importorskip("dagster_k8s.job")
    client = pytest.importorskip("kubernetes").client
    table = load_run_pools("infra/helm/run_pools.yaml")
    specs = {}
    for stage in STAGES:
        config = jobs.get_user_defined_k8s_config(table.tags_of({stage}))
        job = jobs.construct_dagster_k8s_job(
            jobs.DagsterK8sJobConfig(job_image="curation-assets:cpu", dagster_home="/opt/dagster"),
            args=["dagster", "api", "execute_run"],
            job_name="run-1",
            user_defined_k8s_config=config,
        )
        pod = client.ApiClient().sanitize_for_serialization(job)["spec"]["template"]["spec"]
        specs[stage] = (pod.get("nodeSelector"), pod["containers"][0]["resources"], pod.get("tolerations"))
    selector, resources, tolerations = specs["signals"]
    assert selector == {"curation/run-pool": "gpu"}
    assert resources["limits"]["nvidia.com/gpu"] == "1"
    assert tolerations == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    selector, resources, tolerations = specs["raw"]
    assert selector == {"curation/run-pool": "cpu"}
    assert resources == {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "8Gi"}}
    assert tolerations is None

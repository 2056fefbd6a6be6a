"""Which machines a run asks its launcher for: a table in YAML, from the stages that the run makes to the run's tags.

Run launchers read resources from tags of the run (`dagster-k8s/config`, `dagster-ray/config`). The coordinator below
adds them as a run is submitted, by the UI, a sensor, a schedule or a backfill alike. It is in use only where an
instance's dagster.yaml names it, as those under infra/helm and infra/ray do.
"""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, cast

import dagster as dg

from curation_assets.core.settings import resource_path
from curation_assets.core.stages import STAGES
from curation_assets.core.validation import build, checked, setting
from curation_assets.core.yaml_files import read_yaml

RUN_POOL = "curation/run_pool"  # tag: what limits of dagster.yaml and people go by


@checked("run pools")
class RunPools:
    """Kinds of machines, and which of them a stage needs."""

    run_pools: Mapping[str, Mapping[str, Any]] = setting(
        description="Name → tags of its runs, values as YAML. Smallest first: of several stages the last counts."
    )
    stages: Mapping[str, str] = setting(description="Stage → the run pool that its tables need; every stage.")

    def __post_init__(self) -> None:
        if set(self.stages) != set(STAGES):
            raise ValueError(f"stages must be {', '.join(STAGES)}, got {', '.join(self.stages)}")
        unknown = sorted(set(self.stages.values()) - set(self.run_pools))
        if unknown:
            raise ValueError(f"stages name {', '.join(unknown)}; run_pools has {', '.join(self.run_pools)}")

    def tags_of(self, stages: Collection[str]) -> dict[str, str]:
        """Tags of a run that makes tables of these stages. What makes none, such as verifying, takes the first pool."""
        order = list(self.run_pools)
        name = order[max((order.index(self.stages[stage]) for stage in stages), default=0)]
        tags = {
            key: value if isinstance(value, str) else json.dumps(value) for key, value in self.run_pools[name].items()
        }
        return {RUN_POOL: name, **tags}


def load_run_pools(path: str) -> RunPools:
    """The table at a path, or that of this package at a name such as infra/helm/run_pools.yaml.

    Raises FileNotFoundError where neither exists, ValueError for what does not fit.
    """
    file = Path(path) if Path(path).is_absolute() else resource_path(path)
    return build(RunPools, read_yaml(file), str(file))


def stages_of(run: dg.DagsterRun, steps: Collection[str] = ()) -> set[str]:
    """Stages of the tables that a run makes. `steps`: keys of its plan, for a job that is run as a whole."""
    selected = [key.path[-3:] for key in run.asset_selection or ()] or [step.rsplit("__", 2) for step in steps]
    return {path[-2] for path in selected if len(path) == 3 and path[-2] in STAGES}


class RunPoolCoordinator(dg.QueuedRunCoordinator):
    """Dagster's queue, which tags a run by the table of run pools as it comes in. A tag that a run has stays.

    Config: that of QueuedRunCoordinator, and `run_pools`, the path of the table.
    """

    def __init__(self, run_pools: str, **config: Any) -> None:
        self.run_pools = load_run_pools(run_pools)
        super().__init__(**config)

    @classmethod
    def config_type(cls) -> Any:
        """Dagster's own, and one field."""
        own: dict[str, Any] = {"run_pools": dg.Field(dg.StringSource, is_required=True)}
        return own | dict(cast(Mapping[str, Any], super().config_type()))

    @classmethod
    def from_config_value(cls, inst_data: Any, config_value: Mapping[str, Any]) -> "RunPoolCoordinator":
        """Made by Dagster from dagster.yaml."""
        return cls(inst_data=inst_data, **config_value)

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Tag and queue."""
        run, instance = context.dagster_run, context.workspace.instance
        plan = run.execution_plan_snapshot_id
        steps = instance.get_execution_plan_snapshot(plan).step_keys_to_execute if plan else ()
        tags = self.run_pools.tags_of(stages_of(run, steps))
        instance.add_run_tags(run.run_id, {key: tag for key, tag in tags.items() if key not in run.tags})
        return super().submit_run(context)

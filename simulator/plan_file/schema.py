"""The tables and keys of PLAN.toml as pydantic models: types, ranges, defaults and one line of description each.

Only the file boundary uses these; everything behind it takes the frozen
:class:`joulecast.simulator.plan_file.plan.Plan`.
"""

from __future__ import annotations

from joulecast.simulator.plan_file.schema_implementation import ImplementationTable
from joulecast.simulator.plan_file.schema_parallelism import OverlapTable, ParallelismTable, ScheduleTable
from joulecast.simulator.plan_file.schema_surroundings import ClusterTable, NetworkTable, PowerTable, SiteTable
from joulecast.simulator.plan_file.schema_table import Table
from joulecast.simulator.plan_file.schema_workload import (
    ImagesTable,
    InlineModel,
    LoraTable,
    RolloutTable,
    WorkloadTable,
)


class PlanFile(Table):
    """A whole PLAN.toml."""

    workload: WorkloadTable
    cluster: ClusterTable
    parallelism: ParallelismTable = ParallelismTable()
    schedule: ScheduleTable = ScheduleTable()
    overlap: OverlapTable = OverlapTable()
    implementation: ImplementationTable = ImplementationTable()
    power: PowerTable = PowerTable()
    network: NetworkTable = NetworkTable()
    site: SiteTable = SiteTable()


TABLES: dict[str, type[Table]] = {
    "workload": WorkloadTable,
    "cluster": ClusterTable,
    "parallelism": ParallelismTable,
    "schedule": ScheduleTable,
    "overlap": OverlapTable,
    "implementation": ImplementationTable,
    "power": PowerTable,
    "network": NetworkTable,
    "site": SiteTable,
    "workload.model": InlineModel,
    "workload.lora": LoraTable,
    "workload.rollout": RolloutTable,
    "workload.images": ImagesTable,
}

"""Read what Joulecast exported with the programs that it is for; runs in their environment, prints JSON.

    .venv-zeus/bin/python tests/support/read_back_zeus.py FOLDER

FOLDER holds ``pfo/`` (a front as ``zeus-pfo``), ``limits.json``, and ``front.json`` and ``rank_limits.json`` with their
schemas. The package of Zeus's frequency optimizer imports torch for its client; reading a solution needs none of it, so
an empty module stands in where torch is not installed.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path


def stand_in_for_torch():
    if "torch" not in sys.modules and importlib.util.find_spec("torch") is None:
        torch, distributed = types.ModuleType("torch"), types.ModuleType("torch.distributed")
        torch.distributed, torch.Tensor = distributed, type("Tensor", (), {})
        sys.modules |= {"torch": torch, "torch.distributed": distributed}


def schema_errors(folder, name):
    """What a file breaks of its schema, and how much an empty one would."""
    import jsonschema

    schema = json.loads((folder / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    read = json.loads((folder / f"{name}.json").read_text())
    return [e.message for e in validator.iter_errors(read)], len(list(validator.iter_errors({})))


def solutions(folder):
    """Clocks that Zeus's server would send to every rank, by file."""
    stand_in_for_torch()
    from zeus.optimizer.pipeline_frequency.common import JobInfo, PFOServerSettings, RankInfo

    found = {}
    for path in sorted(folder.glob("freqs_pipeline_*.py")):
        stages = sum(line.startswith("[(") for line in path.read_text().splitlines())
        for scheduler, tensor in (("PointSolution", 1), ("PointSolution3D", 2)):
            job = JobInfo(pp_degree=stages, dp_degree=1, tp_degree=tensor, world_size=stages * tensor)
            ranks = [
                RankInfo(rank=r, dp_rank=0, pp_rank=r // tensor, tp_rank=r % tensor, available_frequencies=[210, 1410])
                for r in range(stages * tensor)
            ]
            settings = PFOServerSettings(
                scheduler=scheduler, scheduler_args={"solution_path": str(path)}, dump_data=False
            )
            read = settings.scheduler(job, ranks, settings, **settings.scheduler_args).next_schedule()
            found[f"{path.name} {scheduler}"] = [schedule.frequencies for schedule in read]
    return found


def profile(path):
    """Options that lowtime keeps of every stage and instruction, as Zeus's example of Perseus reads them."""
    import pandas as pd
    from lowtime.operation import CandidateExecutionOptions, ExecutionOption

    table = pd.read_csv(path)
    found = {}
    for (stage, name), rows in table.groupby(["stage", "instruction"]):
        options = [
            ExecutionOption(real_time=row["time"], unit_time=1e-4, cost=row["energy"], knob=int(row["frequency"]))
            for row in rows.to_dict("records")
        ]
        kept = CandidateExecutionOptions(options=options)
        found[f"{stage} {name}"] = [[o.knob, o.real_time, o.cost] for o in kept.options]
    return found


def limits(path):
    """Measurements, and the limits that Zeus selects from them."""
    from zeus.optimizer import power_limit as zeus

    measured = zeus._PowerLimitMeasurementList.parse_file(path).measurements
    selectors = {
        "energy": zeus.Energy(),
        "time": zeus.Time(),
        **{f"cost {eta:g}": zeus.ZeusCost(eta) for eta in (0.0, 0.25, 0.5, 0.75, 1.0)},
    }
    chosen = {name: selector.select(measured) for name, selector in selectors.items()}
    return {"measurements": [m.dict() for m in measured], "chosen": chosen}


def profile_by_zeus(path):
    """Write a profile with Zeus's own writer, for Joulecast to read."""
    stand_in_for_torch()
    from zeus.optimizer.pipeline_frequency.common import InstructionProfilingResult, OfflineProfilingResult

    def result(rank):
        clocks = (1410, 1200, 1005)
        return OfflineProfilingResult(
            rank=rank,
            dp_rank=0,
            pp_rank=rank // 2,
            tp_rank=rank % 2,
            forward_time={f: (30.0 + rank) / f for f in clocks},
            forward_energy={f: 5.0 + f / 1000 for f in clocks},
            backward_time={f: 70.0 / f for f in clocks},
            backward_energy={f: 10.0 + f / 500 for f in clocks},
        )

    InstructionProfilingResult(__root__=[result(rank) for rank in range(4)]).to_csv(str(path))
    return str(path)


def main(folder):
    report = {}
    if (folder / "pfo").is_dir():
        report["profile"] = profile(folder / "pfo" / "profile.csv")
        report["solutions"] = solutions(folder / "pfo")
    if (folder / "limits.json").is_file():
        report["limits"] = limits(folder / "limits.json")
    for name in ("front", "rank_limits"):
        if (folder / f"{name}.schema.json").is_file():
            report[f"schema errors of {name}"] = schema_errors(folder, name)
    report["profile by zeus"] = profile_by_zeus(folder / "by_zeus.csv")
    print(json.dumps(report))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

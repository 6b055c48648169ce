"""What the examples of published findings have in common: each finding beside the forecast, and varied parameters."""

from collections.abc import Callable, Iterator, Mapping

from joulecast.command_line.output import print_table
from joulecast.model.hardware.gpu_model import GpuModel

#: What a forecast says of a finding, and whether it agrees.
Finding = tuple[str, bool]
#: By name: what was published, and the forecast on a GPU.
Findings = Mapping[str, tuple[str, Callable[[GpuModel], Finding]]]


def print_findings(findings: Findings, gpu: GpuModel, title: str) -> None:
    """A line for each finding: as it was published, and as it is forecast."""
    lines = []
    for name, (published, finding) in findings.items():
        said, holds = finding(gpu)
        lines.append({"": name, "published": published, "forecast": said, "agrees": "yes" if holds else "no"})
    print_table(lines, title=title)


def agreeing(findings: Findings, gpu: GpuModel) -> list[str]:
    """Findings with which the forecast agrees."""
    return [name for name, (_, finding) in findings.items() if finding(gpu)[1]]


def varied(gpu: GpuModel, key: str, value: float) -> Iterator[tuple[float, GpuModel]]:
    """The GPU with a parameter 20 % lower and 20 % higher, with the factor."""
    for factor in (0.8, 1.2):
        yield factor, gpu.with_values({key: value * factor})


def rests_on(gpu: GpuModel, key: str) -> str:
    """Status of a parameter: what its value rests on."""
    table, _, name = key.partition(".")
    description = gpu.description
    return "" if description is None else getattr(description, table).parameters[name].status

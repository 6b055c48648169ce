"""Jobs of Kubernetes: commands, environment and GPUs of the pods that a manifest has.

Of Kubeflow's PyTorchJob and MPIJob (``kubeflow.org``), TrainJob (``trainer.kubeflow.org``), of JobSet
(``jobset.x-k8s.io``), and of plain Jobs: whatever has ``containers``, as often as ``replicas`` and ``parallelism`` say.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from joulecast.errors import InputError
from joulecast.files import is_whole

#: How often what is in a table is there: of Kubeflow, JobSet and Volcano; of a Job.
_TIMES = ("replicas", "parallelism")
_GPU = re.compile(r"(?:nvidia|amd)\.com/gpu")
#: Where documents of a YAML begin, and which is a job's; ``$(NAME)`` of a container's environment.
_DOCUMENTS, _KIND = re.compile(r"^(?=---)", re.M), re.compile(r"^kind:[ \t]*(\w*Job|JobSet)\b", re.M)
_NAMED = re.compile(r"\$\(([A-Za-z_]\w*)\)")


@dataclass(frozen=True, slots=True)
class PodJob:
    """What a manifest starts.

    Attributes
    ----------
    text
        The commands of its containers, each on the line on which it stands.
    environment
        Variables that the containers are given.
    gpus
        Of all pods; ``None`` where none asks for any.
    """

    text: str
    environment: Mapping[str, str]
    gpus: int | None


def job_document(text: str) -> str:
    """Of a YAML of several documents the first that is a job of Kubernetes, on its own lines; else all of it."""
    lines = 0
    for document in _DOCUMENTS.split(text):
        if _KIND.search(document):
            return "\n" * lines + document
        lines += document.count("\n")
    return text


def is_manifest(tables: Mapping[str, Any]) -> bool:
    """Whether a YAML is of Kubernetes."""
    return "apiVersion" in tables and "kind" in tables


def pod_job(tables: Mapping[str, Any], lines: Mapping[str, int], file: str) -> PodJob:
    """What a manifest starts.

    Raises
    ------
    InputError
        No container of it has a command.
    """
    environment: dict[str, str] = {}
    commands: dict[str, int] = {}
    gpus = 0
    for times, container, path in _containers(tables, "", 1):
        resources = container.get("resources") or container.get("resourcesPerNode") or {}
        gpus += times * _gpus(resources)
        own = {str(one.get("name")): str(one["value"]) for one in _list(container.get("env")) if "value" in one}
        environment |= own
        words = [str(word) for key in ("command", "args") for word in _list(container.get(key))]
        if words:
            key = next(name for name in ("args", "command") if container.get(name))
            words = [_expanded(word, own) for word in words]
            commands.setdefault(shlex.join(words), lines.get(f"{path}.{key}", 1))
    if not commands:
        remedy = "Give the command that its image or its runtime starts: joulecast convert --gpus N -- torchrun …"
        raise InputError("no container of this manifest has a command", file=file, remedy=remedy)
    text = ""
    for command, line in sorted(commands.items(), key=lambda pair: pair[1]):
        text += "\n" * (line - 1 - text.count("\n")) + command + "\n"
    return PodJob(text, environment, gpus or None)


def _containers(value: Any, path: str, times: int) -> Iterator[tuple[int, Mapping[str, Any], str]]:
    """Containers below a table, and the trainer of a TrainJob, with how many pods have them and where they stand."""
    if isinstance(value, list):
        for item in value:
            yield from _containers(item, path, times)
    if not isinstance(value, Mapping):
        return
    for name in _TIMES:
        times *= value[name] if is_whole(str(value.get(name))) else 1
    for key, inner in value.items():
        place = f"{path}.{key}".lstrip(".")
        if key == "containers":
            yield from ((times, one, place) for one in _list(inner) if isinstance(one, Mapping))
        elif key == "trainer" and isinstance(inner, Mapping):
            nodes = inner.get("numNodes")
            yield times * (nodes if isinstance(nodes, int) else 1), inner, place
        else:
            yield from _containers(inner, place, times)


def _expanded(word: str, environment: Mapping[str, str]) -> str:
    return _NAMED.sub(lambda found: environment.get(found[1], found[0]), word)


def _gpus(resources: Any) -> int:
    """GPUs of a container, which asks for as many as it is limited to."""
    tables = [resources.get(name) or {} for name in ("limits", "requests")] if isinstance(resources, Mapping) else []
    found = (value for table in tables for name, value in table.items() if _GPU.fullmatch(name))
    return next((int(value) for value in found if is_whole(str(value))), 0)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]

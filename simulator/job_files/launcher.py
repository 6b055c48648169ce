"""How many GPUs a job's launcher starts: ``torchrun``, ``srun``, ``mpirun``, ``deepspeed`` or ``accelerate``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from joulecast.files import is_whole
from joulecast.simulator.job_files.shell_slurm import slurm_gpus
from joulecast.simulator.job_files.shell_values import Spot, marks

#: Launchers that start a process for each GPU of a node, and their options for GPUs of a node and for nodes.
_PER_NODE = ("--nproc-per-node", "--num-gpus", "--gpus-per-node")
_NODES = ("--nnodes", "--num-nodes", "--num-machines")
_ELASTIC = ("torchrun", "tune", "torch.distributed.run", "torch.distributed.launch", "deepspeed")
_TASKS = ("--ntasks", "-n", "-np", "--np")
#: Tasks of a node as Open MPI and MPICH call them, whose ``-N`` is not Slurm's (``man mpirun``).
_MPI_PER_NODE = ("-N", "-npernode", "--npernode", "-ppn", "--ppn")
#: Nodes, and tasks of a node, of ``srun``: its own options, then what Slurm has set from those of the batch.
_SRUN_NODES = ("--nodes", "-N", "SLURM_NNODES")
_SRUN_PER_NODE = ("--ntasks-per-node", "SLURM_NTASKS_PER_NODE")
_BATCH = (_SRUN_NODES[-1], _SRUN_PER_NODE[-1], "SLURM_NTASKS")
#: Slurm's short options with their values behind them.
_JOINED = re.compile(r"(-[nN])(\d+)")
#: ``srun``'s for GPUs of a node, behind what Slurm has set from those of the batch; and values of ``torchrun`` for all.
_SRUN_GPUS = ("--gpus-per-node", "--gres", "SLURM_GPUS_ON_NODE")
_ALL = ("gpu", "auto")
#: DeepSpeed's options without a value, which may stand behind ``--module`` and in front of the script.
_SWITCHES = re.compile(r"--(no_\w+|force_multi|save_pid|bind_cores_to_rank|elastic_training)")
#: ``host:0,1@host:0,1`` of DeepSpeed.
_INCLUDED = re.compile(r"[\w.-]+:\d+(,\d+)*")
#: Options of launchers for a list of hosts, which is not read.
_HOSTS = {"--hostfile", "-H", "--host"}


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launcher says.

    Attributes
    ----------
    gpus, gpus_per_node
        ``None`` where it does not say.
    source, line
        Which options say it.
    """

    gpus: int | None = None
    gpus_per_node: int | None = None
    source: str = ""
    line: int | None = None


def read_launch(words: Sequence[Spot], environment: Mapping[str, str]) -> Launch:
    """The GPUs of a job from the words in front of its script, and from what Slurm has set in its environment."""
    options = _options(words)
    names = {word.text.rpartition("/")[2] for word in words}
    line = words[0].line if words else None
    if "accelerate" in names:
        processes, machines = _number(options, ("--num-processes",)), _number(options, _NODES) or 1
        return Launch(processes, processes and processes // machines, "--num_processes", line)
    batch = {name: environment[name] for name in _BATCH if name in environment} if "srun" in names else {}
    if "deepspeed" in names and (chosen := {"--include", "--exclude"} & set(options)):
        return replace(_included(options["--include"]), line=line) if "--include" in chosen else Launch()
    if names & set(_ELASTIC):
        per_node, nodes = _number(options, _PER_NODE), _elastic_nodes(options | batch, srun="srun" in names)
        if options.get("--nproc-per-node") in _ALL:
            per_node = _of_a_node(dict(environment) | options)
        gpus = per_node * nodes if per_node and nodes else None
        most = f", the most of {options['--nnodes']}" if ":" in options.get("--nnodes", "") else ""
        return Launch(gpus, per_node, f"--nproc_per_node and --nnodes{most}", line)
    if names & {"srun", "mpirun", "mpiexec"}:
        return _tasks(options | batch, line, srun="srun" in names)
    return Launch()


def _elastic_nodes(options: Mapping[str, str], *, srun: bool) -> int | None:
    """Nodes of ``torchrun`` and the like: as ``srun`` has them where they do not say, and without any host one."""
    if any(name in options for name in _NODES):
        return _number(options, _NODES)
    if srun:
        return _number(options, _SRUN_NODES)
    return None if _HOSTS & set(options) else 1


def _of_a_node(options: Mapping[str, str]) -> int | None:
    """GPUs that Slurm gives a job on each node."""
    return next((gpus for name in _SRUN_GPUS if (gpus := slurm_gpus(options.get(name, "")))), None)


def _included(hosts: str) -> Launch:
    """GPUs that DeepSpeed is told to use: those that each host lists."""
    each = [host.count(",") + 1 for host in hosts.split("@") if _INCLUDED.fullmatch(host)]
    if len(each) < hosts.count("@") + 1:  # of a host without a list it takes all
        return Launch()
    return Launch(sum(each), each[0] if len(set(each)) == 1 and len(each) > 1 else None, "--include")


def _tasks(options: Mapping[str, str], line: int | None, *, srun: bool) -> Launch:
    """What ``srun`` and ``mpirun`` start, one task for each GPU; ``srun`` takes from its batch what it does not say."""
    tasks, nodes = _number(options, _TASKS), _number(options, _SRUN_NODES) if srun else None
    names = _MPI_PER_NODE if not srun else _SRUN_PER_NODE[:1] if tasks else _SRUN_PER_NODE
    per_node = _number(options, names)
    tasks = tasks or (per_node * nodes if per_node and nodes else _number(options, ("SLURM_NTASKS",)))
    return Launch(tasks, per_node or (tasks // nodes if tasks and nodes else None), "the launcher's tasks", line)


def _options(words: Sequence[Spot]) -> dict[str, str]:
    options: dict[str, str] = {}
    for place, spot in enumerate(words):
        if joined := _JOINED.fullmatch(spot.text):
            options[joined[1]] = joined[2]
        elif spot.text.startswith("-"):
            name, equals, value = spot.text.partition("=")
            following = words[place + 1].text if place + 1 < len(words) else ""
            options[name.replace("_", "-")] = value if equals else following
    return options


def _number(options: Mapping[str, str], names: Sequence[str]) -> int | None:
    """A whole number; of a range such as ``1:4`` its most."""
    for name in names:
        value = options.get(name, "")
        last = value.rpartition(":")[2]
        if value and not marks(value) and is_whole(last) and int(last) > 0:
            return int(last)
    return None


def script_place(words: Sequence[Spot]) -> int:
    """Where the training script stands among a command's words; without one, before its first option."""
    for place, word in enumerate(words):
        if word.text.endswith(".py") and "/bin/" not in word.text:
            return place
        following = words[place + 1].text if place + 1 < len(words) else ""
        if word.text == "--module" and following.startswith("-"):
            return _behind_options(words, place + 1)
        if word.text in ("-m", "--module") and following and "torch" not in following and following[0] != "-":
            return place + 1
    return 0


def _behind_options(words: Sequence[Spot], place: int) -> int:
    """Where DeepSpeed's module stands behind more of its options; 0 if it does not."""
    while place < len(words) and words[place].text.startswith("-"):
        place += 1 if "=" in words[place].text or _SWITCHES.fullmatch(words[place].text) else 2
    return place if place < len(words) else 0

"""How kernels fare in long training runs on clusters, beside the same kernels run back to back on one card.

A description's kernels are measured alone, or derived from those of a relative. Published training runs say how far
off they are on each architecture: factors on the rate of products by data type, of attention, of kernels that stream,
of the links and of the network, and on the energy of what switches; and one factor on the time of all kernels for each
generation of frameworks, which run more or fewer of them and leave gaps.

Factors multiply what the description has; 1 is the description as it is. They are fitted by
:mod:`joulecast.calibrate.published.fit`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from math import hypot
from typing import Literal

from joulecast.model.hardware.description import GpuDescription, Parameter, Table
from joulecast.model.kernels.gemm import EFFICIENCY

#: Parameters that each factor multiplies: table and patterns of their names. Products have one factor for each type,
#: and so has the energy of their operations.
FACTORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "products": ("kernel", ("gemm.efficiency.{dtype}",)),
    "attention": ("kernel", ("attention.*.eta",)),
    "streaming": ("kernel", ("streaming.*.bandwidth_share", "streaming.*.bytes_per_sm_cycle")),
    "links": ("collective", ("link_share", "exchange_link_share", "bytes_per_cta_cycle")),
    "network": ("collective", ("network_share",)),
    "energy": ("power", ("tensor_pj_per_flop.{dtype}",)),
    "power": ("power", ("*pj_per_flop*", "sm_w", "clock_w", "*pj_per_l2_byte", "streaming_pj_per_byte.*")),
}
#: Generations of training frameworks that have a factor of their own.
Generation = Literal["megatron-lm-2021", "nemo-2024", "megatron-bridge-2025", "megatron-core", "deepspeed"]
#: Of these, NVIDIA's own, which were published of its GPUs alone.
NVIDIAS = ("nemo-2024", "megatron-bridge-2025")
#: The host's time for a launch, where nothing captures it in a graph [s; estimate], and the parameter that has it.
LAUNCH_S, LAUNCH = 120e-6, "host_launch_s"
#: Parameters with the relative standard deviation of a forecast step, by data type, and what unknowns add to it.
SPREAD, UNSEEN = "training_spread", "training_spread_unseen"
#: Parameter with how much longer a step may take than forecast, beyond its spread, where the framework is not named.
#: Steps of llm-foundry, torchtitan and MT-NLG, planned as Megatron's without a name, took up to 0.26 longer in their
#: means, hardly less; root mean square over these families [log of time; estimate with those steps in view].
LONGER, LONGER_SD = "training_longer", 0.14
#: What a step of a model with experts differs by beyond the spread of dense ones, which alone are fitted: 152 published
#: steps in fifteen groups of sources and GPUs, when first forecast; root mean square of the twelve groups' means whose
#: hosts do not hold the experts up [log of time; estimate with those steps in view].
EXPERTS_SD = 0.12
#: What a step of a hybrid of Mamba-2 differs by beyond these: 52 published steps in nineteen groups of sources, models
#: and GPUs were 0.22 off, root mean square of the groups' means, before all was counted that HybridEP exchanges, 0.15
#: since [log of time; estimate with those steps in view].
HYBRIDS_SD = 0.16
#: The same of Megatron's Muon, whose kernels are counted from code: a third of what it takes of an iteration, up to a
#: seventh in plans of 8B to 1T parameters that share out its matrices [estimate].
MUON_SD = 0.05
#: In the file of factors: what a GPU without published steps adds, and a framework without a scalar.
UNSEEN_GPU, UNSEEN_GENERATION = "unseen.gpu", "unseen.generation"
#: Prefix of the entries with what a step of a generation differs by beyond its GPU's spread.
GENERATION_SPREAD = "generation-spread."
#: Prefix of the entries that count the published steps of each GPU.
ROWS = "rows."
#: Parameter by which the time of every kernel is multiplied.
TIME = "time_factor"


def scaled(description: GpuDescription, factors: Mapping[str, float]) -> GpuDescription:
    """The description with factors applied.

    Parameters
    ----------
    factors
        By name: those of :data:`FACTORS`, products as ``products.<dtype>`` or ``products.blocked``,
        energy as ``energy.<dtype>``; ``time`` for all kernels; ``host`` for its time to launch one.
    """
    tables = description.tables
    for name, factor in factors.items():
        if name == "time":
            tables["kernel"] = _with(tables["kernel"], TIME, factor)
            continue
        if name == "host":
            tables["kernel"] = _with(tables["kernel"], LAUNCH, LAUNCH_S * factor)
            continue
        kind, _, dtype = name.partition(".")
        table, patterns = FACTORS[kind]
        if kind == "products" and f"gemm.efficiency.{dtype}" not in tables[table]:
            tables[table] = _with(tables[table], f"gemm.efficiency.{dtype}", EFFICIENCY.get(dtype, 1.0))
        tables[table] = _multiplied(tables[table], [p.format(dtype=dtype) for p in patterns], factor)
    return GpuDescription(description.name, description.device, **tables, derivation=description.derivation)


def _with(table: Table, name: str, value: float) -> Table:
    parameter = Parameter(value, 0.0, "", "no factor is known", "assumed")
    return replace(table, parameters={**table.parameters, name: parameter})


def _multiplied(table: Table, patterns: list[str], factor: float) -> Table:
    """The table with all parameters of these names times a factor, their uncertainty and covariance with them."""
    names = [n for n, p in table.parameters.items() if not isinstance(p.value, str) and _fits(n, patterns)]
    changed = {
        n: replace(p, value=p.number * factor, sd=p.sd * factor) for n, p in table.parameters.items() if n in names
    }
    covariance = table.covariance.copy()
    rows = [i for i, name in enumerate(table.covariance_names) if name in names]
    covariance[rows, :] *= factor
    covariance[:, rows] *= factor
    return replace(table, parameters={**table.parameters, **changed}, covariance=covariance)


def _fits(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def owner_of(description: GpuDescription, known: Iterable[str]) -> str:
    """Whose of the known factors act on a GPU: its own where there are some, else its architecture's."""
    has_own = any(name.startswith(f"{description.name}.") for name in known)
    return description.name if has_own else description.text("architecture")


def factors_on(description: GpuDescription, generation: str, known: Iterable[str]) -> dict[str, str]:
    """Which of the known factors act on a GPU: name there to name in :func:`scaled`.

    What steps of a card with factors of its own do not tell, its architecture's tell.

    Parameters
    ----------
    generation
        Of the framework, one of :data:`Generation`; empty for none.
    known
        Names such as ``Hopper.attention``, ``network`` and ``generation.nemo-2024``.
    """
    names = tuple(known)
    card, architecture = owner_of(description, names), description.text("architecture")
    own = {short for owner, _, short in (name.partition(".") for name in names) if owner == card}
    found = {}
    for name in names:
        owner, _, short = name.partition(".")
        if (owner == card or (owner == architecture and short not in own)) and not short.startswith("spread."):
            found[name] = short
        elif name in ("network", "host"):
            found[name] = name
        elif owner == "generation" and short == generation:
            found[name] = "time"
    return found


def foreign_generation(generation: str, description: GpuDescription) -> tuple[str, ...]:
    """What it means where one vendor's framework is named on another's GPU; nothing where it is not."""
    vendor = description.text("vendor")
    if generation not in NVIDIAS or vendor == "NVIDIA":
        return ()
    return (f"{generation} is NVIDIA's: what {vendor} has in its place is taken to run at the same pace, unmeasured",)


def trained(description: GpuDescription, generation: str, factors: Mapping[str, Parameter]) -> GpuDescription:
    """The description with the factors of long training runs; unchanged if none are known of its architecture.

    The spread of a forecast step has a part for each thing that is not known, added in quadrature: a derived GPU of
    which no step was published, a framework whose sources differ much, and a framework that is not named. The last may
    also make steps longer by :data:`LONGER_SD`, never shorter.
    """
    acting = factors_on(description, generation, factors)
    found = scaled(description, {short: factors[name].number for name, short in acting.items()})
    seen = not description.derivation or f"{ROWS}{description.name}" in factors
    unknown = [name for name, known in ((UNSEEN_GPU, seen), (UNSEEN_GENERATION, generation)) if not known]
    more = hypot(*(factors[n].number for n in (*unknown, f"{GENERATION_SPREAD}{generation}") if n in factors))
    prefix = f"{owner_of(description, factors)}.spread."
    spreads = {
        f"{SPREAD}.{name.removeprefix(prefix)}": replace(p, value=hypot(p.number, more))
        for name, p in factors.items()
        if name.startswith(prefix)
    }
    if more > 0:
        spreads[UNSEEN] = Parameter(more, 0.0, "", "unknown GPU or framework", "estimate")
    if UNSEEN_GENERATION in unknown and UNSEEN_GENERATION in factors:
        spreads[LONGER] = Parameter(LONGER_SD, 0.0, "", "frameworks without a scalar", "estimate")
    kernel = replace(found.kernel, parameters={**found.kernel.parameters, **spreads})
    return replace(found, kernel=kernel)

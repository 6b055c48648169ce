"""The vocabulary of data-sheet facts: one table of names, units and meanings drives validation and documentation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from joulecast.model.hardware.description import Parameter

#: Data types that a description may give a peak for.
DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "fp4", "int8")


#: Where numbers of a unit lie, some powers of ten about any product: beyond, one was written in another unit.
RANGES: dict[str, tuple[float, float]] = {
    "MHz": (10.0, 2e4),
    "B": (1024.0, 1e15),
    "B/s": (1e8, 1e17),
    "bit": (1.0, 1e6),
    "W": (0.0, 1e6),
    "s": (0.0, 0.1),
    "nm": (0.1, 1e3),
    "FLOP/cycle": (1.0, 1e7),
    "FLOP/s": (1e9, 1e19),
}
#: Most clocks of a GPU; boards have some hundred.
MOST_CLOCKS = 10_000
#: Units of what comes in whole numbers.
WHOLE_UNITS = ("B", "bit")


@dataclass(frozen=True, slots=True)
class Fact:
    """What one name means; the unit ``word`` marks text, and numbers beyond ``least`` and ``most`` mean nothing."""

    unit: str
    meaning: str
    required: bool = False
    least: float | None = None
    most: float | None = None
    whole: bool = False

    @property
    def range(self) -> tuple[float, float]:
        """Least and greatest number, that of the unit where the fact has none of its own."""
        least, most = RANGES.get(self.unit, (0.0, inf))
        return least if self.least is None else self.least, most if self.most is None else self.most


def _count(meaning: str, required: bool = False, least: float = 1.0, most: float = 1e5) -> Fact:
    return Fact("1", meaning, required, least, most, whole=True)


def _share(meaning: str) -> Fact:
    return Fact("1", meaning, True, most=1.0)


def _board_power(meaning: str) -> Fact:
    return Fact("W", meaning, True, 1.0, 1e5)


def _per_dtype(prefix: str, unit: str, meaning: str) -> dict[str, Fact]:
    return {f"{prefix}.{dtype}": Fact(unit, f"{meaning}, {dtype}") for dtype in DTYPES}


#: Facts of a GPU (``[device]``). "SM" stands for whatever the vendor calls its multiprocessors.
DEVICE_FACTS: dict[str, Fact] = {
    "vendor": Fact("word", "maker of the GPU", True),
    "architecture": Fact("word", "architecture's name", True),
    "product": Fact("word", "name that drivers report or data sheets use"),
    "release_year": _count("year of the first shipments", True, 1990.0, 2100.0),
    "process_node_nm": Fact("nm", "process node by its trade name", True),
    "form_factor": Fact("word", "SXM, OAM, PCIe, superchip"),
    "sm_count": _count("number of multiprocessors (compute units)", True),
    "dies": _count("compute dies in the package"),
    "devices": _count("devices that software sees in the package"),
    "base_clock_mhz": Fact("MHz", "guaranteed SM clock"),
    "boost_clock_mhz": Fact("MHz", "SM clock to which published vector peaks refer", True),
    "tensor_boost_clock_mhz": Fact("MHz", "SM clock to which published tensor peaks refer"),
    "max_clock_mhz": Fact("MHz", "highest SM clock", True),
    "min_clock_mhz": Fact("MHz", "lowest SM clock", True),
    "clock_step_mhz": Fact("MHz", "distance between SM clocks", True, 0.1),
    "memory_clock_mhz": Fact("MHz", "memory clock as the driver reports it"),
    "memory_bytes": Fact("B", "memory capacity", True, 1e8),
    "memory_bandwidth_bytes_per_s": Fact("B/s", "peak memory bandwidth", True),
    "memory_bus_bits": Fact("bit", "width of the memory bus"),
    "memory_kind": Fact("word", "HBM2, HBM3e, GDDR6, …", True),
    "supports_memory_clock_states": Fact("1", "whether the memory clock can be set to more than one useful state"),
    "l2_bytes": Fact("B", "second-level cache", True),
    "l2_bandwidth_bytes_per_s": Fact("B/s", "second-level cache bandwidth at the highest clock", True),
    "last_level_cache_bytes": Fact("B", "memory-side cache behind the second level"),
    "last_level_cache_bandwidth_bytes_per_s": Fact("B/s", "its peak bandwidth"),
    "shared_memory_per_sm_bytes": Fact("B", "shared memory (LDS) of one SM", True),
    "registers_per_sm": _count("32-bit registers of one SM", True, 1024.0, 1e9),
    "max_threads_per_sm": _count("resident threads of one SM", True, 32.0),
    "max_blocks_per_sm": _count("resident thread blocks of one SM"),
    "power_limit_w": _board_power("default board power limit"),
    "min_power_limit_w": _board_power("lowest settable power limit"),
    "max_power_limit_w": _board_power("highest settable power limit"),
    "limit_beside_gpu_w": Fact("W", "what processors in the module draw under the same limit while GPUs train"),
    "idle_power_w": _board_power("board power without work at the lowest clocks"),
    "link_kind": Fact("word", "NVLink4, PCIe4, xGMI, …", True),
    "link_count": _count("links to other GPUs", True),
    "link_bandwidth_bytes_per_s": Fact("B/s", "all links to other GPUs, one direction", True),
    "host_link_kind": Fact("word", "PCIe4, PCIe5, NVLink-C2C, …"),
    "host_link_bandwidth_bytes_per_s": Fact("B/s", "link to the host, one direction"),
    **_per_dtype("tensor_flops_per_sm_per_cycle", "FLOP/cycle", "dense matrix-unit operations of one SM and cycle"),
    **_per_dtype("vector_flops_per_sm_per_cycle", "FLOP/cycle", "vector-unit operations of one SM and cycle"),
    **_per_dtype("published_tensor_flops_per_s", "FLOP/s", "dense matrix peak as the data sheet prints it"),
    **_per_dtype("published_vector_flops_per_s", "FLOP/s", "vector peak as the data sheet prints it"),
}

#: Facts of a node type (``[node]``).
NODE_FACTS: dict[str, Fact] = {
    "gpu": Fact("word", "catalogue name of its GPUs", True),
    "gpus_per_node": _count("GPUs in one node (one fully linked group)", True),
    "topology": Fact("word", "switch, full-mesh, pair-bridge or host", True),
    "intra_node_link_kind": Fact("word", "what joins the GPUs of a node", True),
    "link_bandwidth_bytes_per_s": Fact("B/s", "one GPU to all others of the node, one direction", True),
    "peer_bandwidth_bytes_per_s": Fact("B/s", "one GPU to one other, one direction", True),
    "link_latency_s": Fact("s", "one hop within the node", True),
    "switch_count": _count("switch chips in the node"),
    "switch_power_w": Fact("W", "all switch chips of the node"),
    "supports_in_network_reduction": Fact("1", "whether the switches can reduce (NVLS)"),
    "nics_per_node": _count("network cards for the training network", True),
    "network": Fact("word", "catalogue name of the usual network", True),
    "cpu_sockets": _count("processors"),
    "cpu_idle_power_w": Fact("W", "processors and their memory at idle"),
    "cpu_training_power_w": Fact("W", "processors and their memory while GPUs train"),
    "fan_power_w": Fact("W", "fans at training load"),
    "other_power_w": Fact("W", "storage, board and management", True),
    "supply_efficiency": _share("power supplies' efficiency at training load"),
    "max_power_w": Fact("W", "highest input power by the data sheet"),
    "price": Fact("USD", "a whole node with its GPUs"),
}

#: Facts of a network (``[network]``).
NETWORK_FACTS: dict[str, Fact] = {
    "kind": Fact("word", "infiniband or ethernet", True),
    "generation": Fact("word", "NDR, XDR, 400G, …"),
    "nic_bandwidth_bytes_per_s": Fact("B/s", "one network card, one direction", True),
    "bandwidth_efficiency": _share("share of it that large messages reach"),
    "latency_s": Fact("s", "one-way latency of a small message through one switch", True),
    "hop_latency_s": Fact("s", "each further switch", True),
    "message_overhead_s": Fact("s", "collective library's cost of a network step"),
    "nic_idle_power_w": Fact("W", "network card at idle", True),
    "nic_power_w": Fact("W", "network card at full rate", True),
    "transceiver_power_w": Fact("W", "optical module of one port", True),
    "switch_port_power_w": Fact("W", "share of the switch for one port, without optics", True),
    "switch_ports": _count("ports of one switch", least=4.0),
    "supports_in_network_reduction": Fact("1", "whether the switches can reduce (SHARP)"),
}

#: Facts of a site (``[site]``).
SITE_FACTS: dict[str, Fact] = {
    "currency": Fact("word", "currency of its prices", True),
    "pue": Fact("1", "energy at the facility's meter over energy of its computers", True, 1.0, 10.0),
    "electricity_price_per_kwh": Fact("currency/kWh", "price of electricity", True),
    "carbon_intensity_kg_per_kwh": Fact("kg/kWh", "CO2 equivalent of electricity", True, most=5.0),
    "hardware_lifetime_years": Fact("year", "time until hardware is replaced", True, most=100.0),
    "hardware_utilisation": _share("share of the lifetime in which hardware does paid work"),
    "network_price_per_nic": Fact("currency", "network card with its share of cables and switches", True),
    "embodied_kg_per_gpu": Fact("kg", "CO2 equivalent of making a GPU with its share of node and network", True),
}

#: Facts that must not decrease in this order.
ORDERED_FACTS = (
    ("min_clock_mhz", "max_clock_mhz"),
    ("min_power_limit_w", "power_limit_w", "max_power_limit_w"),
    ("cpu_idle_power_w", "cpu_training_power_w"),
    ("nic_idle_power_w", "nic_power_w"),
)

#: Vocabulary by kind of file.
FACTS: dict[str, dict[str, Fact]] = {
    "device": DEVICE_FACTS,
    "node": NODE_FACTS,
    "network": NETWORK_FACTS,
    "site": SITE_FACTS,
}


def fact_problem(name: str, fact: Fact, value: float | str, unit: str) -> str | None:
    """What is wrong with one fact, ``None`` if nothing is.

    >>> fact_problem("sm_count", DEVICE_FACTS["sm_count"], -132, "")
    'must be above 0, found -132'
    """
    if isinstance(value, str) != (fact.unit == "word"):
        return f"expected {'a word' if fact.unit == 'word' else 'a number'}, found {value!r}"
    if isinstance(value, str):
        return None
    if (unit or "1") != fact.unit:
        return f"the unit must be {'empty' if fact.unit == '1' else repr(fact.unit)}, found {unit!r}"
    is_switch = name.startswith("supports_")
    if isinstance(value, bool) or is_switch:
        right = isinstance(value, bool) and is_switch
        return None if right else f"expected {'true or false' if is_switch else 'a number'}, found {value!r}"
    if value < 0 or (value == 0 and fact.required):
        return f"must be {'above 0' if fact.required else 'at least 0'}, found {value:g}"
    if (fact.whole or fact.unit in WHOLE_UNITS) and value != int(value):
        return f"must be a whole number, found {value!r}"
    least, most = fact.range
    if not least <= value <= most:
        bound = f"at least {least:g}" if value < least else f"at most {most:g}"
        asked = "" if fact.unit == "1" else f" {fact.unit}"
        return f"must be {bound}{asked}, found {value:g}{'; is it in another unit?' if asked and value else ''}"
    return None


def device_problem(device: Mapping[str, Parameter]) -> tuple[str, str, str] | None:
    """Facts of a GPU that cannot hold together: the name of one, what is wrong and what to do; ``None`` without any."""
    low, high, step = (device[f"{name}_mhz"].number for name in ("min_clock", "max_clock", "clock_step"))
    if (high - low) / step > MOST_CLOCKS:
        clocks = f"{low:g} to {high:g} MHz in steps of {step:g} are more than {MOST_CLOCKS} clocks"
        return "clock_step_mhz", clocks, "Give clocks and their distance in MHz."
    if step > high - low > 0:
        return "clock_step_mhz", f"a step of {step:g} MHz leaves no clock between {low:g} and {high:g}", "Correct it."
    limit, idle = (device[f"{name}_w"].number for name in ("power_limit", "idle_power"))
    beside = device["limit_beside_gpu_w"].number if "limit_beside_gpu_w" in device else 0.0
    if idle + beside >= limit:
        taken = f"{idle:g} W at idle" + (f" and {beside:g} W beside the GPU" if beside else "")
        return "idle_power_w", f"{taken} leave nothing of the limit of {limit:g} W", "Correct one of them, in watts."
    return None

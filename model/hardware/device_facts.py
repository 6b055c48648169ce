"""The vocabulary of data-sheet facts: one table of names, units and meanings drives validation and documentation."""

from __future__ import annotations

from dataclasses import dataclass

#: Data types that a description may give a peak for.
DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "fp4", "int8")


@dataclass(frozen=True, slots=True)
class Fact:
    """What one name means; the unit ``word`` marks text, below ``least`` a number means nothing."""

    unit: str
    meaning: str
    required: bool = False
    least: float = 0.0


def _per_dtype(prefix: str, unit: str, meaning: str) -> dict[str, Fact]:
    return {f"{prefix}.{dtype}": Fact(unit, f"{meaning}, {dtype}", least=1.0) for dtype in DTYPES}


#: Facts of a GPU (``[device]``). "SM" stands for whatever the vendor calls its multiprocessors.
DEVICE_FACTS: dict[str, Fact] = {
    "vendor": Fact("word", "maker of the GPU", True),
    "architecture": Fact("word", "architecture's name", True),
    "product": Fact("word", "name that drivers report or data sheets use"),
    "release_year": Fact("1", "year of the first shipments", True),
    "process_node_nm": Fact("nm", "process node by its trade name", True),
    "form_factor": Fact("word", "SXM, OAM, PCIe, superchip"),
    "sm_count": Fact("1", "number of multiprocessors (compute units)", True),
    "dies": Fact("1", "compute dies in the package"),
    "devices": Fact("1", "devices that software sees in the package"),
    "base_clock_mhz": Fact("MHz", "guaranteed SM clock"),
    "boost_clock_mhz": Fact("MHz", "SM clock to which published vector peaks refer", True),
    "tensor_boost_clock_mhz": Fact("MHz", "SM clock to which published tensor peaks refer"),
    "max_clock_mhz": Fact("MHz", "highest SM clock", True),
    "min_clock_mhz": Fact("MHz", "lowest SM clock", True),
    "clock_step_mhz": Fact("MHz", "distance between SM clocks", True),
    "memory_clock_mhz": Fact("MHz", "memory clock as the driver reports it"),
    "memory_bytes": Fact("B", "memory capacity", True),
    "memory_bandwidth_bytes_per_s": Fact("B/s", "peak memory bandwidth", True),
    "memory_bus_bits": Fact("bit", "width of the memory bus"),
    "memory_kind": Fact("word", "HBM2, HBM3e, GDDR6, …", True),
    "supports_memory_clock_states": Fact("1", "whether the memory clock can be set to more than one useful state"),
    "l2_bytes": Fact("B", "second-level cache", True),
    "l2_bandwidth_bytes_per_s": Fact("B/s", "second-level cache bandwidth at the highest clock", True),
    "last_level_cache_bytes": Fact("B", "memory-side cache behind the second level"),
    "last_level_cache_bandwidth_bytes_per_s": Fact("B/s", "its peak bandwidth"),
    "shared_memory_per_sm_bytes": Fact("B", "shared memory (LDS) of one SM", True),
    "registers_per_sm": Fact("1", "32-bit registers of one SM", True),
    "max_threads_per_sm": Fact("1", "resident threads of one SM", True),
    "max_blocks_per_sm": Fact("1", "resident thread blocks of one SM"),
    "power_limit_w": Fact("W", "default board power limit", True),
    "min_power_limit_w": Fact("W", "lowest settable power limit", True),
    "max_power_limit_w": Fact("W", "highest settable power limit", True),
    "limit_beside_gpu_w": Fact("W", "what processors in the module draw under the same limit while GPUs train"),
    "idle_power_w": Fact("W", "board power without work at the lowest clocks", True),
    "link_kind": Fact("word", "NVLink4, PCIe4, xGMI, …", True),
    "link_count": Fact("1", "links to other GPUs", True),
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
    "gpus_per_node": Fact("1", "GPUs in one node (one fully linked group)", True),
    "topology": Fact("word", "switch, full-mesh, pair-bridge or host", True),
    "intra_node_link_kind": Fact("word", "what joins the GPUs of a node", True),
    "link_bandwidth_bytes_per_s": Fact("B/s", "one GPU to all others of the node, one direction", True),
    "peer_bandwidth_bytes_per_s": Fact("B/s", "one GPU to one other, one direction", True),
    "link_latency_s": Fact("s", "one hop within the node", True),
    "switch_count": Fact("1", "switch chips in the node"),
    "switch_power_w": Fact("W", "all switch chips of the node"),
    "supports_in_network_reduction": Fact("1", "whether the switches can reduce (NVLS)"),
    "nics_per_node": Fact("1", "network cards for the training network", True),
    "network": Fact("word", "catalogue name of the usual network", True),
    "cpu_sockets": Fact("1", "processors"),
    "cpu_idle_power_w": Fact("W", "processors and their memory at idle"),
    "cpu_training_power_w": Fact("W", "processors and their memory while GPUs train"),
    "fan_power_w": Fact("W", "fans at training load"),
    "other_power_w": Fact("W", "storage, board and management", True),
    "supply_efficiency": Fact("1", "power supplies' efficiency at training load", True),
    "max_power_w": Fact("W", "highest input power by the data sheet"),
    "price": Fact("USD", "a whole node with its GPUs"),
}

#: Facts of a network (``[network]``).
NETWORK_FACTS: dict[str, Fact] = {
    "kind": Fact("word", "infiniband or ethernet", True),
    "generation": Fact("word", "NDR, XDR, 400G, …"),
    "nic_bandwidth_bytes_per_s": Fact("B/s", "one network card, one direction", True),
    "bandwidth_efficiency": Fact("1", "share of it that large messages reach", True),
    "latency_s": Fact("s", "one-way latency of a small message through one switch", True),
    "hop_latency_s": Fact("s", "each further switch", True),
    "message_overhead_s": Fact("s", "collective library's cost of a network step"),
    "nic_idle_power_w": Fact("W", "network card at idle", True),
    "nic_power_w": Fact("W", "network card at full rate", True),
    "transceiver_power_w": Fact("W", "optical module of one port", True),
    "switch_port_power_w": Fact("W", "share of the switch for one port, without optics", True),
    "switch_ports": Fact("1", "ports of one switch", least=4.0),
    "supports_in_network_reduction": Fact("1", "whether the switches can reduce (SHARP)"),
}

#: Facts of a site (``[site]``).
SITE_FACTS: dict[str, Fact] = {
    "currency": Fact("word", "currency of its prices", True),
    "pue": Fact("1", "energy at the facility's meter over energy of its computers", True),
    "electricity_price_per_kwh": Fact("currency/kWh", "price of electricity", True),
    "carbon_intensity_kg_per_kwh": Fact("kg/kWh", "CO2 equivalent of electricity", True),
    "hardware_lifetime_years": Fact("year", "time until hardware is replaced", True),
    "hardware_utilisation": Fact("1", "share of the lifetime in which hardware does paid work", True),
    "network_price_per_nic": Fact("currency", "network card with its share of cables and switches", True),
    "embodied_kg_per_gpu": Fact("kg", "CO2 equivalent of making a GPU with its share of node and network", True),
}

#: Facts that must not decrease in this order.
ORDERED_FACTS = (("min_clock_mhz", "max_clock_mhz"), ("min_power_limit_w", "power_limit_w", "max_power_limit_w"))

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
    if isinstance(value, bool) and not is_switch:
        return f"expected a number, found {value!r}"
    if value < 0 or (value == 0 and fact.required and not is_switch):
        return f"must be {'above 0' if fact.required else 'at least 0'}, found {value!r}"
    return f"must be at least {fact.least:g}, found {value!r}" if value < fact.least else None

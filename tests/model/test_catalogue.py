"""The shipped hardware catalogue: complete, sourced and consistent with the published figures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import joulecast as jc
from joulecast.errors import InputError, UnknownNameError
from joulecast.model.hardware import catalogue
from joulecast.model.hardware.catalogue import (
    gpu_names,
    load_gpu,
    load_network,
    load_node,
    network_names,
    node_names,
    read_gpu,
)
from joulecast.model.hardware.derivation import rule_for
from joulecast.model.hardware.derivation_rules import RULES
from joulecast.model.hardware.derivation_supplement import SUPPLEMENT, VENDOR_LONGER
from joulecast.model.hardware.description import Facts, Parameter
from joulecast.model.hardware.description_file import covariance_problem
from joulecast.model.hardware.device_facts import FACTS
from joulecast.model.hardware.technology import TECHNOLOGY
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

GPUS = [
    "v100-sxm2-16gb",
    "v100-sxm2-32gb",
    "a40",
    "a100-sxm-40gb",
    "a100-sxm-80gb",
    "a100-sxm-80gb-500w",
    "a100-pcie-80gb",
    "a800-sxm-80gb",
    "h100-sxm",
    "h100-pcie",
    "h100-nvl",
    "h800-sxm",
    "gh200",
    "gh200-120gb",
    "h200-sxm",
    "h200-nvl",
    "b200",
    "gb200",
    "gb300",
    "b300",
    "l40s",
    "rtx-4090",
    "rtx-a6000",
    "mi210",
    "mi250x",
    "mi250x-gcd",
    "mi300x",
    "mi325x",
    "mi350x",
    "mi355x",
]


#: Parameters that the physics reads of the descriptions that state them, and does without elsewhere.
READ_WHERE_STATED = {
    "transfer_latency_s",
    "transfer_link_share",
    "attention.cudnn.backward.wide",
    "attention.flash-attn-2.backward.pace",
    "attention.te-cudnn.backward.pace",
    "attention.te-cudnn.forward.pace",
    "answer_s",
    "interference",
}


def test_the_named_gpus_are_there() -> None:
    assert set(GPUS) <= set(gpu_names())
    assert {"dgx-a100", "dgx-h100", "hgx-h200", "hgx-b200", "gb200-nvl72", "mi300x-8", "a40-pair"} <= set(node_names())
    assert {"infiniband-ndr", "infiniband-xdr", "roce-400g"} <= set(network_names())


def check(kind: str, parameters: dict[str, Parameter]) -> None:
    for name, parameter in parameters.items():
        fact = FACTS[kind][name]
        assert parameter.source, name
        assert parameter.unit == ("" if fact.unit in ("word", "1") else fact.unit), name
        if parameter.status == "estimate" and isinstance(parameter.value, float) and "clock" not in name:
            assert parameter.sd > 0, name


@pytest.mark.parametrize("name", GPUS)
def test_every_number_of_a_gpu_has_source_unit_and_uncertainty(name: str) -> None:
    parsed = read_gpu(name)
    assert parsed.name == name
    check("device", dict(parsed.device))


@pytest.mark.parametrize("name", node_names())
def test_nodes(name: str) -> None:
    node = load_node(name)
    assert node.name == name
    check("node", dict(node.parameters))
    assert node.text("gpu") in GPUS
    assert node.text("network") in network_names()
    gpu = read_gpu(node.text("gpu")).device
    assert node["link_bandwidth_bytes_per_s"] <= gpu["link_bandwidth_bytes_per_s"].number
    assert node["peer_bandwidth_bytes_per_s"] <= node["link_bandwidth_bytes_per_s"]
    if node.text("topology") == "full-mesh":
        peers = node["gpus_per_node"] - 1
        assert node["peer_bandwidth_bytes_per_s"] * peers == pytest.approx(node["link_bandwidth_bytes_per_s"])


@pytest.mark.parametrize("name", network_names())
def test_networks(name: str) -> None:
    network = load_network(name)
    assert network.name == name
    check("network", dict(network.parameters))
    assert network["nic_idle_power_w"] < network["nic_power_w"]


@pytest.mark.parametrize("name", GPUS)
def test_peaks_follow_from_units_and_clocks(name: str) -> None:
    device = read_gpu(name).device
    vector_clock = device["boost_clock_mhz"].number
    tensor_clock = device["tensor_boost_clock_mhz"].number
    published = {key: p.number for key, p in device.items() if key.startswith("published_")}
    assert any(key.startswith("published_tensor") for key in published)
    for key, peak in published.items():
        unit, dtype = key.removeprefix("published_").split("_")[0], key.split(".")[1]
        # Data sheets quote double precision at the higher of the two boost clocks.
        clock = tensor_clock if unit == "tensor" and dtype != "fp64" else vector_clock
        per_cycle = device[f"{unit}_flops_per_sm_per_cycle.{dtype}"].number
        assert device["sm_count"].number * per_cycle * clock * 1e6 == pytest.approx(peak, rel=0.03), key


@pytest.mark.parametrize("name", GPUS)
def test_memory_bandwidth_follows_from_clock_and_bus(name: str) -> None:
    device = read_gpu(name).device
    # Of HBM3 AMD's tools report half the clock that NVIDIA's do.
    transfers = 4 if device["vendor"].value == "AMD" and str(device["memory_kind"].value).startswith("HBM3") else 2
    peak = device["memory_clock_mhz"].number * 1e6 * transfers * device["memory_bus_bits"].number / 8
    assert peak == pytest.approx(device["memory_bandwidth_bytes_per_s"].number, rel=0.07)


@pytest.mark.parametrize("name", GPUS)
def test_limits_are_ordered_and_technology_is_known(name: str) -> None:
    device = read_gpu(name).device
    number = {key: p.number for key, p in device.items() if not isinstance(p.value, str)}
    assert number["min_clock_mhz"] < number["boost_clock_mhz"] <= number["max_clock_mhz"]
    assert number["idle_power_w"] < number["min_power_limit_w"]
    assert number["min_power_limit_w"] < number["power_limit_w"] <= number["max_power_limit_w"]
    for fact, figures in TECHNOLOGY.values():
        assert device[fact].value in figures


#: Fitted to rows of their own, not derived.
CALIBRATED = ("h200-sxm",)


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_all_tables(name: str) -> None:
    relative, gpu = load_gpu("h200-sxm-rows"), load_gpu(name)
    assert bool(gpu.derivation) == (name not in CALIBRATED)
    for table, group in gpu.tables.items():
        # A stated parameter that the physics does not know would be read by nobody.
        alike = "scaled by rules" in gpu.derivation and gpu.text("vendor") == "NVIDIA"
        added = SUPPLEMENT.get(table, {}).keys() if alike else set()
        if table == "kernel" and gpu.text("vendor") != relative.text("vendor"):
            added = {VENDOR_LONGER}
        assert set(group) - READ_WHERE_STATED == set(relative.tables[table]) | added, table
        assert covariance_problem(group.covariance) is None, table
        assert all(parameter.source for parameter in group.parameters.values()), table
    assert [(row.name, row.value) for row in gpu.rows()][: len(gpu.device)] == [
        (key, parameter.value) for key, parameter in gpu.device.items()
    ]


def test_every_fitted_parameter_has_a_rule() -> None:
    for table, group in load_gpu("h200-sxm-rows").tables.items():
        assert [name for name in group if rule_for(table, name) is RULES[-1]] == []


def test_fp8_costs_less_of_bf16s_energy_on_blackwell_and_on_amds_cards() -> None:
    def ratio(name: str) -> float:
        fp8, bf16 = (load_gpu(name).power.parameters[f"tensor_pj_per_flop.{dtype}"] for dtype in ("fp8", "bf16"))
        return fp8.number / bf16.number

    reference = ratio("h200-sxm-rows")
    assert [ratio(name) / reference for name in ("h100-sxm", "mi300x")] == pytest.approx([1.0, 0.85])
    assert [ratio(name) / reference for name in ("b200", "gb200", "gb300")] == pytest.approx([0.5, 0.5, 0.62])


#: AMD's largest products [TFLOP/s] and their clocks [MHz], ROCm blogs, Measuring Max-Achievable FLOPs, part 2.
LARGEST = {
    ("mi300x", "fp16"): (654, 1115),
    ("mi300x", "bf16"): (708, 1207),
    ("mi300x", "fp8"): (1273, 1230),
    ("mi325x", "fp16"): (794, 1354),
    ("mi325x", "bf16"): (843, 1447),
    ("mi325x", "fp8"): (1519, 1464),
}


@pytest.mark.parametrize(("name", "dtype"), LARGEST)
def test_amds_largest_products_run_at_their_rates_and_clocks(name: str, dtype: str) -> None:
    tflops, clock = LARGEST[name, dtype]
    product = jc.Gemm(4096, 3648 if dtype == "fp8" else 4864, 32896, dtype=dtype)
    found = jc.gpu(name).predict(product)
    assert 2e-12 * product.m * product.n * product.k / found.time_s == pytest.approx(tflops, rel=0.09)
    assert found.clock_mhz == pytest.approx(clock, rel=0.16)


#: Bus bandwidth of RCCL's all-reduces of so many MB on eight MI300X [GB/s]: of a virtual machine (Azure's AI
#: benchmarking guide), of bare ones (AMD's blog on RCCL and xGMI).
REDUCED = {
    1: (22.41, 66.92),
    16: (171.46, 197.31),
    64: (266.34, 273.69),
    256: (302.80, 305.62),
    1024: (313.92, 314.72),
    4096: (314.85, 317.41),
}


@pytest.mark.parametrize("megabytes", REDUCED)
def test_collectives_of_mi300x_run_as_published(megabytes: int) -> None:
    size = float(megabytes * 2**20)
    found = jc.gpu("mi300x").predict(jc.Collective("all_reduce", size, 8, dtype="bf16"))
    midway = math.sqrt(math.prod(REDUCED[megabytes]))
    near = 0.22 if megabytes == 16 else 0.075
    assert 1.75e-9 * size / found.time_s == pytest.approx(midway, rel=near)


def test_the_calibrated_facts_are_the_data_sheets() -> None:
    sheet = {name: parameter.value for name, parameter in read_gpu("h200-sxm").device.items()}
    assert {name: p.value for name, p in load_gpu("h200-sxm-rows").device.items()} == sheet


def test_unknown_names_list_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown GPU 'h100sxm'. Did you mean 'h100-sxm'"):
        load_gpu("h100sxm")
    with pytest.raises(UnknownNameError, match=r"unknown node 'dgx-h200'. Did you mean"):
        load_node("dgx-h200")
    with pytest.raises(UnknownNameError, match=r"unknown network 'infinband-ndr'. Did you mean 'infiniband-ndr'"):
        load_network("infinband-ndr")


def plan_on(gpu: str) -> Plan:
    workload = {"model": "llama-3.1-8b", "sequence_length": 2048, "micro_batch_size": 1, "global_batch_size": 1}
    return plan_from_dict({"workload": workload, "cluster": {"gpu": gpu, "gpus": 1}}, None, [])


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("nvidia l40s", "l40s"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_gpu_may_be_called_as_its_driver_does(driver: str, name: str) -> None:
    assert jc.gpu(driver).name == name
    assert read_gpu(driver) is read_gpu(name)
    plan = plan_on(driver)
    assert plan.cluster.gpu == name


def test_a_drivers_name_of_cards_with_several_limits_is_asked_about() -> None:
    names = r"Give one of a100-sxm-80gb, a100-sxm-80gb-500w\."
    with pytest.raises(UnknownNameError, match=rf"several GPUs are called 'NVIDIA A100-SXM4-80GB'\. {names}"):
        load_gpu("NVIDIA A100-SXM4-80GB")
    with pytest.raises(InputError, match=rf"\[cluster.gpu\]: several GPUs .*{names}"):
        plan_on("NVIDIA A100-SXM4-80GB")


def test_unknown_facts_list_the_nearest() -> None:
    node = load_node("hgx-h200")
    assert isinstance(node, Facts)
    assert node.get("max_power_w", 1.0) == 1.0
    with pytest.raises(UnknownNameError, match="nics_per_node"):
        node["nic_per_node"]


def test_a_missing_file_is_one_readable_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: no such file"):
        load_gpu(tmp_path / "none.toml")


def test_a_derivation_that_goes_nowhere(tmp_path: Path) -> None:
    shipped = Path(catalogue.__file__).parents[1] / "catalogue_data" / "gpus" / "a40.toml"
    path = tmp_path / "own.toml"
    path.write_text(shipped.read_text(encoding="utf-8").replace("h200-sxm-rows", "h300"), encoding="utf-8")
    with pytest.raises(InputError, match=r"own\.toml \[derivation.relative\]: unknown GPU 'h300'"):
        load_gpu(path)
    path.write_text(shipped.read_text(encoding="utf-8").replace("h200-sxm-rows", "none/h300.toml"), encoding="utf-8")
    with pytest.raises(InputError, match=r"own\.toml \[derivation.relative\]: none/h300\.toml: no such file"):
        load_gpu(path)
    path.write_text(shipped.read_text(encoding="utf-8").replace("h200-sxm-rows", str(path)), encoding="utf-8")
    with pytest.raises(InputError, match="goes in a circle"):
        load_gpu(path)


def like(tmp_path: Path, kin: str, *lines: str, name: str = "own") -> Path:
    path = tmp_path / f"{name}.toml"
    path.write_text("\n".join(["schema_version = 1", f'name = "{name}"', f'like = "{kin}"', *lines]), encoding="utf-8")
    return path


LIMIT = ("[device]", 'power_limit_w = {value = 350, unit = "W", sd = 0, source = "own board", status = "data sheet"}')


def test_what_a_description_does_not_state_is_that_of_the_one_it_is_like(tmp_path: Path) -> None:
    own, kin = load_gpu(like(tmp_path, "a100-sxm-80gb", *LIMIT)), load_gpu("a100-sxm-80gb")
    assert (own.name, own.number("power_limit_w"), own.device["power_limit_w"].source) == ("own", 350.0, "own board")
    assert {n: p for n, p in own.device.items() if n != "power_limit_w"} == {
        n: p for n, p in kin.device.items() if n != "power_limit_w"
    }
    assert own.power.parameters["static_w"] == kin.power.parameters["static_w"] and own.derivation == kin.derivation
    third = load_gpu(like(tmp_path, str(tmp_path / "own.toml"), name="third"))
    assert third.number("power_limit_w") == 350.0


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("[kernel]", "parameters = {}"), r"own\.toml:4 \[kernel\.provenance\]: this key is missing\. Add it"),
        (("device = 3",), r"own\.toml:4 \[device\]: input should be a valid dictionary, found 3\. Make it a table"),
        (
            ("derived = 7",),
            r"own\.toml:4 \[derived\]: input should be a valid string, found 7\. Write a text in quotes",
        ),
    ],
)
def test_what_is_missing_or_of_the_wrong_type_is_said_with_its_remedy(
    tmp_path: Path, lines: tuple[str, ...], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        load_gpu(like(tmp_path, "h100-sxm", *lines))


def test_the_path_of_a_kin_starts_in_the_folder_of_the_file_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a plan's path of a GPU does: it started where the command ran."""
    for folder in ("cards", "kin"):
        (tmp_path / folder).mkdir()
    relative = '[derivation]\nrelative = "base.toml"'
    like(tmp_path / "kin", "h200-sxm-rows", name="base")
    like(tmp_path / "kin", "a100-sxm-80gb", relative, *LIMIT, name="kin")
    like(tmp_path / "cards", "../kin/kin.toml")
    for start, path in (
        (tmp_path, "cards/own.toml"),
        (tmp_path / "cards", "own.toml"),
        (tmp_path / "kin", "../cards/own.toml"),
    ):
        monkeypatch.chdir(start)
        assert load_gpu(path).number("power_limit_w") == 350.0
    like(tmp_path / "kin", "../cards/own.toml", name="kin")
    with pytest.raises(InputError, match=r"kin\.toml \[like\]: like goes in a circle: .*own\.toml -> .*kin\.toml -> "):
        load_gpu("../cards/own.toml")


def test_a_description_with_a_derivation_of_its_own_takes_facts_alone(tmp_path: Path) -> None:
    own = load_gpu(like(tmp_path, "a100-sxm-80gb", "[derivation]", 'relative = "h200-sxm-rows"', *LIMIT))
    kin = load_gpu("a100-sxm-80gb")
    assert own.number("sm_count") == 108
    assert kin.power.parameters["static_w"].status == "estimate"
    assert own.power.parameters["static_w"].status == "derived"


@pytest.mark.parametrize(
    ("kin", "expected"),
    [
        ("a100-sxm-80g", r"own\.toml \[like\]: unknown GPU 'a100-sxm-80g'\. Did you mean 'a100-sxm-80gb'"),
        ("none/kin.toml", r"own\.toml \[like\]: none/kin\.toml: no such file"),
        ("OWN", r"like goes in a circle: .*own\.toml -> .*own\.toml\. Name another description"),
    ],
)
def test_a_description_that_is_like_nothing_readable(tmp_path: Path, kin: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        load_gpu(like(tmp_path, str(tmp_path / "own.toml") if kin == "OWN" else kin, *LIMIT))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("A100", "a100-sxm-40gb"),  # not a40, which is spelt more alike
        ("GB200 NVL72", "gb200"),
        ("h100sxm", "h100-sxm"),
    ],
)
def test_what_people_call_a_gpu_leads_to_its_name(name, found):
    with pytest.raises(UnknownNameError, match=rf"Did you mean '{found}'"):
        load_gpu(name)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H200", "h200-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),  # what nvidia-smi says
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_what_a_driver_calls_a_gpu_is_its_name(name, found):
    assert load_gpu(name).name == found


def test_a_description_of_the_catalogue_is_made_once() -> None:
    first = {name: load_gpu(name) for name in gpu_names()}
    assert all(load_gpu(name) is one for name, one in first.items())


def test_a_file_that_is_no_toml_is_not_called_an_unknown_gpu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(InputError, match=r"card\.json: a description of a GPU ends in \.toml"):
        load_gpu("card.json")
    (tmp_path / "a40").write_text("")
    assert load_gpu("a40").name == "a40"

"""Factors of long training runs: what they do to a description and a forecast, and how they are fitted."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from joulecast.calibrate.published import generations
from joulecast.calibrate.published.fit import Linearised, factors_of, fit, linearise, log_times
from joulecast.calibrate.published.shipped import training_toml
from joulecast.model.hardware.catalogue import load_gpu, load_training
from joulecast.model.hardware.description import Parameter
from joulecast.model.hardware.description_file import parse_training
from joulecast.model.hardware.gpu_model import gpu_model
from joulecast.model.kernels.lowering import lower
from joulecast.model.kernels.operators import Attention, Gemm
from joulecast.model.power.kernel_power import at_clock
from joulecast.model.training.factors import (
    EXPERTS_SD,
    HYBRIDS_SD,
    MUON_SD,
    Generation,
    factors_on,
    scaled,
    trained,
)
from joulecast.model.uncertainty import NINETY_PERCENT
from joulecast.simulator.iteration.forecast import forecast
from joulecast.simulator.plan_file.gpu import gpu_of
from joulecast.simulator.plan_file.plan import Plan, plan_from_dict

H100 = load_gpu("h100-sxm")
KERNELS = [Gemm(8192, 8192, 8192), Gemm(8192, 8192, 8192, dtype="fp8"), Attention(1, 32, 8, 4096, 128)]


def times(factors: dict[str, float]) -> np.ndarray:
    gpu = gpu_model(scaled(H100, factors))
    return at_clock(lower(KERNELS, gpu), 1500.0, gpu).time_s


def plan(framework: str = "megatron", model: str = "llama-3.1-8b", **implementation: object) -> Plan:
    tables = {
        "workload": {"model": model, "layers": 2, "sequence_length": 4096, "global_batch_size": 8},
        "cluster": {"gpu": "h100-sxm", "gpus": 2},
        "parallelism": {"tensor_model_parallel_size": 2, "sequence_parallel": framework == "megatron"},
        "schedule": {"name": "none"},
        "implementation": {"framework": framework, **implementation},
    }
    return plan_from_dict(tables)


@pytest.mark.parametrize(
    ("unlike", "sd"),
    [
        ({"model": "qwen3-30b-a3b"}, EXPERTS_SD),
        ({"model": "nemotron-h-8b"}, HYBRIDS_SD),
        ({"model": "nemotron-3-nano-30b-a3b"}, np.hypot(EXPERTS_SD, HYBRIDS_SD)),
        ({"optimizer": "muon"}, MUON_SD),
    ],
)
@pytest.mark.parametrize("generation", [{}, {"generation": "megatron-bridge-2025"}])
def test_steps_unlike_dense_ones_are_less_sure_by_as_much(
    unlike: dict[str, str], sd: float, generation: dict[str, str]
) -> None:
    """Graphs leave no pace of the host open, and published steps replace what kernels add up to."""
    dense, other = (forecast(plan(cuda_graphs=True, **generation, **more)) for more in ({}, unlike))
    known, wider = (NINETY_PERCENT**-1 * np.log(one.time_s / one.time_s_p05) for one in (dense, other))
    assert wider == pytest.approx(np.hypot(known, sd))


@pytest.mark.parametrize(("gpu", "said"), [("mi300x", True), ("h100-sxm", False)])
def test_what_of_another_vendors_software_is_not_known_is_said(gpu: str, said: bool) -> None:
    one = plan("pytorch-eager")
    found = forecast(replace(one, cluster=replace(one.cluster, gpu=gpu)), must_fit=False)
    assert ("how far the GPU's software is tuned for training is not known" in " ".join(found.assumptions)) == said


def test_each_factor_acts_on_its_kernels_alone() -> None:
    plain = times({})
    assert times({"products.fp8": 1.1})[[0, 2]].tolist() == plain[[0, 2]].tolist()
    assert times({"products.fp8": 1.1})[1] < 0.95 * plain[1]
    assert times({"products.bf16": 1.1})[0] < 0.95 * plain[0]
    assert times({"attention": 1.1})[2] == pytest.approx(plain[2] / 1.1, rel=0.02)
    assert times({"time": 1.1}) == pytest.approx(1.1 * plain)


def test_products_with_scales_of_blocks_are_slower() -> None:
    products = [Gemm(8192, 8192, 8192, dtype="fp8", block_scaled=blocked) for blocked in (False, True)]

    def rates(factors: dict[str, float]) -> np.ndarray:
        gpu = gpu_model(scaled(load_gpu("b200"), factors))
        return 1.0 / at_clock(lower(products, gpu), 1500.0, gpu).time_s

    whole, blocked = rates({})
    assert 0.8 < blocked / whole < 0.9
    faster = rates({"products.blocked": 1.1})
    assert faster[0] == whole
    assert faster[1] == pytest.approx(1.1 * blocked, rel=0.02)


def test_uncertainty_scales_with_the_value() -> None:
    before, after = H100.collective, scaled(H100, {"links": 0.9}).collective
    assert after["link_share"] == pytest.approx(0.9 * before["link_share"])
    assert after.parameters["link_share"].sd == pytest.approx(0.9 * before.parameters["link_share"].sd)
    places = [i for i, name in enumerate(before.covariance_names) if name == "link_share"]
    for i in places:
        assert after.covariance[i, i] == pytest.approx(0.81 * before.covariance[i, i])


def test_factors_belong_to_an_architecture_or_a_generation() -> None:
    known = {"Hopper.attention": 1.0, "Blackwell.attention": 1.0, "Hopper.spread.bf16": 0.04, "network": 1.0}
    known |= {"generation.nemo-2024": 1.0}
    assert factors_on(H100, "nemo-2024", known) == {
        "Hopper.attention": "attention",
        "network": "network",
        "generation.nemo-2024": "time",
    }
    assert factors_on(load_gpu("mi300x"), "", known) == {"network": "network"}
    faster = trained(H100, "", {"Hopper.products.bf16": Parameter(1.2), "Hopper.spread.bf16": Parameter(0.05)})
    assert faster.kernel["gemm.efficiency.bf16"] == 1.2
    known = forecast(plan(), faster)
    assert known.time_s_p95 == pytest.approx(known.time_s * np.exp(1.645 * 0.05))
    assert known.time_s_p05 == pytest.approx(known.time_s / np.exp(1.645 * 0.05))


def test_only_megatron_reads_them() -> None:
    assert gpu_of(plan("pytorch-eager")) is H100
    assert gpu_of(plan(generation="nemo-2024")) is gpu_of(plan(generation="nemo-2024"))


def test_no_instruction_is_shorter_than_its_host_needs() -> None:
    chosen, slow = plan(), scaled(H100, {"host": 20.0})
    waiting = forecast(chosen, slow)
    assert waiting.time_s > 1.5 * forecast(chosen, scaled(H100, {"host": 0.01})).time_s
    graphs = replace(chosen, implementation=replace(chosen.implementation, cuda_graphs=True))
    assert forecast(graphs, slow).time_s == pytest.approx(forecast(graphs, H100).time_s, rel=1e-3)


def test_a_fit_finds_factors_and_bears_an_outlier() -> None:
    rng = np.random.default_rng(7)
    slopes = rng.uniform(-1.0, 1.0, (40, 3))
    model = Linearised(("a", "b", "c"), np.zeros(3), np.ones(40), slopes, np.full(3, 0.2))
    truth = np.array([0.1, -0.05, 0.08])
    measured = model.log_time(truth) + rng.normal(0.0, 0.005, 40)
    measured[3] += 0.5
    measured[4] = np.nan
    found = fit(model, measured, np.ones(40))
    assert found.values == pytest.approx(truth, abs=0.01)
    use = np.ones(40)
    use[10:] = 0.0
    changed = measured.copy()
    changed[10:] += 1.0
    assert fit(model, changed, use).values == pytest.approx(fit(model, measured, use).values, abs=1e-12)


def test_the_linearised_model_follows_the_forecast() -> None:
    run = plan(generation="nemo-2024")
    model = linearise([run])
    assert set(model.names) >= {"Hopper.attention", "Hopper.products.bf16", "generation.nemo-2024"}
    factors = {"Hopper.products.bf16": 0.92, "Hopper.links": 1.08, "generation.nemo-2024": 1.05}
    values = np.log([factors.get(name, 1.0) for name in model.names])
    exact = log_times([run], factors)[0]
    assert model.log_time(values)[0] == pytest.approx(exact, abs=0.01)
    assert abs(exact - model.base[0]) > 0.03


def test_what_is_written_is_read_again() -> None:
    model = Linearised(("Ampere GA100.attention", "network"), np.zeros(2), np.zeros(1), np.zeros((1, 2)), np.ones(2))
    fitted = fit(model, np.array([0.0]), np.ones(1))
    text = training_toml(fitted, {"Hopper.fp8": 0.04}, "a test", {"gpu": 0.05, "generation": 0.0}, {"a100-sxm-80gb": 7})
    read = parse_training(text, file="t.toml")
    own = {"Ampere GA100.attention", "network", "Hopper.spread.fp8"}
    assert set(read) == own | {"unseen.gpu", "rows.a100-sxm-80gb"}
    assert (read["network"].number, read["unseen.gpu"].number, read["rows.a100-sxm-80gb"].number) == (1.0, 0.05, 7)
    assert set(parse_training(training_toml(fitted, {"Hopper.fp8": 0.04}, "a test", {}, {}), file="t.toml")) == own


def test_an_interval_is_wider_where_gpu_or_framework_are_unknown() -> None:
    known = {"Hopper.spread.fp8": 0.04, "unseen.gpu": 0.03, "unseen.generation": 0.12, "rows.h100-sxm": 9}
    known |= {"generation-spread.deepspeed": 0.09}
    factors = {name: Parameter(value, 0.0, "", "", "fitted") for name, value in known.items()}

    def spread(gpu: str, generation: str, name: str = "training_spread.fp8") -> float:
        return trained(load_gpu(gpu), generation, factors).kernel.parameters[name].number

    assert spread("h100-sxm", "nemo-2024") == pytest.approx(0.04)
    assert spread("h100-pcie", "nemo-2024") == pytest.approx(0.05)
    assert spread("h100-sxm", "") == pytest.approx(np.hypot(0.04, 0.12))
    assert spread("h100-pcie", "") == pytest.approx(0.13)
    # A framework whose sources differ more than most has more of its own.
    assert spread("h100-sxm", "deepspeed") == pytest.approx(np.hypot(0.04, 0.09))
    # A card that was measured itself is not unknown, an architecture without published steps is.
    assert spread("h200-sxm", "nemo-2024") == pytest.approx(0.04)
    assert spread("v100-sxm2-16gb", "nemo-2024", "training_spread_unseen") == pytest.approx(0.03)


def test_an_unknown_framework_widens_a_forecast_without_a_spread_of_its_own() -> None:
    named, unnamed = (
        forecast(replace(plan(generation=g), cluster=replace(plan().cluster, gpu="a100-sxm-80gb")), must_fit=False)
        for g in ("nemo-2024", None)
    )
    assert unnamed.time_s_p95 / unnamed.time_s > named.time_s_p95 / named.time_s > 1.0
    # Frameworks without a scalar took longer than forecast, none less.
    assert named.time_s_p95 / named.time_s == pytest.approx(named.time_s / named.time_s_p05)
    assert unnamed.time_s_p95 / unnamed.time_s > 1.05 * unnamed.time_s / unnamed.time_s_p05


def test_the_shipped_factors_are_near_one_and_sourced() -> None:
    """All but FP8 on GB200, of which no kernel has been published, the network, of which few were, and DeepSpeed."""
    about = (".spread.", "unseen.", "rows.", "generation-spread.")
    factors = {name: p for name, p in load_training().items() if not any(word in name for word in about)}
    assert factors
    others = (".energy.", "gb200.products.fp8", "network", "deepspeed")
    assert all(0.8 < p.number < 1.3 for name, p in factors.items() if not any(word in name for word in others))
    assert factors["gb200.products.fp8"].number > 0.65
    assert all(0.7 < p.number < 1.5 for name, p in factors.items() if name != "gb200.products.fp8")
    assert all(0.0 < p.sd < 0.3 and p.status == "fitted" and p.source for p in factors.values())


def test_every_gpu_with_published_steps_is_counted() -> None:
    shipped = load_training()
    counted = {name.removeprefix("rows."): p.number for name, p in shipped.items() if name.startswith("rows.")}
    assert set(counted) == {"a100-sxm-80gb", "b200", "gb200", "gb300", "h100-sxm"}
    assert sum(counted.values()) == 167
    assert all(0.02 < shipped[f"unseen.{what}"].number < 0.2 for what in ("gpu", "generation"))


def test_generations_have_one_name_everywhere() -> None:
    fitted = {name.removeprefix("generation.") for name in load_training() if name.startswith("generation.")}
    planned = {generation.scalar for generation in generations.GENERATIONS if generation.scalar}
    assert fitted == planned == set(get_args(Generation))
    assert all(plan(generation=name).implementation.generation == name for name in get_args(Generation))


def test_gb200_has_factors_of_its_own() -> None:
    known = {"Blackwell.attention": 1.0, "gb200.attention": 1.0, "Blackwell.spread.fp8": 1.0}
    assert factors_on(load_gpu("gb200"), "", known) == {"gb200.attention": "attention"}
    assert factors_on(load_gpu("b200"), "", known) == {"Blackwell.attention": "attention"}
    run = replace(plan(), cluster=replace(plan().cluster, gpu="gb200"))
    assert {name.partition(".")[0] for name in factors_of(run)} == {"gb200", "host"}


def test_what_a_cards_own_steps_do_not_tell_its_architectures_do() -> None:
    known = {"Blackwell.attention": 1.0, "gb200.attention": 1.0, "Blackwell.products.blocked": 1.0}
    known |= {"Blackwell.spread.bf16": 1.0, "Blackwell Ultra.products.bf16": 1.0}
    found = {"gb200.attention": "attention", "Blackwell.products.blocked": "products.blocked"}
    assert factors_on(load_gpu("gb200"), "", known) == found
    assert "Blackwell.products.blocked" in factors_on(load_gpu("gb200"), "", load_training())


def test_a_fit_may_be_held_near_where_the_model_was_linearised() -> None:
    model = Linearised(("generation.nemo-2024",), np.array([0.1]), np.zeros(1), np.ones((1, 1)), np.array([10.0]))
    target = np.array([0.3])
    free = fit(model, target, np.ones(1))
    held = fit(model, target, np.ones(1), trust_sd=1e-6)
    assert free.values == pytest.approx([0.4], rel=0.02)
    assert held.values == pytest.approx([0.1], abs=1e-4)
    assert fit(model, target, np.ones(1), trust_sd=np.inf).values == free.values


def test_scatter_counts_what_the_rows_have_left_beside_the_factors_they_tell() -> None:
    """Of 12 rows that tell three factors, two of them related, between nine and ten are left to scatter."""
    rng = np.random.default_rng(3)
    names = ("Blackwell.links", "Blackwell Ultra.links", "network")
    model = Linearised(names, np.zeros(3), np.zeros(12), rng.uniform(-1.0, 1.0, (12, 3)), np.full(3, 0.5))
    measured = rng.normal(0.0, 0.1, 12)
    found = fit(model, measured, np.ones(12))
    off = np.abs(measured - model.log_time(found.values)) / 0.03
    told = model.slopes.T @ (model.slopes / (0.03**2 * np.maximum(1.0, off))[:, None])
    related = np.array([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]) / 0.07**2
    alone = np.linalg.inv(told + related + np.diag([4.0, 0.0, 4.0]))
    left = 12.0 - np.trace(told @ alone)
    assert 9.0 < left < 10.0
    assert found.covariance == pytest.approx(alone * np.sum(off**2) / left, rel=1e-4)

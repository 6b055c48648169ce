"""What launches cost PyTorch's host, against iterations of tiny models and of whole ones."""

import json
import math
from statistics import fmean, median, pstdev

import pytest
from launched import costs
from paths import ROOT
from row_files import json_rows

from joulecast.simulator.instructions.eager_launches import HOOKED, HOOKS, SHARDED_LAUNCHES, WHOLE
from joulecast.simulator.plan_file.plan import plan_from_dict

FOLDER = ROOT / "validate/recorded/host_launches"
DOCTOR = 444
SIZES = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}
GPT2 = {"n_embd": 128, "n_head": 4, "n_positions": 512, "vocab_size": 512}
WIDE = {"head_dim": 32}
FAMILIES = {
    "llama": {"model_type": "llama", **SIZES},
    "qwen2": {"model_type": "qwen2", **SIZES},
    "qwen3": {"model_type": "qwen3", **SIZES, **WIDE},
    "gemma": {"model_type": "gemma", **SIZES, **WIDE},
    "gemma2": {"model_type": "gemma2", **SIZES, **WIDE},
    "gpt2": {"model_type": "gpt2", **GPT2},
    "phi": {"model_type": "phi", **SIZES, "num_key_value_heads": 4},
    "phi3": {"model_type": "phi3", **SIZES},
    "olmo2": {"model_type": "olmo2", **SIZES},
    "granite": {"model_type": "granite", **SIZES},
    "mixtral": {"model_type": "mixtral", **SIZES, "num_local_experts": 8, "num_experts_per_tok": 2},
}


def rows(name):
    return json_rows(FOLDER / f"{name}.jsonl")


def plan_of(model, *, row, tokens=64, batch=1, gpu="h200-sxm"):
    gpus = row.get("gpus", 1)
    run = {"framework": "pytorch-eager", "modules": "transformers", "host_launch_us": 38.0}
    run |= {"attention_backend": "unfused"} if row.get("attention") == "eager" else {}
    run |= {"liger_kernel": True} if row.get("liger") else {}
    run |= {"gradient_clipping": True} if row.get("clip") or row.get("how") == "clip" else {}
    wide = row.get("autocast") or row.get("how") == "amp" or row.get("sharding") == "fsdp_mixed"
    run |= {"parameter_precision": "fp32"} if wide else {}
    work = {"model": model, "sequence_length": tokens, "micro_batch_size": batch, "global_batch_size": batch * gpus}
    if row.get("lora") or row.get("how") == "lora":
        work["lora"] = {"rank": 16, "target_modules": "all-linear"}
    again = row.get("checkpoint") or row.get("how") == "ckpt"
    if row.get("lora") == "qv":
        work["lora"]["target_modules"] = ["q_proj", "v_proj"]
    recompute = {"recompute": "full", "recompute_stops_early": again != "reentrant"} if again else {}
    return plan_from_dict(
        {
            "workload": work,
            "cluster": {"gpu": gpu, "gpus": gpus},
            "implementation": run,
            "schedule": recompute,
            "parallelism": {"fsdp": True} if str(row.get("sharding")).startswith("fsdp") else {},
        }
    )


def of_a_layer(row, folder):
    """Launches of a layer, forward and backward: by costs, by number, and measured."""
    found = []
    for layers in row["layers"]:
        name = "n_layer" if row["model"] == "gpt2" else "num_hidden_layers"
        file = folder / f"{row['model']}-{layers}.json"
        file.write_text(json.dumps({**FAMILIES[row["model"]], name: layers}))
        found.append(costs(plan_of(str(file), row=row)))
    (few, few_kernels), (many, kernels) = found
    less, more = (sum(phases) * DOCTOR for phases in row["phases_of_doctor"])
    layers = row["layers"][1] - row["layers"][0]
    return (many - few) / layers / WHOLE, (kernels - few_kernels) / layers, (more - less) / layers


def spread(ratios):
    return pstdev(math.log(ratio) for ratio in ratios)


def test_a_layer_costs_what_tiny_models_took(tmp_path):
    """In launches of the doctor in the same minute; the number of kernels says much less."""
    measured = [row for row in rows("iterations") if row["model"] in FAMILIES and row.get("optimizer") != "foreach"]
    found = [of_a_layer(row, tmp_path) for row in measured]
    assert len(found) == 57
    assert spread(cost / took for cost, _, took in found) < 0.08
    assert fmean(math.log(cost / took) for cost, _, took in found) == pytest.approx(0.0, abs=0.04)
    assert spread(kernels / took for _, kernels, took in found) > 0.3


@pytest.mark.parametrize(("kind", "count", "off"), [("", 10, 0.06), ("full", 10, 0.09), ("reentrant", 10, 0.06)])
def test_layers_cost_what_they_took_on_one_more_host(kind, count, off, tmp_path):
    """With checkpoints that have hooks and with ``use_reentrant``, of which the layers chose what it costs."""
    measured = [row for row in rows("checkpoint_kinds") if row.get("checkpoint", "") == kind]
    found = [math.log(cost / took) for cost, _, took in (of_a_layer(row, tmp_path) for row in measured)]
    assert len(found) == count
    assert abs(fmean(found)) < off and pstdev(found) < 0.085


def test_whole_models_cost_their_hosts_so_many_launches():
    """The factor of the two slowest hosts of six that chose it; single ones scatter with their hosts' pace."""
    factors, flat = [], []
    for row in rows("whole_models"):
        plan = plan_of(
            row["model"],
            row=row,
            tokens=row["tokens"],
            batch=row["rows"],
            gpu=row["gpu"],
        )
        cost, kernels = costs(plan)
        took = row["time_s"] / (row["doctor_launch_us"] * 1e-6)
        factors.append(cost / took)
        flat.append(kernels / took)
    assert len(factors) == 28
    assert 1.45 < WHOLE / math.exp(fmean(map(math.log, factors))) < 1.6
    assert spread(factors) < 0.17 < 0.19 < spread(flat)


def test_whole_programs_cost_what_is_counted_in_turns_with_the_doctor():
    """On three hosts, of which none chose these costs; alone, doctors read faster and programs take longer."""
    found, alone = [], []
    for row in rows("in_turns"):
        model, how = [*row["name"].split(), ""][:2]
        if model in ("llama-3.2-1b", "qwen3-0.6b", "smollm2-360m"):
            counted = costs(plan_of(model, row={"how": how}, tokens=row["tokens"]))[0] / WHOLE
            times = row.get("rounds", {})
            both = times["f D"] if times else [[row["in_turns"]["f"], row["in_turns"]["D"]]]
            found.append(counted / (DOCTOR * both_of(both)))
            if times:
                alone.append(fmean(one for (one,) in times["f"]) / fmean(one for (one,) in times["D"]) / both_of(both))
    assert len(found) == 12
    assert fmean(map(math.log, found)) == pytest.approx(0.0, abs=0.02) and spread(found) < 0.045
    assert 1.0 < fmean(alone) < 1.15


def both_of(both):
    """Median of a program's time over the doctor's, run in turns."""
    return median(program / doctor for program, doctor in both)


def test_layers_that_are_computed_again_cost_more_than_twice_as_much():
    once, again = (costs(plan_of("llama-3.2-1b", row={"checkpoint": how}))[0] for how in (False, True))
    assert again - once > 16 * WHOLE * HOOKS[1]
    assert again > 1.8 * once


def test_code_of_one_kernel_costs_the_same_wherever_it_is_shared():
    """DDP's hooks and FSDP's communications come on top, for each parameter and each unit."""
    alone, ddp, fsdp = (
        costs(plan_of("llama-3.2-1b", row={"gpus": gpus, "sharding": how}))[0]
        for gpus, how in ((1, ""), (2, "ddp"), (2, "fsdp"))
    )
    hooks = 16 * 9 * WHOLE * HOOKED
    assert hooks < ddp - alone < 1.5 * hooks
    assert fsdp - alone > 3 * 16 * WHOLE * SHARDED_LAUNCHES

"""The bound that an impossible constraint's error names is one under which the same sweep has a plan."""

import pytest

import joulecast as jc
from joulecast.errors import InputError
from joulecast.plan.sweep.space import ConstraintsTable

#: Under a limit on peaks the plans nearest to it are none of those that are best by the objective.
UNLIKE_CARDS = {
    "workload": {
        "model": "llama-3.1-8b",
        "sequence_length": 4096,
        "micro_batch_size": [1, 4],
        "global_batch_size": 64,
        "training_tokens": 1e9,
    },
    "cluster": {"gpu": ["h100-sxm", "mi300x"], "gpus": [8, 16]},
    "parallelism": {
        "tensor_model_parallel_size": [1, 2, 8],
        "pipeline_model_parallel_size": [1, 2, 4],
        "distributed_optimizer": True,
    },
    "site": {"nodes_per_rack": 2},
}
FEW = UNLIKE_CARDS | {
    "cluster": {"gpu": "h200-sxm", "gpus": 8},
    "power": {"power_limit_w": [400, 700]},
    "site": {"nodes_per_rack": 4},
}
ASKED = {"min_memory_margin": 0.999, "max_gpus": 1, "max_carbon_kg": 1e-6}


@pytest.mark.parametrize("key", ConstraintsTable.model_fields)
@pytest.mark.parametrize("space", [UNLIKE_CARDS, FEW], ids=["unlike-cards", "few"])
def test_the_nearest_value_is_accepted(space, key):
    goals = {"objective": {"minimise": "energy", "top": 2}}
    with pytest.raises(InputError, match=f"tightest is {key} = .*all others kept, is ") as error:
        jc.sweep(space | goals | {"constraints": {key: ASKED.get(key, 1e-3)}})
    nearest = float(error.value.message.rpartition(" ")[2])
    found = jc.sweep(space | goals | {"constraints": {key: int(nearest) if key == "max_gpus" else nearest}})
    assert found.best and found.best[0]["source"] == "simulated"


def test_several_nearest_values_are_accepted_together():
    goals = {"objective": {"minimise": "energy", "top": 1}}
    asked = {"max_time_s": 0.01, "max_node_power_w": 1000.0, "min_memory_margin": 0.9}
    with pytest.raises(InputError, match="no single constraint suffices") as error:
        jc.sweep(UNLIKE_CARDS | goals | {"constraints": asked})
    near = dict(pair.split(" ") for pair in error.value.message.rpartition(" has ")[2].split(", "))
    assert near.keys() == asked.keys()
    loosened = asked | {key: float(value) for key, value in near.items()}
    assert jc.sweep(UNLIKE_CARDS | goals | {"constraints": loosened}).best

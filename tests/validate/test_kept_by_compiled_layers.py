"""What compiled layers of torchtitan's kind keep for the backward, as PyTorch's allocator counted it on an H200."""

import pytest

import joulecast as jc

TOKENS = 8192
#: Bytes that each of three layers of Llama-3.1-8B's sizes allocated in the forward and kept, one sequence of 8,192
#: tokens, compiled one by one (torch 2.11, torchao 0.18).
MEASURED = {"bf16": 1141965824, "tensorwise": 772874240, "rowwise": 772867072}


@pytest.mark.parametrize("recipe", MEASURED)
def test_a_compiled_layer_keeps_what_pytorch_allocated(recipe: str) -> None:
    fp8 = {} if recipe == "bf16" else {"fp8_recipe": recipe}

    def activations(layers: int) -> float:
        found = jc.predict(
            {
                "workload": {
                    "model": "llama-3.1-8b",
                    "layers": layers,
                    "sequence_length": TOKENS,
                    "micro_batch_size": 1,
                    "global_batch_size": 1,
                    "precision": "fp8" if fp8 else "bf16",
                    **fp8,
                },
                "cluster": {"gpu": "h200-sxm", "gpus": 1},
                "implementation": {"framework": "pytorch-eager", "modules": "torchtitan", "compile": True},
            }
        )
        return float(found.to_dict()["stages"][0]["memory_by_part_bytes"]["activations"])

    assert activations(4) - activations(3) == pytest.approx(MEASURED[recipe], rel=2e-5)

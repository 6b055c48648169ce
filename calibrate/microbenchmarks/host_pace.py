"""How fast the host launches: iterations of a model so small that the GPU always waits for PyTorch.

The model is a Llama as torchtitan writes it. The time for one of its kernels, as a plan counts them, is what
:attr:`~joulecast.simulator.plan_file.parts.Implementation.host_launch_us` means; what other programs' kernels cost is
said in such launches (:mod:`joulecast.simulator.instructions.eager_launches`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from joulecast.simulator.instructions.program import plan_program
from joulecast.simulator.plan_file.plan import plan_from_dict

#: The model: layers, sizes of 1 sequence, heads, and of the vocabulary.
LAYERS, HIDDEN, HEADS, KV_HEADS, FFN, VOCABULARY, TOKENS = 8, 256, 4, 2, 512, 512, 128
#: Iterations before those that count; the first ones load libraries.
WARM_UP = 10
#: Readings: a virtual machine's pace changes within seconds.
READINGS = 12


def host_launches_s(torch: Any, device: Any, seconds: float = 6.0) -> list[float]:
    """Times that the host needs to launch one kernel of an eager iteration, of :data:`READINGS` in a row [s].

    Parameters
    ----------
    torch
        The module.
    device
        On a CPU, whose operators run before the next is launched, the answer says nothing about a GPU's host.
    seconds
        How long is measured.
    """
    iterate = iteration(torch, device)
    for _ in range(WARM_UP):
        iterate()
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronize()
    each, many = seconds / READINGS, launches()
    return [_iteration_s(iterate, synchronize, each) / many for _ in range(READINGS)]


def _iteration_s(iterate: Callable[[], Any], synchronize: Callable[[], Any], seconds: float) -> float:
    start, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - start < seconds:
        iterate()
        count += 1
    synchronize()
    return (time.perf_counter() - start) / count


def launches() -> float:
    """Kernels of one iteration, as the plan of it has them."""
    model = {
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "intermediate_size": FFN,
        "vocab_size": VOCABULARY,
        "num_hidden_layers": LAYERS,
    }
    work = {"model": model, "sequence_length": TOKENS, "micro_batch_size": 1, "global_batch_size": 1}
    run = {"framework": "pytorch-eager", "modules": "torchtitan"}
    plan = plan_from_dict({"workload": work, "cluster": {"gpu": "h200-sxm", "gpus": 1}, "implementation": run})
    (rank,) = plan_program(plan).ranks
    return sum(launch.repeat / launch.share for i in rank.order for launch in rank.types[i])


def iteration(torch: Any, device: Any) -> Callable[[], Any]:
    """A training iteration of the model: forward, backward, AdamW, gradients dropped; gives the loss."""
    where = {"device": device, "dtype": torch.bfloat16}
    layers = [_layer(torch, where) for _ in range(LAYERS)]
    embedding = torch.nn.Embedding(VOCABULARY, HIDDEN, **where)
    norm, head = torch.nn.RMSNorm(HIDDEN, **where), torch.nn.Linear(HIDDEN, VOCABULARY, bias=False, **where)
    modules = torch.nn.ModuleList([embedding, norm, head, *layers])
    optimizer = torch.optim.AdamW(modules.parameters(), lr=1e-5, fused=True)
    turns = torch.polar(*torch.rand(2, TOKENS, HIDDEN // HEADS // 2, device=device))[None, :, None]
    tokens, targets = torch.randint(VOCABULARY, (2, 1, TOKENS), device=device)

    def iterate() -> Any:
        x = embedding(tokens)
        for layer in layers:
            x = _run_layer(torch, layer, x, turns)
        loss = torch.nn.functional.cross_entropy(head(norm(x)).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return iterate


def _layer(torch: Any, where: dict[str, Any]) -> Any:
    narrow = KV_HEADS * HIDDEN // HEADS
    sizes = {
        "q": (HIDDEN, HIDDEN),
        "k": (HIDDEN, narrow),
        "v": (HIDDEN, narrow),
        "out": (HIDDEN, HIDDEN),
        "gate": (HIDDEN, FFN),
        "up": (HIDDEN, FFN),
        "down": (FFN, HIDDEN),
    }
    linears = {name: torch.nn.Linear(*size, bias=False, **where) for name, size in sizes.items()}
    return torch.nn.ModuleDict(linears | {name: torch.nn.RMSNorm(HIDDEN, **where) for name in ("norm1", "norm2")})


def _run_layer(torch: Any, layer: Any, x: Any, turns: Any) -> Any:
    functional, y = torch.nn.functional, layer["norm1"](x)
    q, k, v = (layer[name](y).view(1, TOKENS, -1, HIDDEN // HEADS) for name in "qkv")
    q, k = _turned(torch, q, turns), _turned(torch, k, turns)
    heads = (one.transpose(1, 2) for one in (q, k, v))
    y = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    x = x + layer["out"](y.transpose(1, 2).contiguous().view(1, TOKENS, HIDDEN))
    y = layer["norm2"](x)
    return x + layer["down"](functional.silu(layer["gate"](y)) * layer["up"](y))


def _turned(torch: Any, x: Any, turns: Any) -> Any:
    """Rotary embedding in complex numbers."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)

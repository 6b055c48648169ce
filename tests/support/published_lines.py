"""A line of published training steps, and files of such lines."""

from __future__ import annotations

import csv
from pathlib import Path

#: A GPT of 22 billion parameters on eight A100, as a source might publish it.
LINE = {
    "id": "gpt-22b",
    "source": "Narayanan et al. SC'21",
    "model": "GPT 22B",
    "num_layers": "48",
    "hidden": "6144",
    "heads": "64",
    "kv_heads": "64",
    "head_dim": "96",
    "ffn_hidden": "24576",
    "gated_mlp": "false",
    "vocab": "51200",
    "seq_len": "2048",
    "gpu": "a100-sxm-80gb",
    "num_gpus": "8",
    "gpus_per_node": "8",
    "tp": "8",
    "pp": "1",
    "vpp": "1",
    "cp": "1",
    "ep": "1",
    "dp": "1",
    "sequence_parallel": "false",
    "micro_batch": "4",
    "global_batch": "4",
    "dtype": "fp16",
    "recompute": "full",
    "tp_comm_overlap": "false",
    "distributed_optimizer": "false",
    "measured_step_time_s": "1.5",
    "measured_tflops_per_gpu": "",
    "notes": "",
}


def write(path: Path, *lines: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)
    return path

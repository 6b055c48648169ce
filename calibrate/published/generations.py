"""Generations of training frameworks: what rows of a source run and the source does not repeat in every line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulecast.calibrate.published.rows import PublishedRow

if TYPE_CHECKING:
    from joulecast.model.framework.implementation import AttentionBackend, Framework, Modules


@dataclass(frozen=True)
class Generation:
    """A generation of training frameworks: what its runs have in common and publications do not repeat.

    Attributes
    ----------
    name
        As the table of errors has it, and plans of Megatron call it; empty for one without a name.
    sources
        Pattern that the row's ``source`` matches.
    attention_backend
        Kernels of attention; ``unfused`` are separate products and a softmax kernel. NVIDIA's launcher of NeMo 1 kept
        Transformer Engine from cuDNN's until they were tested more (``NVTE_FUSED_ATTN: 0`` in its ``conf/config.yaml``,
        commit 01d07738), so that FlashAttention-2's ran; dgxc-benchmarking v25.02 does so for GPT-3 and Nemotron-4
        340B (``configure.sh`` of its ``nemo_megatron`` and ``nemotron``), but not for Llama 3.1 and Nemotron-4 15B.
    overlapped
        Whether communication runs beside computation: of gradients, and of tensor parallelism where nothing is said.
    fp8_recipe
        Scaling of FP8 where the source names none.
    gradient_precision
        Data type in which gradients are kept and reduced; ``None``: fp32, Megatron's default and that of mixed
        precision in PyTorch. NeMo 2's recipes, which dgxc-benchmarking runs from v25.04 on, and Megatron-Bridge's for
        Llama set ``grad_reduce_in_fp32 = False``; those of NeMo 1 for GPT-3 175B and Nemotron-4 340B, and MLPerf's for
        GPT-3, ``grad_sync_dtype: bf16``, the type of the buffer that Apex's optimizer has products add to. Composer's
        FSDP reduces in bf16 in its mode ``PURE``.
    recipes
        Pattern of where the row stands, or of its model, besides.
    notes
        Pattern of the row's notes, besides.
    separate
        Whether the generation's factor is found while all others stand, see
        :mod:`joulecast.calibrate.published.separate_factors`.
    framework, modules
        As a plan's ``implementation`` has them.
    recompute_stops_early
        Whether PyTorch's checkpoints end when the backward has what it needs, as they do since its version 2.1.
    options
        Further keys of a plan's ``implementation``.
    """

    name: str
    sources: str
    attention_backend: AttentionBackend
    overlapped: bool
    fp8_recipe: str = "delayed"
    gradient_precision: str | None = None
    recipes: str = ""
    notes: str = ""
    separate: bool = False
    framework: Framework = "megatron"
    modules: Modules = "joint"
    recompute_stops_early: bool = True
    options: tuple[tuple[str, object], ...] = ()

    @property
    def scalar(self) -> str:
        """The generation of Megatron that a plan names; empty for none."""
        return self.name if self.framework == "megatron" else ""


#: llm-foundry's `yamls/mpt` train with Composer's DecoupledAdamW, the loss is FlashAttention's; Composer
#: takes two metrics of every micro-batch, cross-entropy and perplexity (``ComposerMPTCausalLM``).
COMPOSER = (("optimizer", "adamw-for-loop"), ("fused_loss", True), ("loss_metrics", 2))
#: Frameworks by generation, the first match counts; the last stands for all others.
GENERATIONS = (
    Generation("megatron-lm-2021", r"SC'21|Narayanan|Korthikanti|2205\.05198|2104\.04473", "unfused", False),
    Generation("nemo-2024", r"dgxc-benchmarking v25\.0[4-9]", "cudnn", True, gradient_precision="bf16"),
    Generation(
        "nemo-2024", r"NeMo performance summary", "flash-attn-2", True, gradient_precision="bf16", recipes=r"175B"
    ),
    Generation("nemo-2024", r"NeMo performance summary|NeMo 2[34]\.", "flash-attn-2", True),
    Generation("nemo-2024", r"dgxc", "flash-attn-2", True, gradient_precision="bf16", recipes=r"nemo_megatron/|340b"),
    Generation("nemo-2024", r"MLPerf", "cudnn", True, gradient_precision="bf16", recipes=r"gpt3"),
    Generation("nemo-2024", r"NeMo|dgxc|MLPerf", "cudnn", True),
    Generation("megatron-bridge-2025", r"Megatron-Bridge", "cudnn", True, "tensorwise", "bf16"),
    Generation("megatron-core", r"SimuMax", "cudnn", False),
    # Megatron-LM's layers of 2021 in DeepSpeed's pipeline, gradients reduced after it; the first with FlashAttention-2.
    Generation("deepspeed", r"FlagPerf.*DeepSpeed", "flash-attn-2", False, separate=True),
    Generation("deepspeed", r"DeepSpeed|MT-NLG", "unfused", False, separate=True),
    # No scalar of its own: scripts of Megatron that ask for FlashAttention, and for nothing beside anything; CARAML's.
    Generation("", r"FlagPerf|CARAML", "flash-attn-2", False),
    # No scalar of its own. Gradients are reduced beside backwards; attention is FlashAttention's own package.
    Generation("", r"InternEvo", "flash-attn-2", True),
    # No scalar of its own. XLA hides gathers behind layers and reduces in the type of its products.
    Generation("", r"\bJAX\b", "cudnn", True, gradient_precision="bf16", options=(("average_in_collective", True),)),
    # No scalar of its own. Products and one kernel of scale, mask, softmax and dropout.
    Generation("", r"OneFlow", "unfused", True),
    # What llm-foundry's benchmarks run is FlashAttention in Triton (`--attn_impl triton` by default of its
    # `scripts/train/benchmarking/submit_benchmarks.py`, v0.0.4), and in FP8 Transformer Engine's linear layers.
    Generation("", r"llm-foundry|Composer", "flash-attention-1", True, notes=r"\bFP8\b"),
    # Its rows in Composer's mode PURE are those of its first release, which needed PyTorch 1.13.
    Generation(
        *("pytorch", r"llm-foundry|Composer", "flash-attention-1", True),
        notes=r"reductions in bf16",
        gradient_precision="bf16",
        framework="pytorch-eager",
        recompute_stops_early=False,
        options=COMPOSER,
    ),
    Generation(
        *("pytorch", r"llm-foundry|Composer", "flash-attention-1", True), framework="pytorch-eager", options=COMPOSER
    ),
    # fms-fsdp gathers and reduces in bf16 (``bfSixteen`` of its ``policies/mixed_precision.py``); its model's norms are
    # the tensor operations in fp32 that transformers' are (``LayerNormParameterized``, ``use_high_precision_pow``).
    Generation(
        *("pytorch", r"fms-fsdp", "flash-attention-2", True),
        gradient_precision="bf16",
        framework="pytorch-eager",
        modules="transformers",
    ),
    # torchtitan asks PyTorch's attention for FlashAttention-2 first, but on Blackwell (`models/attention.py`).
    Generation(
        *("pytorch", r"torchtitan|PyTorch", "flash-attention-2", True, "tensorwise"),
        framework="pytorch-eager",
        modules="torchtitan",
    ),
    Generation("", r"", "cudnn", True),
)


def generation_of(row: PublishedRow) -> Generation:
    """Framework generation of a row, by what its source says that it ran."""
    recipe = f"{row.source_url_or_repo_path} {row.model}"
    return next(
        g
        for g in GENERATIONS
        if re.search(g.sources, row.source, re.IGNORECASE)
        and re.search(g.recipes, recipe, re.IGNORECASE)
        and re.search(g.notes, row.notes)
    )

"""``[implementation]``: what the framework really runs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from joulecast.model.framework.implementation import AttentionBackend, Framework, LigerKernel, Modules
from joulecast.model.framework.muon import TensorMode
from joulecast.model.training.factors import Generation
from joulecast.simulator.plan_file.schema_table import Table

#: Longest launch [us], and most metrics that take the loss again: far above any, what follows from them stays finite.
MOST_LAUNCH_US, MOST_METRICS = 1e6, 1000

Optimizer = Literal[
    "adamw",
    "adamw-for-loop",
    "adamw-8bit",
    "adamw-32bit",
    "adafactor",
    "sgd",
    "sgd-momentum",
    "lion-8bit",
    "lion-32bit",
    "muon",
]
GraphScope = Literal["attn", "mamba", "moe_router", "moe_preprocess"]


class ImplementationTable(Table):
    """``[implementation]``: what the framework really runs."""

    framework: Framework = Field("pytorch-eager", description="Decides fusions and defaults.")
    generation: Generation | None = Field(
        None, description="Generation of Megatron and what trains with it; default: none in particular."
    )
    attention_backend: AttentionBackend = Field(
        "cudnn",
        description="Kernels of scaled-dot-product attention; flash-attention-2: PyTorch's, flash-attn-2: those of its "
        "own package, which are faster on Hopper; unfused: Megatron-LM's own products and softmax, or "
        "transformers' own.",
    )
    attention_precision: Literal["fp8"] | None = Field(
        None, description="fp8: attention multiplies in FP8 too (Transformer Engine's fp8_dpa); default: bf16 or fp16."
    )
    moe_token_dispatcher_type: Literal["alltoall", "flex"] = Field(
        "alltoall", description="Every copy of a token is sent to its expert, or one to each node or GPU (DeepEP)."
    )
    moe_flex_dispatcher_backend: Literal["deepep", "hybridep"] | None = Field(
        None,
        description="Whose kernels exchange tokens for flex; default: kernels that reach three quarters of the links' "
        "rate and send nothing beside tokens.",
    )
    moe_flex_dispatcher_num_sms: int | None = Field(
        None,
        gt=0,
        description="SMs on which these copy tokens (moe_deepep_num_sms, moe_hybridep_num_sms); default: 20 of "
        "DeepEP's, 16 of HybridEP's.",
    )
    moe_permute_fusion: bool = Field(
        True,
        description="Rows are sorted by expert and summed by token by kernels made for it, at the memory's pace; "
        "false: by PyTorch's own operators, a thread for each value (pytorch-eager).",
    )
    moe_row_operator: Literal["scatter_add", "index_add", "index_put"] | None = Field(
        None, description="Which operators, with its gradient's; default: a strided copy and embedding_bag."
    )
    moe_fused_mlp: bool = Field(
        False,
        description="Experts' activation and the casts of its results run within their products (Transformer Engine's "
        "op fuser in MXFP8 and NVFP4 on Blackwell; megatron).",
    )
    moe_router_fusion: bool = Field(
        True,
        description="Weights and choices are made of the router's scores by Transformer Engine's kernels; false: by "
        "PyTorch's operations, Megatron's default (megatron).",
    )
    moe_router_dtype: Literal["fp32"] | None = Field(
        None, description="Type in which the router multiplies (megatron); default: that of the activations."
    )
    moe_dispatch_precision: Literal["fp8"] | None = Field(
        None,
        description="Type in which tokens, and gradients of results, go to experts (DeepEP's FP8 dispatch; megatron); "
        "default: that of the activations, as what comes back is.",
    )
    activation_func_fp8_input_store: bool = Field(
        False, description="The input of a gated activation is kept in FP8 for the backward (megatron)."
    )
    attention_output_store: Literal["e5m6"] | None = Field(
        None,
        description="Format in which attention's output is kept for the backward, once, beside linear layers in FP8 "
        "(DeepSeek-V3; megatron); default: in bf16 and in FP8.",
    )
    average_in_collective: bool | None = Field(
        None,
        description="Megatron's data-parallel collectives average gradients themselves; false divides them before, as "
        "Megatron does by itself; default: as recipes of the generation do.",
    )
    rotary: bool | None = Field(None, description="Rotary embedding is really computed; default: the model's.")
    tie_embeddings: bool | None = Field(None, description="Head shares the embedding's matrix; default: the model's.")
    shard_head: bool = Field(True, description="Embedding and head split over tensor-parallel ranks.")
    compile: bool = Field(
        False, description="torch.compile of each layer fuses its element-wise kernels (pytorch-eager)."
    )
    modules: Modules = Field(
        "joint",
        description="Whose code pytorch-eager runs. joint: one product for queries, keys and values, one for gate and "
        "up, fused norms; transformers: Hugging Face's, where RMSNorm is tensor operations in fp32 and compile takes a "
        "whole model; torchtitan: fused norms, rotary embedding in complex numbers. Both: products of their own, "
        "logits and loss in fp32.",
    )
    liger_kernel: bool | list[LigerKernel] = Field(
        False,
        description="Kernels of Liger that the modules of transformers run (use_liger_kernel). true: what it swaps by "
        "default, norms, rotary embedding, the gate of the MLP, and head and loss in one, which never has all logits; "
        "or a list of kernels.",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Probability of dropout in residual stream, embedding and attention: transformers' GPT-2 has it; "
        "in Megatron of attention in separate kernels.",
    )
    deterministic: bool = Field(
        False,
        description="torch.use_deterministic_algorithms(True), as Lightning's trainer.deterministic sets it: new "
        "tensors are filled, and attention's backward adds in one order (megatron with flash-attn-2).",
    )
    cuda_graphs: bool | list[GraphScope] = Field(
        False,
        description="Launches are replayed as graphs: no kernel waits for the host; or in megatron those of some parts "
        "of a layer (cuda_graph_scope).",
    )
    host_launch_us: float | None = Field(
        None,
        ge=0,
        le=MOST_LAUNCH_US,
        description="Time of the host for each kernel that pytorch-eager launches [us], which joulecast doctor "
        "--host measures; default: shorter than the kernels, which the interval does not take for granted. In megatron "
        "of each module; default: as published steps have it.",
    )
    fused_loss: Literal[False, True, "native"] = Field(
        False,
        description="Cross-entropy in one kernel a direction: Transformer Engine's in megatron, FlashAttention's or "
        "Apex's in pytorch-eager; native: Megatron's own, compiled to five kernels.",
    )
    loss_metrics: int = Field(
        0,
        ge=0,
        le=MOST_METRICS,
        description="Metrics of training that each take the cross-entropy of all logits once more, as Composer's do "
        "(pytorch-eager).",
    )
    log_probabilities: Literal["chunked", "whole"] | None = Field(
        None,
        description="How a loss makes log-probabilities: chunked, logits in tiles that are not kept, of completions "
        "alone (TRL 1.15 and later); whole, log-softmax of all logits in fp32 (LLaMA-Factory, other code); default: "
        "chunked of pairs, whole of next tokens.",
    )
    training_loop: Literal["trainer"] | None = Field(
        None,
        description="trainer: Hugging Face's Trainer runs the modules of transformers; its host waits for the GPU in "
        "every micro-batch, and in mixed precision accelerate copies the logits to fp32. Default: a loop of one's own.",
    )
    dataloader_num_workers: int | None = Field(
        None,
        ge=0,
        description="Processes that make batches beside the Trainer. 0: its own makes them of Python's lists while the "
        "GPU waits. Default: batches are there, or tensors.",
    )
    optimizer: Optimizer = Field(
        "adamw",
        description="Fused AdamW, or in pytorch-eager: adamw-for-loop, a kernel for each operation and parameter "
        "(AdamW(foreach=False), Composer's DecoupledAdamW); bitsandbytes' AdamW and Lion with moments in 8 or 32 bits; "
        "transformers' Adafactor; PyTorch's SGD, without or with momentum; or muon: "
        "torch.optim.Muon or Megatron-Core's for the matrices of layers, AdamW for all else.",
    )
    muon_num_ns_steps: int = Field(
        5, ge=1, lt=100, description="Newton-Schulz iterations by which Muon orthogonalises a matrix."
    )
    muon_nesterov: bool | None = Field(
        None,
        description="Muon takes the gradient moved towards its momentum, not the momentum alone; default: true in "
        "pytorch-eager, false in megatron.",
    )
    muon_tp_mode: TensorMode = Field(
        "blockwise",
        description="Of a matrix that is split over tensor-parallel ranks each takes its own part as if it were one, "
        "the whole, gathered before (duplicated), or all add up its products (distributed; megatron).",
    )
    muon_split_qkv: bool = Field(
        True, description="Muon takes the joint matrix of queries, keys and values as three (megatron)."
    )
    muon_fp32_matmul_prec: Literal["medium", "high"] = Field(
        "medium", description="Precision of Muon's products: medium is bf16, high is TF32 (megatron)."
    )
    parameter_precision: Literal["bf16", "fp16", "fp32"] | None = Field(
        None,
        description="Data type in which pytorch-eager keeps parameters; fp32 is mixed precision: FSDP gathers them in "
        "workload.precision (MixedPrecisionPolicy), without it torch.autocast casts them; default: workload.precision.",
    )
    gradient_precision: Literal["bf16", "fp16", "fp32"] | None = Field(
        None,
        description="Data type in which gradients are reduced, and in megatron kept; default: fp32 in megatron, which "
        "may also keep them like the weights, else that of the parameters; FSDP may reduce in workload.precision.",
    )
    reference_precision: Literal["bf16", "fp16", "fp32"] | None = Field(
        None,
        description="Data type in which pytorch-eager keeps a reference model that is a copy, or a teacher; "
        "DeepSpeed's ZeRO-3 keeps them in workload.precision; default: that of the parameters.",
    )
    optimizer_precision: Literal["bf16", "fp16", "fp32"] | None = Field(
        None,
        description="Data type of AdamW's two moments; default: fp32 in megatron, which may also keep them in bf16 "
        "(use_precision_aware_optimizer), else that of the parameters.",
    )
    zero_grad_set_to_none: bool | None = Field(
        None,
        description="Gradients are dropped after the step (what PyTorch's zero_grad does since 2.0), so that the next "
        "ones are simply kept; false: set to zero and added to; default: true with FSDP, and with modules other than "
        "joint (pytorch-eager).",
    )
    gradient_clipping: bool | None = Field(
        None,
        description="Gradients are scaled to a norm before the step (clip_grad_norm_); default: in megatron alone, "
        "which always takes their norm.",
    )
    main_parameters: bool | None = Field(
        None,
        description="A second, fp32 copy of the weights in the optimizer, whose moments are fp32 too, as DeepSpeed has "
        "them beside ZeRO's stages 0 to 2; default: only in megatron, which always has it.",
    )
    tiles: Any = Field(
        None,
        description="Explicit tiles by operator of a layer: [m, n, k], or a table of its fields; else the library's.",
    )

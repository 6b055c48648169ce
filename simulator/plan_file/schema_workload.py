"""``[workload]``: what is trained, with models and adapters written into the plan."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from joulecast.model.framework.narrow import Recipe
from joulecast.model.framework.packing import Packing
from joulecast.simulator.plan_file.schema_table import Table

#: Largest rank of an adapter: far above any.
MOST_RANK = 65536
#: Largest side of an image.
MOST_PIXELS = 65536


class InlineModel(Table):
    """A model written into the plan, with the names of a Hugging Face ``config.json``."""

    hidden_size: int = Field(gt=0, description="Width of the residual stream.")
    num_attention_heads: int = Field(gt=0, description="Query heads.")
    num_key_value_heads: int | None = Field(
        None, gt=0, description="Key and value heads; default: as many as query heads."
    )
    intermediate_size: int = Field(gt=0, description="Width of the MLP.")
    vocab_size: int = Field(gt=0, description="Rows of the embedding.")
    num_hidden_layers: int = Field(gt=0, description="Transformer blocks.")
    head_dim: int | None = Field(None, gt=0, description="Size of a head; default: hidden_size / num_attention_heads.")
    gated_mlp: bool = Field(True, description="MLP with a gate (SwiGLU) or without (GPT).")
    bias: bool = Field(False, description="Biases in the linear layers.")
    qkv_bias: bool | None = Field(None, description="Biases of queries, keys and values; default: as bias.")
    norm: Literal["rmsnorm", "layernorm"] = Field("rmsnorm", description="Normalisation.")
    activation: Literal["silu", "gelu", "gelu_new", "relu2"] = Field(
        "silu", description="Activation of the MLP; gelu_new: a formula of single operations in transformers' code."
    )
    rotary: bool = Field(True, description="Rotary position embedding.")
    learned_positions: int = Field(0, ge=0, description="Rows of a learned table of positions; 0: none.")
    joint_projections: bool = Field(
        False, description="transformers' code has one product for queries, keys and values, as GPT-2's does."
    )
    tie_word_embeddings: bool = Field(False, description="Output head shares the embedding's matrix.")
    num_experts: int | None = Field(None, gt=0, description="Experts in place of each layer's MLP; default: none.")
    num_experts_per_tok: int | None = Field(None, gt=0, description="Experts that each token is sent to.")
    moe_intermediate_size: int | None = Field(None, gt=0, description="Width of an expert.")
    shared_expert_intermediate_size: int | None = Field(
        None, gt=0, description="Width of the shared experts together, which every token meets; default: none."
    )
    first_k_dense_replace: int = Field(0, ge=0, description="First blocks that have no experts where others have.")
    moe_layer_freq: int = Field(1, gt=0, description="One in so many blocks has experts, the first of each.")
    n_group: int = Field(1, gt=0, description="Equal groups in which a router looks at its experts.")
    topk_group: int = Field(1, gt=0, description="Of how many of them a token's experts may be.")
    moe_router_score_function: Literal["softmax", "sigmoid"] = Field(
        "softmax", description="What the router makes an expert's weight of."
    )
    qk_norm: bool = Field(False, description="Queries and keys are normalised, head by head.")
    kv_lora_rank: int | None = Field(
        None, gt=0, description="Latent attention: width of the latent vector of keys and values; default: none."
    )
    q_lora_rank: int = Field(0, ge=0, description="Width of that of queries; 0: they have none.")
    qk_nope_head_dim: int = Field(128, gt=0, description="Latent attention: part of a head without rotary position.")
    qk_rope_head_dim: int = Field(64, gt=0, description="Latent attention: part of a head with it.")
    v_head_dim: int = Field(128, gt=0, description="Latent attention: size of a head's value.")
    hybrid_override_pattern: str | None = Field(
        None,
        description="A hybrid: of each block whether it is a state space, M (Mamba-2), attention, *, an MLP, -, or "
        "experts, E, each behind a norm of its own; default: every block has attention and an MLP or experts.",
    )
    mamba_num_heads: int | None = Field(
        None, gt=0, description="State spaces: heads; default: as many as twice the hidden size has."
    )
    mamba_head_dim: int = Field(64, gt=0, description="State spaces: size of a head.")
    ssm_state_size: int = Field(128, gt=0, description="State spaces: states of each value.")
    mamba_n_groups: int = Field(8, gt=0, description="State spaces: groups of heads that share B and C.")
    mamba_chunk_size: int = Field(128, gt=0, description="State spaces: positions that the scan takes at once.")


class LoraTable(Table):
    """``[workload.lora]``: adapters that are trained beside a frozen model, with the names of PEFT's ``LoraConfig``."""

    rank: int = Field(8, gt=0, le=MOST_RANK, description="Rows of A and columns of B (PEFT's r).")
    target_modules: str | list[str] = Field(
        ["q_proj", "v_proj"],
        description="Linear layers that have an adapter, as transformers names them, or all-linear: all of a layer.",
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of the adapters' inputs (lora_dropout).")
    precision: Literal["bf16", "fp16", "fp32"] = Field(
        "fp32",
        description="Type in which adapters, their gradients and moments are kept. fp32: PEFT's default "
        "(autocast_adapter_dtype), cast by torch.autocast; workload.precision: as the model, cast nowhere.",
    )
    base_precision: Literal["nf4"] | None = Field(
        None,
        description="nf4: frozen linear layers are kept in bitsandbytes' 4 bits (QLoRA, load_in_4bit), and written out "
        "before each product; default: as implementation.parameter_precision says.",
    )
    double_quantisation: bool = Field(
        False, description="Scales of these 4 bits are kept in 8 (bnb_4bit_use_double_quant)."
    )
    prepared: bool = Field(
        False,
        description="Norms, embedding and head beside these 4 bits were cast to fp32 "
        "(prepare_model_for_kbit_training), under torch.autocast.",
    )


class RolloutTable(Table):
    """``[workload.rollout]``: completions that are generated to be learned from, with names of TRL and vLLM."""

    num_generations: int = Field(8, gt=0, description="Completions of each prompt, which is read once for them.")
    generation_batch_size: int | None = Field(
        None, gt=0, description="Completions that all GPUs generate at once; default: global_batch_size."
    )
    max_num_seqs: int | None = Field(
        None, gt=0, description="Sequences that a GPU's engine serves at once, at most; default: all of its."
    )
    longest_tokens: int | None = Field(
        None, gt=0, description="Tokens of the longest completion, until which steps go on; default: all are alike."
    )
    step_overhead_us: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Time of a step in which the GPU waits for the engine's host [us]; default: an estimate, 500.",
    )
    wait_s: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Time for which the GPUs wait for completions that are generated elsewhere, in an iteration [s]; "
        "default: an engine on each of them generates.",
    )
    enable_sleep_mode: bool = Field(
        False,
        description="Engines give their memory back while the model is trained (vLLM's sleep mode), in no time.",
    )


class ImagesTable(Table):
    """``[workload.images]``: images in every sequence, which the model's vision tower sees."""

    per_sequence: int = Field(1, gt=0, description="Images of a sequence; their tokens are part of sequence_length.")
    height: int | None = Field(
        None,
        gt=0,
        le=MOST_PIXELS,
        description="Pixels from top to bottom, rounded to what becomes a token; default: the tower's own, else 768.",
    )
    width: int | None = Field(None, gt=0, le=MOST_PIXELS, description="Pixels from left to right, likewise.")
    freeze_vision_tower: bool | None = Field(
        None, description="The layers over patches are not trained; default: false, beside adapters true."
    )
    freeze_multi_modal_projector: bool | None = Field(
        None, description="What takes their results to the text model is not trained; default: the same."
    )


class ConfigModel(Table, extra="allow"):
    """A Hugging Face ``config.json`` written into the plan, of whose keys the reader of such files knows."""

    model_type: Any = Field(description="Family, as the config.json names it.")


class WorkloadTable(Table):
    """``[workload]``: what is trained."""

    model: str | InlineModel | ConfigModel = Field(
        description="Catalogue name, path of a config.json, a table with its content, or one of sizes."
    )
    layers: int | None = Field(None, gt=0, description="Blocks of a shortened model; default: all.")
    mtp_num_layers: int = Field(
        0, ge=0, description="Modules that predict a further token each, trained on the last stage (megatron)."
    )
    mtp_use_repeated_layer: bool = Field(
        False, description="These are one module, run as often (Nemotron 3 Super): its weights are there once."
    )
    sequence_length: int = Field(gt=0, description="Tokens of one sample, or of each of a pair.")
    objective: str = Field(
        "next-token",
        description="next-token: cross-entropy of texts; dpo, orpo, simpo: log-probabilities of pairs of sequences, "
        "chosen and rejected, which are the samples; reward: a head of one value, of such pairs; kto: "
        "log-probabilities of single sequences; grpo: of a model's own completions; distillation: divergence from a "
        "teacher (pytorch-eager, modules of transformers).",
    )
    reference: Literal["copy", "adapters-off", "precomputed"] | None = Field(
        None,
        description="What dpo and kto compare with: a second model without gradients, the same one without its "
        "adapters, or nothing that runs (precompute_ref_log_probs); default: adapters-off with adapters, else copy. "
        "grpo compares with none by default (beta = 0).",
    )
    teacher: str | None = Field(
        None, description="Catalogue name or path of a config.json of the model that distillation learns from."
    )
    num_iterations: int = Field(
        1, gt=0, description="Iterations that train on the same completions, which are generated and scored once."
    )
    old_log_probabilities: bool = Field(
        False,
        description="The model scores completions once before it trains on them: TRL's GRPO does with vLLM, with "
        "num_iterations over 1 or generation out of step with accumulation, its RLOO always.",
    )
    rollout: RolloutTable | None = Field(
        None, description="Generation of completions; default: they are there (grpo, distillation)."
    )
    completion_tokens: int | None = Field(
        None,
        gt=0,
        description="Tokens of each sequence that are scored, to which log_probabilities = chunked keeps the head; "
        "default: all.",
    )
    document_tokens: int | list[int] | str | None = Field(
        None,
        description="Tokens of the documents that a sequence is packed with and attention keeps apart: of each, a list "
        "of lengths as drawn, or the path of a CSV with a column tokens and, where lengths repeat, count; default: "
        "attention sees all of a sequence.",
    )
    document_packing: Packing | None = Field(
        None,
        description="cut: documents are joined and cut where a sequence ends; whole: each is put where it leaves the "
        "least room, and what is left is padding; default: cut.",
    )
    micro_batch_size: int = Field(1, gt=0, description="Samples of one micro-batch on one data-parallel rank.")
    global_batch_size: int = Field(gt=0, description="Samples of one iteration over all data-parallel ranks.")
    precision: Literal["bf16", "fp16", "fp32", "tf32", "fp8", "fp4"] = Field(
        "bf16",
        description="Type of weights and activations; fp8, fp4 (NVFP4, megatron): of linear layers, all else in bf16; "
        'tf32: fp32 with products in TF32 (pytorch-eager, set_float32_matmul_precision("high")).',
    )
    fp8_recipe: Recipe | None = Field(
        None,
        description="Scaling of FP8: what has a scale of its own (model/framework/narrow.py); default: "
        "delayed in megatron, else tensorwise.",
    )
    moe_expert_capacity_factor: float | None = Field(
        None, gt=0, description="Rows of every expert over the mean, padded or cut; default: dropless."
    )
    moe_load_imbalance: float | None = Field(
        None, ge=1, description="Rows of the busiest rank's experts over the mean, if dropless; default: 1.1."
    )
    fp8_param_gather: bool = Field(False, description="Weights kept, and gathered, in FP8 instead of bf16.")
    fp4_param_gather: bool = Field(False, description="Weights kept, and gathered, in FP4 instead of bf16.")
    num_layers_at_start_in_bf16: int = Field(
        0, ge=0, description="First layers that stay in bf16 where others run in FP8 or FP4 (megatron)."
    )
    num_layers_at_end_in_bf16: int = Field(0, ge=0, description="The same of last layers.")
    lora: LoraTable | None = Field(
        None, description="Adapters that are trained in place of the model; default: all of it is trained."
    )
    images: ImagesTable | None = Field(
        None, description="Images that sequences have; default: none, and of a model that sees them its text part runs."
    )
    training_tokens: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Tokens of the whole run; default: not asked."
    )

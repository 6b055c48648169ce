"""How the layers of a model are built, whatever their sizes: what its family's code fixes, or its file switches."""

from __future__ import annotations

from dataclasses import dataclass

from joulecast.model.hashing import HashedOnce


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerForm(HashedOnce):
    """Form of the layers of a decoder-only transformer, and of what stands around them.

    Attributes
    ----------
    tied_embeddings
        Whether the output head is the embedding matrix.
    gated_mlp
        Whether the MLP's first product has two halves, ``activation(gate)·up``.
    activation
        ``silu gelu relu relu2`` (relu2: squared ReLU), of CLIP ``quick_gelu``.
    joint_projections
        Whether it multiplies queries, keys and values, and gate and up, in one product each (GPT-2, GPT-NeoX, Phi-3).
    norm, norm_bias
        ``rmsnorm`` or ``layernorm``, and whether it adds a bias.
    qkv_bias, output_bias, mlp_bias
        Biases of the linear layers: query/key/value, attention output, both of the MLP.
    qk_norm, qk_norm_whole
        Whether queries and keys are normalised: per head (Qwen3), or all heads of a token together (OLMo-2).
    qk_norm_plain
        Whether these norms have no weights and stand in layers with rotary embedding alone (Llama 4).
    scaled_queries
        Whether queries are multiplied by a number of their position: in layers without rotary embedding, if there are
        such (Llama 4), else in all (Ministral 3).
    norm_place
        Where a block's norm stands: ``before`` it, ``after`` it in front of the addition to the residual stream
        (OLMo-2), or ``around`` (both: Gemma 2 and 3, GLM-4).
    norm_formula
        How Hugging Face's code multiplies a norm's weight: ``rounded`` (the values are rounded first, as Llama has
        it), ``shifted`` (by 1 + weight in fp32, Gemma) or ``mixed`` (a bf16 weight times fp32 values, OLMo-2);
        ``centred``: a layer norm as a formula in fp32 (Cohere).
    parallel_residual, shared_norm
        Whether attention and MLP stand beside each other, each on the layer's input (GPT-NeoX, Falcon), and whether one
        norm serves both (Phi, Cohere).
    scaled_branches, scaled_logits
        Whether blocks' results, and logits, are multiplied by a number (Granite, Cohere).
    joint_up, joint_attention
        Whether Hugging Face's code multiplies gate and up alone in one product (GLM), or queries, keys and values alone
        (Qwen's vision towers), whose heads then stay behind positions until attention.
    causal
        Whether attention sees what stands before alone; layers over patches of images see all.
    head_bias
        Whether the output head adds a bias (Phi, GPT-J).
    attention_sinks
        Whether each head of attention has a learned score that no value belongs to (gpt-oss).
    gated_attention
        Whether attention's result is multiplied by the sigmoid of as many values, which the product for queries makes
        too (Qwen3-Next).
    own_code
        Whose that code is where it is like no other's: ``falcon gptj bloom mpt``
        (:mod:`joulecast.model.transformer.family_attention`).
    heads_joined
        Whether that code cuts queries, keys and values out of each head of a joint product (GPT-NeoX).
    sliced_projections
        Whether that code cuts queries, keys and values out of a joint product, and the rotated part out of heads, by
        slices, whose gradients stand among zeros (Phi-3).
    half_rotary
        Whether that code rotates halves of heads one by one and joins them (gpt-oss).
    wide_rotary
        Whether that code rotates by a table in fp32 (OLMo-2).
    paired_rotary
        Whether that code widens queries and keys, and rotates values that stand next to each other (Cohere) or far
        (Qwen's vision towers).
    embedding_norm
        Whether a norm follows the embedding (BLOOM).
    scaled_embeddings
        Whether embeddings are multiplied by a number before the first layer.
    rotary, rotary_fraction
        Rotary position embedding: used at all, and on which share of the head.
    scaled_rotary
        Whether the rotated queries and keys are also multiplied by a number, with the table (YaRN of gpt-oss).
    alibi
        Whether a bias that falls with the distance is added to scores in place of an embedding of positions (ALiBi).
    chunked
        Whether local layers see the tokens of their own chunk of so many, rather than a window that moves (Llama 4).
    """

    tied_embeddings: bool = False
    gated_mlp: bool = True
    activation: str = "silu"
    joint_projections: bool = False
    norm: str = "rmsnorm"
    norm_bias: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False
    qk_norm_plain: bool = False
    scaled_queries: bool = False
    norm_place: str = "before"
    norm_formula: str = "rounded"
    parallel_residual: bool = False
    shared_norm: bool = False
    scaled_branches: bool = False
    scaled_logits: bool = False
    joint_up: bool = False
    joint_attention: bool = False
    causal: bool = True
    head_bias: bool = False
    attention_sinks: bool = False
    gated_attention: bool = False
    own_code: str = ""
    heads_joined: bool = False
    sliced_projections: bool = False
    half_rotary: bool = False
    wide_rotary: bool = False
    paired_rotary: bool = False
    embedding_norm: bool = False
    scaled_embeddings: bool = False
    rotary: bool = True
    rotary_fraction: float = 1.0
    scaled_rotary: bool = False
    alibi: bool = False
    chunked: bool = False

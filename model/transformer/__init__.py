"""The kernels of a transformer's layers, forward and backward, as lists of launches in program order.

A layer in each framework, which calls the modules named behind it:

- ``pytorch_layer``: PyTorch's eager mode, of ``eager_layer``'s halves with ``rotary`` embedding, or of ``eager_moe``
  and ``shared_experts``; ``float8_linear``: its linear layers in FP8. ``compiled_layer``: fused by ``torch.compile``.
- ``modules_layer``: the modules of transformers or torchtitan, of ``autocast_linear`` layers, ``pytorch_norm`` or an
  ``unfused_norm``, ``transformers_rotary`` or ``torchtitan_rotary``, ``modules_mlp`` (of ``modules_activation``) or
  ``modules_experts`` (with ``modules_router``, ``expert_weights``, ``modules_shared`` and ``masked_values``), and
  ``dropout``. Attention is PyTorch's (``masked_attention``, or ``math_attention`` where no fused kernel takes it),
  ``transformers_attention``, or ``family_attention`` where a family's code is like no other's. ``modules_compiled``:
  fused by ``torch.compile``; ``operator_checkpoints``: computed again in part. ``liger_kernels`` and ``liger_loss``:
  Liger's kernels in their place. ``lora_linear``: adapters (LoRA) beside linear layers, and ``frozen``: what a backward
  then leaves out.
- ``megatron_layer``: Megatron-Core with Transformer Engine, of ``core_attention``, ``megatron_mlp`` or ``moe``, and
  ``megatron_linear`` layers; ``megatron_norm``: gradients of norms; ``megatron_rotary`` embedding.

What several of them call:

- Attention: ``attention_kernel``, or ``unfused_attention`` as separate kernels; ``latent_attention``;
  ``context_parallel`` over several ranks, or ``pytorch_context`` by PyTorch, both of ``ring_steps``.
  ``gated_attention``: what multiplies its result.
- In attention's place: ``state_space`` and ``delta_net`` (linear attention) for the kernels between a mixer's
  projections, called by ``modules_mixer`` and ``megatron_state_space``; ``state_space_context`` over several ranks.
- Experts: ``expert_rows`` for how tokens reach them (``expert_parts``: of how many ranks), ``row_operators`` for
  PyTorch's kernels that take them there, ``biased_experts`` for clamps and biases in Megatron; ``unfused_router`` for
  scores in Megatron, ``hybrid_exchange`` for what HybridEP sends beside tokens.
- Products: ``linear`` for their sizes and biases; ``pipelined_products`` for communication beside them, by PyTorch in
  ``async_tensor``; ``narrow_kernels`` for what FP8 and FP4 add; ``stored_narrow`` for tensors that are kept in fewer
  bits until the backward.
- Images: ``vision_tower``, what stands around layers over their patches.
- The ends of the stack: ``head`` with the embedding, ``loss``, ``log_probabilities`` for losses on pairs of sequences
  and of logits in tiles, ``divergence`` from a teacher's, ``value_head`` of a reward model, ``softcap`` of logits, and
  ``multi_token`` prediction.
"""

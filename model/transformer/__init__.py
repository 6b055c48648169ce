"""The kernels of a transformer's layers, forward and backward.

- ``pytorch_layer``: a layer in PyTorch's eager mode, of ``eager_layer``'s halves with ``rotary`` embedding, or of
  ``eager_moe`` and ``shared_experts``; ``compiled_layer`` one that ``torch.compile`` has fused, ``float8_linear`` its
  linear layers in FP8.
- ``modules_layer``: a layer as transformers or torchtitan write it, ``modules_compiled`` when compiled; of
  ``autocast_linear`` layers, ``pytorch_norm``, which may be an ``unfused_norm``, ``turned_rotary`` or
  ``complex_rotary``, ``masked_attention``, ``written_attention`` or a single family's ``own_attention``,
  ``whole_activation``, and ``dropout``.
- ``megatron_layer``: a layer in Megatron-Core with Transformer Engine: ``core_attention``, ``megatron_mlp`` or ``moe``
  between ``megatron_linear`` layers and norms (``megatron_norm`` for their gradients).
- Attention: ``attention_kernel``, ``unfused_attention`` as separate kernels, ``query_scaling`` in front of it,
  ``latent_attention``, ``context_parallel``
  over several ranks.
- Experts: ``modules_experts`` as transformers writes them; ``expert_rows`` for how tokens reach them, ``row_operators``
  for PyTorch's kernels that take them there.
- Beside products: ``pipelined_products`` for their communication, ``narrow_kernels`` for what FP8 and FP4 add.
- The ends of the stack: ``head`` with the embedding, ``loss``, ``softcap`` of logits, and ``multi_token`` prediction.
"""

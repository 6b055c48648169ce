"""The kernels of a transformer's layers, forward and backward.

- ``eager_layer``: a layer in PyTorch's eager mode, with ``rotary`` embedding.
- ``megatron_layer``: a layer in Megatron-Core with Transformer Engine: ``core_attention``, ``megatron_mlp`` or ``moe``
  between ``megatron_linear`` layers and norms (``megatron_norm`` for their gradients).
- Attention: ``unfused_attention`` as separate kernels, ``latent_attention``, ``context_parallel`` over several ranks.
- Beside products: ``pipelined_products`` for their communication, ``fp8_kernels`` for what FP8 adds.
- The ends of the stack: ``head`` with the embedding, ``loss``, and ``multi_token`` prediction.
"""

"""Physics: pure functions of arrays and frozen dataclasses, and the catalogue of what they are asked about.

To read, in this order:

- What is computed: ``operators``, the work of one kernel, free of any GPU.
- On what: ``description``, the numbers of one GPU with source and uncertainty; ``catalogue`` finds them,
  ``derivation`` derives those of cards that nobody has measured (by ``derivation_rules`` and ``technology``), and
  ``gpu_model`` has them as plain floats.
- One kernel: ``lowering`` gives every operator to its family (``gemm``, ``attention``, ``streaming``,
  ``collectives``), and ``power`` says what it takes at a clock, in the arrays of ``costs``.
- Under a power limit: ``governor`` and ``voltage``; ``predict`` puts all of this together for single kernels.
- A training step: ``transformer`` lists the ``launches`` of a layer (``transformer_layer`` in eager PyTorch,
  ``transformer_megatron`` in Megatron-Core), an embedding, a head and an optimizer step: of a model
  (``model_config``, which ``hf`` reads), as the options of a framework decide (``implementation``).
- Between GPUs: ``fabric``, ``data_parallel`` and ``contention``; whether it fits: ``memory_footprint``.
- How sure: ``uncertainty``.
"""

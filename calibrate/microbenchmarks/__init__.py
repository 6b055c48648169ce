"""What can be measured on a GPU, and the code that runs it.

- ``protocol``: a microbenchmark, and what runs it; ``catalogue``: those that there are, by ``catalogue_shapes`` and
  ``collective_catalogue``; ``row_forms``: the row of each.
- ``host_pace``: how fast PyTorch launches kernels.
- ``loads``: from a row to launches, ``composite`` ones too, of a ``kernel``: ``gemm``, ``attention``, ``streaming``,
  ``training``, ``layer_parts``.
- ``tiles`` and ``tile_attention``: kernels with explicit tiles, compiled from ``tile_kernels`` and
  ``tile_attention_kernels`` by ``triton_kernels``.
- ``engine``: keeps a card busy with them; ``torch_runner``: runs them, with ``torch_backend``; ``clock_counter``: the
  clock at which they ran.
- ``distributed``: several GPUs, by ``group_runner`` and ``group_work``.
- ``shrink``: sizes for a CPU.
"""

"""Single kernels: what they compute, and their work on one GPU.

- ``operators``: work free of any GPU; ``operator_checks`` refuses what no kernel has, ``families`` names kernels whose
  errors are told as one.
- The library's kernels: ``gemm``, with ``product_tiles`` for the tiles that it has, ``product_cut`` for the one that it
  takes and ``product_pace`` for the cycles of one; ``attention``, with ``attention_fp8`` for its pace in FP8,
  ``few_heads`` for fewer blocks than SMs, ``documents`` for several in one sequence, ``positions`` for what kernels
  take more of these and of windows, and ``head_width`` for heads wider or narrower than 128; ``streaming`` for those
  that move data, ``row_softmax`` for the softmax of rows, ``multi_tensor`` for AdamW's steps and ``row_blocks`` for
  vLLM's row-wise ones.
- ``scan_work`` counts what Triton kernels of state-space mixers (Mamba-2) multiply and move, ``delta_work``
  the same of linear attention (Gated DeltaNet); ``scan`` has their paces.
- Kernels whose schedule is given: ``tiles`` (matrix products), ``attention_tiles``, ``row_tiles`` with ``row_layout``
  and ``row_registers``; ``occupancy`` says how many blocks an SM holds, ``tile_estimates`` what a description may leave
  out, ``tile_use`` what a tile makes of a GPU.
- ``own_kernels``: a user's own in place of the library's.
- ``unaligned``: products whose rows in memory are not aligned to 16 bytes.
- ``toggling``: switching activity by input values.
- ``lowering``: from operators to their work, all kernels of a family in one call, as the arrays of ``costs``;
  ``arrays`` has what the lowerings share, ``remembered`` what is kept of them while a fit moves few parameters.
"""

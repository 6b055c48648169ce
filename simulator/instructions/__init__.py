"""What every pipeline rank runs, and what each instruction takes.

- ``program``: the launches of each kind of instruction; ``replicas``: what data parallelism adds,
  ``overlapped_buckets``: its communication beside whole instructions.
- ``tables``: time and energy of instructions at every clock, with what runs beside each other (``overlap``, and
  ``overlap_steady`` in stacks of equal layers, at many deviations of its parameters at once);
  ``clock_columns``: the clock that really runs; ``host``: what launching takes, PyTorch's by ``eager_launches``.
- ``kernel_segments``: an instruction's kernels at one clock, as events.
- ``footprints``: peak memory; ``memory_over_time``: memory over an iteration.
- Without a plan: ``repeated`` launches back to back, ``layer_options`` for many ways to run the same ones.
"""

"""Single kernels as events.

- ``segments``: kernels of one type of instruction, as an exact map of times; ``segment_program``: their order on ranks.
- ``engine``: one SimPy process per stream and rank; ``memoised`` finds the same times another way, which tests hold it
  against.
- ``timeline``: what one GPU did and drew; ``guards``: conservation laws of it.
"""

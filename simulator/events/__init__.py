"""Single kernels as events.

- ``segments``: kernels of one type of instruction; ``segment_program``: their order on ranks.
- ``engine``: one SimPy process per stream and rank.
- ``timeline``: what one GPU did and drew; ``guards``: conservation laws of it.
"""

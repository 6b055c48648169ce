"""Choices made by forecast, and what they really take.

- ``overlap``: forecasts of overlapped work; ``overlap_choice`` chooses among them, ``tile_choice`` among tiles.
- ``a100_overlap``: an attention layer beside an all-reduce on two A100s; ``a100_overlap_choice`` chooses its
  configuration.
"""

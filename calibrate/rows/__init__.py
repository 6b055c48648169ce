"""Measured rows, and what each of them ran.

- ``measured``: rows read, split into what a prediction may read and what was measured, in the ``units`` of its keys.
- ``operators``: which kernels a row ran; ``single_kernels`` reads one from the row's ``fields``;
  ``training_kernels`` has those of a training step, ``framework_kernels`` those of single operations of PyTorch,
  ``optimizer_steps`` of an optimizer's step alone.
- ``overlap``: launches of overlapped work on both streams.
- ``timing``: how a published time was taken; ``unread``: rows that no fit reads.
"""

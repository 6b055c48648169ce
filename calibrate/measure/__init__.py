"""The measurement protocol: settle, a window of whole counter steps, repeats; and the recording of the results.

- ``protocol``: one microbenchmark measured, by ``settings``; ``faults``: why it gave no row.
- ``sampler``: reads a card while it works, in a ``sampling_process``; ``collector``: what it reads; ``watch``: all
  cards of some work.
- ``window``: energy and power of a stretch of samples, by steps of a ``counter`` or a ``history_window``;
  ``measured_row``: fields of a row.
- ``recording``: what is kept of a session; ``recorder`` writes it, line by line of ``records``.
"""

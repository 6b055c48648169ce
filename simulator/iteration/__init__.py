"""The forecast of one training iteration, and of what surrounds its GPUs.

- ``forecast``: from a plan to its answer, ``result``; ``plan_interval``: its 90 % interval, by ``uncertainty``, with
  ``stretch`` for what no kernel alone tells and ``host_pace`` for how fast the host launches; ``ledger_guards``: its
  conservation laws; ``own_kernels``: what it says of a user's own kernels; ``nearest_fit``: the nearest plan that fits
  memory, of one that does not.
- ``site``: nodes, switches, facility, money, carbon and power limits, of the quantities of ``site_model``;
  ``site_peaks``: their highest powers.
"""

"""Instructions under clocks that change while they run.

- ``prepared``: a plan's instructions tabulated at every clock; ``steady_state``: its iterations, once clocks settled.
- ``simulation``: ranks tick by tick; ``program``: what each executes, ``ranks``: how one advances.
- ``governor``: a board's power-limit loops; ``part_limits``: limits on parts of a package.
- ``rendezvous``: waits that torch.distributed.pipelining adds.
- ``power_over_time``: power of a GPU, and of groups of GPUs in step.
"""

"""Many plans at once, none of them simulated.

Plans that differ in anything:

- ``forecast``: time, power and energy of them; ``trust`` names plans for which this is too coarse, ``guards`` hold
  conservation laws.
- ``keys``: what parts of plans depend on; ``tabulated``: each distinct one at every clock; ``layout``: ranks and
  stages in flat arrays.
- ``pipelines``: lengths and waits, by ``pipeline_formula`` or, where none holds, ``pipeline_walk``; ``behind``: what
  travels beside instructions; ``clocks``: where boards settle.

Plans that differ in the clocks of their instructions alone:

- ``evaluator``: their times and energies, with the compiled loop of ``evaluator_kernels``.
"""

"""Which plan to run: time-energy fronts, what-if sweeps, comparisons, and exports to schedulers.

To read, in this order:

- The exact front: ``problem`` is a graph of instructions (``dag``) with the ways to run each (``options``);
  ``parametric_flow`` finds its lower bound, ``rounding`` and ``plan_search`` plans beside it, and ``exact_front`` puts
  them together.
- Where problems come from: ``forecast_front`` from a plan, ``profile_front`` from a measured profile; ``exports``
  writes what schedulers read.
- Other questions to a front: ``stragglers``, ``power_limits``, ``rank_limits``, ``simple_plans``, ``switching``.
- Sweeps of whole plans: ``sweep``. Overlap and tiles: ``joint_choice``. Why plans differ: ``compare``.

Modules named ``…_kernels`` are inner loops that numba compiles where it is installed.
"""

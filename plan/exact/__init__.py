"""The time-energy front of a graph of instructions: its exact lower bound, and plans along it.

To read, in this order:

- ``dag``: which instruction waits for which; ``dag_file`` reads a user's own graph.
- ``problem``: such a graph with the options of its instructions, and what waiting costs.
- ``parametric_flow``: the lower bound, with ``parametric_flow_kernels``.
- ``rounding``: discrete plans along it, with ``rounding_kernels``; ``plan_search`` improves them.
- ``simple_plans``: plans with few different choices, with ``tied_kernels``.
- ``exact_front``: all of this together, a ``front``, held to conservation laws by ``front_guards``;
  ``power_means``, ``site_limits``: plans that exceed power limits of boards, or of the site; ``power_caps``: plans
  at such a limit of boards;
  ``front_intervals``: how sure its plans are, as ``plan_ends`` names it.
- ``exports``: fronts as schedulers read them.

Modules named ``…_kernels`` are inner loops that numba compiles where it is installed (``compiled``).
"""

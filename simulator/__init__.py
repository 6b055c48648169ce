"""From a plan to a program, and from a program to a timeline of time, power and energy.

To read, in this order:

- The plan: ``plan`` checks and holds a PLAN.toml, whose keys are those of ``plan_schema``; the other modules
  ``plan_…`` have what one of its tables means.
- Its program: ``program`` lists what every pipeline rank launches, ``schedules`` in which order; ``replicas`` has what
  data parallelism adds, ``placement`` the links.
- Its forecast: ``tables`` has time and energy of every instruction at every clock, with what runs beside it
  (``overlap``); ``fluid`` runs instructions while ``governor`` moves the clocks; ``forecast`` makes the answer
  (``iteration``) of it. This is what `joulecast predict` runs.
- Every kernel of it: ``engine`` plays single kernels as events, for ``kernel_timeline`` and traces; ``memoised`` finds
  the same times another way, which tests hold it against.
- Many plans at once: ``evaluator`` where they differ in the clocks of their instructions alone, ``closed_form`` where
  they differ in anything, for sweeps.
- Around the GPUs: ``site``. What must hold of every answer: the modules ``…guards``.
"""

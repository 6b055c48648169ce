"""Many plans at once, none of them simulated.

Plans that differ in anything are forecast in steps, by :func:`closed_form` of ``forecast``:

1. *Rows* (``layout``, by ``shape``). Ranks of a plan that do the same are one rank row, and equal chunks of such a
   rank one stage row. Rows of all plans lie one after another in flat arrays; those with equal work are evaluated once.
2. *Parts* (``tabulated``, by ``keys``). A stage's instruction is a sum of few distinct parts, such as
   ``ends + layers · layer``: its recipe. Each part is lowered once, and tabulated on a grid of clocks. A rank's tail is
   what follows its last backward; the drain is what of it the rank before waits for.
3. *Work* (``work``). Time and energy of stages and tails at every clock, summed from their recipes, at the pace of the
   slowest of a group, with the exposed part of what travels beside instructions (``overlapped_buckets``), below the
   clocks that a plan sets. Kinds of a stage whose weight gradients are apart run at clocks of their own
   (``own_clocks``).
4. *Pipelines* (``pipelines``). Lengths of iterations and waits of ranks at any clocks, by ``pipeline_formula`` or,
   where none holds, ``pipeline_walk``.
5. *Clocks* (``clocks``). Where boards settle: waits leave power to the work, whose clocks make the waits.

``trust`` names plans for which this is too coarse, ``guards`` hold conservation laws.

Plans that differ in the clocks of their instructions alone are evaluated exactly by ``evaluator``, with the compiled
loop of ``evaluator_kernels``.
"""

"""What-if sweeps: every legal plan of a space, those that meet constraints, and the best of them.

- ``space``: the file, and the ``values`` that its keys offer; ``plans``: its plans; ``idle``: keys that do
  nothing in some; ``legal``: which combinations can be plans; ``plan_text``: one as a file.
- ``rows``: their forecasts; ``choose``: the best; ``clusters``: the best of each GPU and number of them.
- ``simulated``: which of them are simulated in full.
- ``refusals``: why combinations are no plans.
- ``search``: goes through all of it, in ``workers``; ``journal``, ``parts``, ``lines``: what it keeps meanwhile.
- ``result``: what it found.
"""

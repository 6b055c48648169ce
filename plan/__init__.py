"""Which plan to run: time-energy fronts, what-if sweeps, comparisons, and exports to schedulers.

Each part imports only from those above it:

- ``knobs``: what a plan may choose from: options of instructions, overlap, tiles.
- ``exact``: the front of a graph of instructions: lower bound, plans beside it, files for schedulers.
- ``fronts``: fronts of plans and of measured profiles, and other questions to them.
- ``limits``: power limits of jobs and of ranks; batch sizes.
- ``comparison``: why plans differ.
- ``sweep``: whole spaces of plans.
"""

"""A training loop of the user's own, measured by the protocol of microbenchmarks and held beside its forecast.

- ``metered_plan``: the plan of a loop, and its forecast, made before anything is measured.
- ``local_gpus``: the GPUs of this process, and its place among the processes of a job.
- ``metered_row``: the row that a loop becomes; rows of the ranks of one job joined.
- ``oddities``: what makes a loop something else than its plan.
- ``result``: measured beside forecast.
- ``phases``: what a meter does at a time.
- ``loop``: counts steps, and opens and closes windows between them.
"""

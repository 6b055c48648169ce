"""What is set once for a job or a rank: power limits and batch sizes.

- ``power_limits``: one power limit for a whole job; ``power_limits_read`` reads measured ones.
- ``rank_limits``: a power limit for each pipeline rank; ``rank_limits_search`` finds those worth simulating.
- ``batch_size``: the batch size of a job that recurs, learnt while it recurs.
"""

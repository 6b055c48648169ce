"""Between and around GPUs: links, collectives, and what nodes draw, cost and lose to failures.

- ``fabric``: how GPUs are joined, and what a group of ranks has of it; ``links`` finds this for node types and
  networks.
- ``collectives``: time and bytes of collectives over such links; ``extremes`` has the slowest of many.
- ``node_power``: from the GPUs' boards to the facility's meter; ``site_cost``: money and carbon.
- ``goodput``: the share of time in which training advances where nodes fail.
"""

"""Share of a run's time in which training advances, where nodes fail and checkpoints are written."""

from __future__ import annotations

import math


def goodput(nodes: int, node_mtbf_s: float, checkpoint_s: float, restart_s: float) -> float:
    """Share of the time that advances training, with checkpoints as far apart as is best [1].

    A job of n nodes fails every M = MTBF/n on average, at random. With checkpoints of length C every τ, and a time R
    from a failure to going on, the expected time of work τ is ``M·exp(R/M)·(exp((τ + C)/M) − 1)``; the best τ is close
    to ``sqrt(2·C·M) − C``, and M where a checkpoint takes more than half of that.

    Parameters
    ----------
    nodes
        Any of which ends the job when it fails.
    node_mtbf_s
        Mean time between failures of one node [s].
    checkpoint_s
        Time in which a checkpoint holds up training, above 0 [s].
    restart_s
        From a failure to the last checkpoint's state being at work again [s].

    References
    ----------
    Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, Future Generation Computer
    Systems 22 (2006), doi:10.1016/j.future.2004.11.016, equations 20 and 37.
    """
    mean = node_mtbf_s / nodes
    apart = math.sqrt(2.0 * checkpoint_s * mean) - checkpoint_s if 2.0 * checkpoint_s < mean else mean
    exponents = restart_s / mean, (apart + checkpoint_s) / mean
    if sum(exponents) > math.log(1e12):  # it hardly ever advances
        return 1e-12
    return apart / (mean * math.exp(exponents[0]) * math.expm1(exponents[1]))

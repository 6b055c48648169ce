"""Which microbenchmarks are worth their time, and the live calibration that runs them.

To read: ``session`` is the loop; ``belief`` is what is known, ``information`` what a microbenchmark would add to it,
``design`` the choice. ``live`` runs it on a card, ``replay`` makes a description of what was recorded.
"""

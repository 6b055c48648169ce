"""Which microbenchmarks are worth their time, and the live calibration that runs them.

To read: ``session`` is the loop; ``candidates`` are what could be measured, ``belief`` is what is known,
``information`` what a candidate would add to it, ``design`` the choice. ``live`` runs it on a card, ``replay`` makes a
description of what was recorded.
"""

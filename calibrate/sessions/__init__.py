"""A calibration session: which microbenchmarks are worth their time, and the loop that runs them on a card.

- ``session``: the loop; ``candidates``: what could be measured, towards the kernels of ``reference``; ``active``:
  clocks and limits to set.
- ``belief``: what is known, at first from ``base`` and ``other_cards``; ``update`` follows the rows, by
  ``sensitivity``.
- ``information``: what a candidate would add; ``design``: the choice.
- ``live``: the loop on a card, and on ``groups``; ``display`` shows it, with each ``duration``.
- ``replay``: a description of what was recorded; ``report``: what it hangs on.
"""

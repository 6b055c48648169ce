"""Published training steps: read, planned, and the factors of long training runs that are fitted to them.

- ``rows``: reads the files; ``plans``: makes a plan of a row.
- ``fit``: factors of step times; ``left_out``: steps that a fit has not seen; ``alone``: of one
  generation, while all others stand.
- ``shipped``: the catalogue's factors; ``write``: their file.
"""

"""Published training steps: read, planned, and the factors of long training runs that are fitted to them.

- ``rows``: reads the files; ``generations``: what the frameworks of their sources run; ``plans``: makes a row's plan.
- ``fit``: factors of step times; ``left_out``: steps that a fit has not seen; ``separate_factors``: the factor of one
  generation of frameworks, while all others stand.
- ``shipped``: the catalogue's factors, and their file.
"""

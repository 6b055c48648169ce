"""From rows to the description of a GPU.

- ``from_rows``: from files of rows, by ``describe`` or, where nobody read the clock, ``describe_unclocked``.
- ``own_kernels``: a description with a user's own kernels, from rows of them.
- ``assemble``: fitted parameters with provenance, covariance and discrepancy.
"""

"""Pictures for papers, drawn with Matplotlib.

- ``figure``: their style, and files that are the same bytes every time.
- ``front``, ``ledger``, ``measured``, ``timeline``: series drawn.
"""

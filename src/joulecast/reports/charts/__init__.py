"""Pictures for the browser, drawn with Plotly.

- ``chart``: what all of them are made of.
- ``front``, ``ledger``, ``measured``, ``timeline``: series drawn; ``sweep``: plans of a space, GPU by GPU;
  ``time_energy``: plans of a comparison, and of power limits.
"""

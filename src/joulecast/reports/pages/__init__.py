"""Pages for the browser, one module for each kind of result.

- ``predict``, with ``site_section`` for what surrounds the GPUs; ``front``, ``limits``, ``sweep``, ``compare``.
- ``validate``, ``calibrate``.
"""

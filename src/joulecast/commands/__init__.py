"""One module per command: its function of the same name, or what its function `register(app)` adds."""

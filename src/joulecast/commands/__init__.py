"""One module per command; each registers itself by a function `register(app)`."""

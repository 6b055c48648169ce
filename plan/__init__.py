"""Plan spaces, exact time–energy fronts and exports to schedulers."""

"""Fits a GPU description to measurements."""

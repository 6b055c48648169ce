"""Holds predictions against measured rows."""

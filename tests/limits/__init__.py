"""Limits and roots, from what a task says to what real workers do."""

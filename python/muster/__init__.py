"""Muster from Python."""

"""Compatibility and memory of target and draft, and the choice of a draft model."""

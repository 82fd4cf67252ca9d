"""Checks and measurements of a pair on this machine."""

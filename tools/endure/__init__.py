"""Endurance and faults: `python -m tools.endure`."""

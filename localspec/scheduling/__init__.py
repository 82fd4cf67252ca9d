"""Several answers from one target: their shared passes, and how much each may draft."""

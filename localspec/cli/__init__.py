"""The command line: one module per verb, and shared helpers."""

"""From references to an engine."""

"""Evidence that speculative answers are the target's own."""

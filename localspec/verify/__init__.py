"""Evidence that speculative answers are the target's own, on this model and this machine."""

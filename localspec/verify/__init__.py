"""Evidence that speculative decoding does not change the target's answers."""

"""Many answers from one target: their passes made together, and what they may draft."""

"""`localspec serve`: serves the engine in the protocols that clients of local models use."""

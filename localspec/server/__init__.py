"""`localspec serve`: the engine behind the protocols that clients of local models speak."""

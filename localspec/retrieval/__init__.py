"""Learned texts on disk: which tokens followed a suffix wherever it occurred in them."""

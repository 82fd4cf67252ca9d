"""The drafters, tested on toy models and on brute force."""

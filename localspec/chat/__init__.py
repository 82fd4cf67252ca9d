"""A conversation as data, and its figures in words."""

"""A draft made of the target's own file."""

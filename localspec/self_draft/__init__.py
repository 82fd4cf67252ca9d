"""Drafts made from the target's own file."""

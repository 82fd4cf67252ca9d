"""Data of a conversation, and its figures in words."""

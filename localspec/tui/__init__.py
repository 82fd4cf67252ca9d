"""The terminal chat: `localspec chat`."""

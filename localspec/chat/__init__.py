"""Conversations: how messages become a prompt."""

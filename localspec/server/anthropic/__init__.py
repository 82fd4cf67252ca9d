"""Anthropic's protocol."""

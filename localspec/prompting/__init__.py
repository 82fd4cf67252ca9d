"""Converts messages to the tokens of a prompt, and tokens to text."""

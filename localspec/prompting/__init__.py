"""From messages to the tokens of a prompt, and from tokens back to text."""

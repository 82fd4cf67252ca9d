"""From messages to the tokens of a prompt."""

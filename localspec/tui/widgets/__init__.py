"""What the chat's screen is made of, a widget a file."""

"""Messages as lines of the screen."""

"""The chat's logic between user, history and engine; independent of the screen."""

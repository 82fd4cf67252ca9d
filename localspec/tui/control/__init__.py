"""What goes on between user, history and model."""

"""What goes on between user, history and engine; knows nothing of how it is shown."""

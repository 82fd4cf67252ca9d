"""Actions of the user, and updates of the screen."""

"""Who tells the screen what to show, and carries out what the user wants of it."""

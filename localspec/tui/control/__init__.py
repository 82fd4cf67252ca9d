"""Carries out what the user wants, and tells the screen what to show."""

"""Rendering of messages to lines of the screen."""

"""The widgets of the chat's screen."""

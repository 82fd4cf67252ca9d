"""Between user, history and engine; knows nothing of the screen."""

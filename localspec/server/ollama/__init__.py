"""ollama's protocol."""

"""KV caches of conversations, stored on disk."""

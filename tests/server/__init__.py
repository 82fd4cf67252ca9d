"""The server as clients meet it: a process of its own, and the real clients."""

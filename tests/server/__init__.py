"""Tests of the server in a separate process, with real clients."""

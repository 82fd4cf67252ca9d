"""Opens an engine from model references."""

"""The algorithm over token trees: token ids in, token ids out; no text, files or llama.cpp."""

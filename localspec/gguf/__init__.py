"""GGUF files, read safely: metadata, tensors, vocabularies, sizes."""

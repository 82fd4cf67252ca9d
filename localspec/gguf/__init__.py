"""Safe reading of GGUF files: metadata, tensors, vocabularies, sizes."""

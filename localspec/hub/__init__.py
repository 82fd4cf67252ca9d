"""Models here and on Hugging Face: references, catalogue, download, cache, removal."""

"""Texts that were learned, on disk: what followed an ending wherever it stood in them."""

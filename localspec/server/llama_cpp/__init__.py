"""The endpoints of llama.cpp's own server."""

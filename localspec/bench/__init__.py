"""`localspec bench`: localspec beside plain decoding and llama-server, on this machine."""

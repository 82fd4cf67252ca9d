"""`localspec bench`: localspec beside plain decoding and peers, on this machine."""

"""`localspec bench`: compare localspec with plain decoding and peers on this machine."""

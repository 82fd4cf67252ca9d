"""`localspec bench`: this machine, this pair, side by side with plain decoding and with peers."""

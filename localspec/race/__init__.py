"""Plain decoding and localspec on one prompt, in turns."""

"""Plain decoding and localspec on one prompt, in turns on one machine."""

"""llama.cpp's server tests, run against `localspec serve`."""

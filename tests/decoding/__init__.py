"""The decoding core, tested on toy models where the right answer is known exactly."""

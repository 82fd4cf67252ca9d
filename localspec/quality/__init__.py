"""Answers to test questions with and without speculative decoding."""

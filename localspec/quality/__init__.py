"""Test questions with and without speculation, side by side."""

"""The check-up of a pair on this machine."""

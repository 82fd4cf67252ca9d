"""Measurements that need a quiet machine."""

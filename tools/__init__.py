"""Measurements, most of which need an idle machine."""

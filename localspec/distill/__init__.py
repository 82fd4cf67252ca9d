"""Drafts for a model, trained on this machine from the model's own answers."""

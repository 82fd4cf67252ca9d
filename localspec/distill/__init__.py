"""A draft for a model, trained on this machine from that model's own answers."""

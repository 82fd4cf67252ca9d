"""Models: where they are, what fits what, and how to get them."""

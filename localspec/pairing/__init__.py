"""What fits what: the rules of a pair, memory, and which draft model promises most."""

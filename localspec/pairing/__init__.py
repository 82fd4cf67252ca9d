"""Rules of a pair, memory, and which draft model promises most."""

"""Everything that proposes tokens, one source per file; `registry` lists them all."""

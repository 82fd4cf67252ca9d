"""Everything that proposes tokens, a source a file; `registry` knows them all."""

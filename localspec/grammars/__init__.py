"""Grammars that answers follow: JSON schemas, regular expressions, GBNF and Lark, by llguidance."""

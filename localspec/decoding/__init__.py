"""The algorithm: plan, draft, verify, accept, commit, over token trees.

Token ids in, token ids out. Nothing here knows of text, files, llama.cpp or a screen, so that the
whole of it can be tested on toy distributions where the right answer is known exactly.
"""

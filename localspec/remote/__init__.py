"""The target on other machines: llama.cpp's RPC servers compute its layers.

Where a server does not answer, llama.cpp aborts the process. So nothing native of such a target is
here but its vocabulary: weights, cache and passes are in a child process (`child.py`) that may die.
"""

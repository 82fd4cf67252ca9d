"""The target on other machines: llama.cpp's RPC servers compute its layers.

If a server does not answer, llama.cpp aborts the process. So weights, cache and passes of such a
target are in a child process (`child.py`), which can die safely; only the vocabulary is here.
"""

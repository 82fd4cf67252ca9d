"""The binding: the only package that imports llama_cpp, and only when a model is opened."""

from localspec.llama import openmp

openmp.shorten_waits()

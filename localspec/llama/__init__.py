"""The binding: the only room that imports llama_cpp, and only when a model is opened."""

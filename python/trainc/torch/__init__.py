"""The front end for PyTorch, in rooms: each may import those that docs/README.md lists for it."""

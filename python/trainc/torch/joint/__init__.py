"""A joint graph of forward and backward, compiled and put behind autograd."""

"""From a call of the program to a graph: tracing, of a model or of a whole step."""

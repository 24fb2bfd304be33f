"""`trainc.report`: a step as one page to look at (HTML), or as a trace (Chrome's format)."""

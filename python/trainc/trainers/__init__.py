"""Callbacks for trainers: each framework's in a module of its own, imported by whoever uses it."""

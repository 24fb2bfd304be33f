"""Keras models: their steps through the door of the backend that Keras runs on."""

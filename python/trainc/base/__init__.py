"""What every front end stands on, without any framework: options, errors, messages, records, reports, the cache of plans."""

import os

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # where trainc's own files lie

__all__ = ["PACKAGE"]

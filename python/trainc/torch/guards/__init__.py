"""What a captured program depends on beside its arguments: what it read is found, and compared at each call."""

"""What a captured graph is: its wire format for the compiler, and symbols for its sizes."""

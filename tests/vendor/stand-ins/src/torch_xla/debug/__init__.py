"""What the library counts."""

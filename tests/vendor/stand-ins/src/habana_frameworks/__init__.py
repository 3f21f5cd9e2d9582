"""A stand-in for the library of Intel Gaudi."""

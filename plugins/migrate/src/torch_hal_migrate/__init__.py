"""What of a script written for Lightning or Accelerate works here, works differently, or is missing.

It reads scripts and tables, and imports none of these libraries, nor torch.
"""

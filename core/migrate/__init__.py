"""What of a script written for Lightning works here, works differently, or is missing.

It reads scripts and tables, and imports neither Lightning nor torch.
"""

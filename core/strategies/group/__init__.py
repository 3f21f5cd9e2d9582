"""The process group: joining it, leaving it, and what must end before."""

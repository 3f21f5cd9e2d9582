"""The store of a run, through which its processes find and wait for each other."""

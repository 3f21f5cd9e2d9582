"""On Horovod itself, on this machine; see environment.py."""

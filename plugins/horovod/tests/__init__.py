"""Tests of torch-hal-horovod."""

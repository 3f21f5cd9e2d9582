"""Callbacks that find a batch size or a learning rate before a fit."""

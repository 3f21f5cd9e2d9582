"""TPU, and what else torch_xla runs on, in torch-hal: accelerator ``xla``."""

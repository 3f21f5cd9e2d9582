"""TPUs and other devices of torch_xla in torch-hal: accelerator ``xla``."""

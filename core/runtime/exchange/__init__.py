"""Values that the processes of a Runtime exchange: collectives, and what they compare before one."""

"""Settings for each Python process of a test session, run before anything else."""

import gc
import os

# A quarter of ``import torch`` would be collecting garbage.
gc.set_threshold(100_000, 50, 50)

if "FORK_SERVERS" in os.environ:
    import fork_client

    fork_client.hand_over_if_it_trains()

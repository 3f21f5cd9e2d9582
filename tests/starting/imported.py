"""What processes that train import, and a fork server has imported before.

Nothing that warns: one that is to take warnings for errors would not hear of it.
"""

import numpy  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.utils.data  # noqa: F401

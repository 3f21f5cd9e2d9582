"""The imports of a fork server: packages that training processes need.

No package here may warn when it is imported: a forked process with ``-W error`` would not raise that warning.
"""

import numpy  # noqa: F401
import torch._dynamo
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.utils.data  # noqa: F401

"""What all tests of this package need."""

from __future__ import annotations

import signal

# A shell's background job ignores it, which programs inherit: the tests of Ctrl-C would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)

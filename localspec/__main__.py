"""The `localspec` command, and `python -m localspec`."""

import os
import signal
import sys

# The imports below take most of a short command's time; Ctrl+C would print a traceback of them.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

from localspec.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""Set up for every test: the repository root on the path, one thread per process."""

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parent.parent)
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

# Read when torch is first imported, here and in every child process: one torch thread each.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Read when Ray is first imported, which may be for something else than a Ray that wants a token.
os.environ["RAY_AUTH_MODE"] = "token"

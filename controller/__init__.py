"""Controller for parallel robots: mechanism, motion and safety pure inside, service and gateway thin outside.

Before anything imports numba, its cache folder is named after the kernel sources: numba notices a change in a
compiled file, but not in a file that the compiled one calls, and would then run stale physics.
"""

import hashlib
import os
from pathlib import Path

__version__ = "0.1.0"


def _kernel_cache() -> str:
    sources = sorted((Path(__file__).parent / "mechanism").glob("*.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    home = os.environ.get("CACHE_DIRECTORY") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return str(Path(home) / "pkm-controller" / f"kernels-{digest}")


os.environ.setdefault("NUMBA_CACHE_DIR", _kernel_cache())

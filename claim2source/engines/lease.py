"""Say on a server who writes to an index: a server has no lock that a dead process lets go of."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from dataclasses import asdict, dataclass, field

# A writer that has not renewed its lease for so many seconds is taken for gone.
LEASE = 600.0
# A lease older than this is renewed at the next write.
RENEW = 60.0


@dataclass(frozen=True)
class Lease:
    """Name the process that writes, and until when others leave it alone."""

    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    until: float = field(default_factory=lambda: time.time() + LEASE)

    @classmethod
    def read(cls, text: object) -> Lease | None:
        """Read what a writer left; None where there is none, or nothing that can be read."""
        try:
            found = json.loads(str(text))
            return cls(*(kind(found[name]) for name, kind in _FIELDS.items()))
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            return None

    def written(self) -> str:
        """Write it as JSON."""
        return json.dumps(asdict(self))

    @property
    def holds(self) -> bool:
        """Tell whether its process may live: its time is not up, and it is not gone from here."""
        left = self.until - time.time()
        if not 0 < left <= 2 * LEASE:
            return False
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            return True
        except (OSError, OverflowError):
            return False
        return True

    def __str__(self) -> str:
        left = max(0, round(self.until - time.time()))
        return f"process {self.pid} on {self.host}, whose lease ends in {left} s"


_FIELDS = {"host": str, "pid": int, "token": str, "until": float}

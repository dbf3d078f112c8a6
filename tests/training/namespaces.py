"""Two hosts on one machine: network namespaces joined by a cable, as root on Linux."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

PREFIX = "c2s"


@dataclass(frozen=True)
class Host:
    """One host: its namespace, its network device and its address."""

    name: str
    device: str
    address: str

    def inside(self, command: list[str]) -> list[str]:
        """Give the command that runs another one on this host."""
        return ["ip", "netns", "exec", self.name, *command]

    @property
    def environment(self) -> dict[str, str]:
        """Name the device for gloo: both hosts have this machine's name."""
        return {"GLOO_SOCKET_IFNAME": self.device}

    def kill(self) -> None:
        """Kill every process on this host at once, as a node that goes down does."""
        for line in ip("netns", "pids", self.name).split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line), signal.SIGKILL)

    def give_up_early(self) -> None:
        """Have the kernel give up a silent peer after seconds, not a quarter of an hour."""
        words = ["sh", "-c", "echo 3 > /proc/sys/net/ipv4/tcp_retries2"]
        subprocess.run(self.inside(words), check=True, timeout=30)

    def unplug(self) -> None:
        """Take the cable out: nothing arrives, and nobody is told."""
        ip("-n", self.name, "link", "set", self.device, "down")


def ip(*words: str) -> str:
    """Run iproute2; raises `CalledProcessError` if it is not allowed."""
    process = subprocess.run(["ip", *words], capture_output=True, text=True, check=True, timeout=30)
    return process.stdout


def why_not() -> str | None:
    """Return the reason why this machine has no namespaces for us; None if it has."""
    if shutil.which("ip") is None:
        return "no iproute2 here"
    name = f"{PREFIX}-{os.getpid()}-try"
    try:
        ip("netns", "add", name)
    except (subprocess.SubprocessError, OSError) as error:
        return f"network namespaces are not allowed: {error}"
    finally:
        _delete(name)
    return None


@contextlib.contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Make two hosts that reach each other; whatever happens, they and their processes end."""
    _delete_left()
    # Devices' names have at most 15 characters.
    number = os.getpid()
    hosts = tuple(
        Host(f"{PREFIX}-{number}-{side}", f"{PREFIX}{number}{side}"[-15:], f"10.77.0.{place}")
        for place, side in enumerate("ab", 1)
    )
    first, second = hosts
    try:
        for host in hosts:
            ip("netns", "add", host.name)
        peer = ("peer", "name", second.device, "netns", second.name)
        ip("link", "add", first.device, "netns", first.name, "type", "veth", *peer)
        for host in hosts:
            ip("-n", host.name, "addr", "add", f"{host.address}/30", "dev", host.device)
            for device in ("lo", host.device):
                ip("-n", host.name, "link", "set", device, "up")
        yield first, second
    finally:
        for host in hosts:
            with contextlib.suppress(subprocess.SubprocessError):
                host.kill()
            _delete(host.name)


def _delete(name: str) -> None:
    """Delete a namespace, and with it its end of the cable; one that is not there is fine."""
    with contextlib.suppress(OSError):
        subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30, check=False)


def _delete_left() -> None:
    """Delete the namespaces that killed tests have left."""
    for line in ip("netns", "list").splitlines():
        parts = line.split()[0].split("-")
        if len(parts) == 3 and parts[0] == PREFIX and parts[1].isdecimal():
            if not os.path.exists(f"/proc/{parts[1]}"):
                _delete(line.split()[0])

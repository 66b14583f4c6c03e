"""A federation of two clinics, made within milliseconds."""

import os
import signal
from datetime import UTC, datetime, timedelta

from potluck.federation import FederationSettings, provision

NOW = datetime.now(UTC).replace(microsecond=0)
STEPS = ("write", "fsync", "rename", "replace", "mkdir", "unlink")


def settings(*sites, **changes):
    plain = {"name": "two clinics", "server": "potluck.example.org:9443", "sites": sites or ("clinic-a", "clinic-b")}
    return FederationSettings(**{**plain, **changes})


def make_kits(folder, *sites, now=NOW, **changes):
    provision(settings(*sites, **changes), folder, now=now)
    return folder


def long_ago(days=400):
    return NOW - timedelta(days=days)


def contents(folder):
    """Every file below a folder, with its bytes."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def dies_at(step, work):
    """Does some work in a process that is killed in place of its n-th call that changes a file; whether it was."""
    pid = os.fork()
    if pid == 0:
        left = step

        def dying(call):
            def instead(*arguments, **options):
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return instead

        for name in STEPS:
            setattr(os, name, dying(getattr(os, name)))
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])

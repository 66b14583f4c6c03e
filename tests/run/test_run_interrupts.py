import os
import signal
import sys

import pytest

from potluck.run.interrupts import Interrupts

CAUGHT, LOST, LINES = 0, 1, 12


def end_with_another_signal(number):
    """How a process ends that gets Ctrl-C, and SIGTERM before the line with this number of what handles the first."""
    seen = []

    def trace(frame, event, argument):
        if frame.f_code is not Interrupts._handle.__code__:
            return None
        if event == "line":
            seen.append(frame.f_lineno)
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGTERM)
        return trace

    with Interrupts():
        sys.settrace(trace)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            os.getpid()
        except KeyboardInterrupt:
            return CAUGHT
        return LOST


@pytest.mark.parametrize("number", range(1, LINES))
def test_a_second_kind_of_signal_at_any_instant_of_the_first_is_the_same_request(number):
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(end_with_another_signal(number))
        finally:
            os._exit(LOST)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == CAUGHT

"""Work beside the rounds."""

import threading

import pytest

from potluck.run.background import BackgroundTask


def test_work_goes_on_beside_until_it_is_waited_for():
    may, done = threading.Event(), []
    later = BackgroundTask(lambda: (may.wait(), done.append(1)))
    assert done == []
    may.set()
    later.wait()
    assert done == [1]


def test_what_went_wrong_is_heard_where_it_is_waited_for():
    def fails():
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        BackgroundTask(fails).wait()

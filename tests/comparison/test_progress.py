"""How far quantities lie apart, and the clock of a study."""

from __future__ import annotations

from weft.comparison.progress import StudyProgress, WorkClock
from weft.comparison.protocol import spread


def test_spreads() -> None:
    assert [spread(each) for each in ([2.0, 3.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0])] == [0.5, 0.0, float("inf"), 0.0]


def test_the_time_left_is_by_the_pace_of_what_was_done_now() -> None:
    told: list[StudyProgress] = []
    moments = iter([0.0, 0.0, 0.0, 10.0, 10.0, 10.0, 10.0])
    clock = WorkClock(told.append, lambda: next(moments))
    for name, work in (("read", 4.0), ("a", 1.0), ("b", 3.0)):
        clock.expect(name, work)
    clock.finish("read", "finished", now=False)
    clock.report("a", "step", 1.0)
    assert [(each.done, each.seconds_left) for each in told] == [(0.5, None), (0.625, 30.0)]
    assert told[0].line() == " 50%  time left not known yet  read: finished"
    assert told[1].line() == " 62%  study 00:30 left  a: step"

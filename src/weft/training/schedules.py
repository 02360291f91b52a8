"""Learning-rate schedules: a factor of the peak for each step, a pure function of the step. Lengths are shares of the
run, so that a run budgeted in seconds has the same shape as one budgeted in steps."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar, Self

from pydantic import Field, model_validator

from weft.core.config import rule
from weft.core.part_config import About, PartConfig
from weft.core.registry import register


class ScheduleConfig(PartConfig):
    """Base of schedules: a linear warm-up, then the schedule's own course.

        factor(s) = (s + 1) / (W + 1)  for steps s < W = round(warmup * steps)

    Attributes:
        warmup: share of the run that the warm-up takes.
    """

    group: ClassVar[str] = "schedule"

    warmup: float = Field(default=0.05, ge=0, lt=1)

    def factor(self, step: int, steps: int) -> float:
        """The factor of the peak learning rate in ``step`` (from 0) of ``steps``."""
        warm = round(self.warmup * steps)
        return (step + 1) / (warm + 1) if step < warm else self.course(step - warm, warm, steps)

    @abstractmethod
    def course(self, since: int, warm: int, steps: int) -> float:
        """The factor ``since`` steps after a warm-up of ``warm``."""


@register
class ConstantConfig(ScheduleConfig):
    """1 after the warm-up."""

    kind: ClassVar[str] = "constant"
    about = About(
        source="Goyal et al. 2017, section 2.2 (the warm-up)", equation=r"f(s) = 1 \quad \text{for } s \ge W",
        differs=(("wsd", "does not fall at the end."),))

    def course(self, since: int, warm: int, steps: int) -> float:
        return 1.0


class DecayConfig(ScheduleConfig):
    """Base of schedules that end at ``final`` times the peak.

    Attributes:
        final: the factor at the end of the run.
    """

    final: float = Field(default=0.1, ge=0, le=1)

    def course(self, since: int, warm: int, steps: int) -> float:
        return self.final + (1 - self.final) * self.fall(since / max(1, steps - warm))

    @abstractmethod
    def fall(self, share: float) -> float:
        """From 1 to 0, by the share of the run after the warm-up that is done."""

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(warmup=0.0, final=0.0)]


@register
class CosineConfig(DecayConfig):
    """Half a cosine from 1 to ``final``, without restarts."""

    kind: ClassVar[str] = "cosine"
    about = About(
        source="Loshchilov and Hutter 2017 (SGDR), equation 5",
        equation=r"f(s) = e + \frac{1 - e}{2} \left( 1 + \cos \pi \frac{s - W}{S - W} \right)",
        differs=(("linear", "falls slowly at first and at the end."),
                 ("wsd", "falls from the end of the warm-up on, so the run's length must be known at its start.")))

    def fall(self, share: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * share))


@register
class LinearConfig(DecayConfig):
    """A line from 1 to ``final``."""

    kind: ClassVar[str] = "linear"
    about = About(
        source="Devlin et al. 2019, appendix A.2", equation=r"f(s) = 1 - (1 - e) \frac{s - W}{S - W}",
        differs=(("cosine", "falls by the same amount in every step."),))

    def fall(self, share: float) -> float:
        return 1 - share


@register
class InverseSqrtConfig(ScheduleConfig):
    """sqrt((W + 1) / (s + 1)): Vaswani's schedule with its peak, at the end of the warm-up, scaled to 1."""

    kind: ClassVar[str] = "inverse_sqrt"
    about = About(
        source="Vaswani et al. 2017, equation 3", equation=r"f(s) = \sqrt{\frac{W + 1}{s + 1}}",
        differs=(("cosine", "does not depend on the length of the run."),
                 ("constant", "falls as one over the root of the step.")))

    def course(self, since: int, warm: int, steps: int) -> float:
        return math.sqrt((warm + 1) / (warm + since + 1))


@register
class WSDConfig(ScheduleConfig):
    """Warm-up, a stable stretch at 1, then a line down to ``final`` over the last ``cooldown`` of the run.

    Attributes:
        cooldown: share of the run over which the factor falls.
        final: the factor at the end of the run.
    """

    kind: ClassVar[str] = "wsd"
    about = About(
        source="Hu et al. 2024 (MiniCPM), section 4",
        equation=(r"f(s) = \begin{cases} 1 & s < (1 - d) S \\ 1 - (1 - e) \frac{s - (1 - d) S}{d S} & "
                  r"\text{otherwise} \end{cases}"),
        differs=(("cosine", "stays at its peak until the last share of the run."), ("constant", "falls at the end.")))

    cooldown: float = Field(default=0.1, gt=0, le=1)
    final: float = Field(default=0.1, ge=0, le=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warmup + self.cooldown > 1:
            raise rule("cooldown", f"warmup {self.warmup:g} and cooldown {self.cooldown:g} make more than the whole "
                       "run.", "Lower one of them.")
        return self

    def course(self, since: int, warm: int, steps: int) -> float:
        length = max(1, round(self.cooldown * steps))
        share = max(0, warm + since - (steps - length)) / length
        return 1 - (1 - self.final) * share

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(), cls(warmup=0.0, cooldown=0.5, final=0.0)]

"""Parts declared under ``shared:``: built once, on first use, and the same module wherever they are named."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from torch import nn

from weft.core.errors import ConfigError, nearest
from weft.core.part_config import Dims, PartConfig


class SharedParts(nn.ModuleDict):
    """The shared parts that have been built, by name. A part that is built for heads learns their number and size
    from its first user, and every later one must agree."""

    def __init__(self, configs: Mapping[str, PartConfig]) -> None:
        super().__init__()
        self.configs = dict(configs)
        self._fits: dict[str, Hashable] = {}

    def use(self, name: str, groups: tuple[str, ...], fit: Hashable, build: Callable[[PartConfig, Dims], nn.Module],
            dims: Dims) -> nn.Module:
        """The shared part ``name``.

        Args:
            groups: what may stand where it is used.
            fit: what it is built for besides the model's dimensions; equal in all its uses.
            build: makes it, the first time, for dimensions whose path is where it is declared.
            dims: of the place where it is used.

        Raises:
            ConfigError: no such part, a part of another group, or one that another use has built differently.
        """
        if name not in self.configs:
            raise dims.problem("shared", f"no shared part is called {name!r}.", nearest(name, self.configs))
        config = self.configs[name]
        if config.group not in groups:
            raise dims.problem("shared", f"{name!r} is a {config.group}, not a {' or '.join(groups)}.",
                               "Share a part that fits here, or write one out.")
        if name not in self:
            self._fits[name] = fit
            self[name] = build(config, replace(dims, path="").at("shared", name))
        if self._fits[name] != fit:
            raise dims.problem("shared", f"{name!r} was built for {self._fits[name]}, here it is used for {fit}.",
                               "Share it only between places of the same sizes.")
        return self[name]

    def require_used(self) -> None:
        """Refuse parts that nothing names.

        Raises:
            ConfigError: listing them.
        """
        unused = [name for name in self.configs if name not in self]
        if unused:
            raise ConfigError([f"shared.{name}: nothing uses it. Name it where it belongs, as {{shared: {name}}}, or "
                               "remove it." for name in unused])

"""Parts declared under ``shared:``, each built on its first use and then the same module wherever it is named."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace

from torch import nn

from weft.core.errors import ConfigError, nearest
from weft.core.part_config import Dims, ModuleConfig


class SharedParts(nn.ModuleDict):
    """The shared parts that have been built, by name. The first use fixes the number and size of heads for which a part
    is built, and later uses must agree."""

    def __init__(self, configs: Mapping[str, ModuleConfig]) -> None:
        super().__init__()
        self.configs = dict(configs)
        self._fits: dict[str, Hashable] = {}

    def use(self, name: str, groups: tuple[str, ...], fit: Hashable, build: Callable[[ModuleConfig, Dims], nn.Module],
            dims: Dims) -> nn.Module:
        """The shared part ``name``.

        Args:
            groups: that a part may have where it is used.
            fit: what it is built for besides the model's dimensions, equal in all its uses: heads and their size.
            build: builds it on its first use, for dimensions whose path is that of the declaration.
            dims: of the place where it is used.

        Raises:
            ConfigError: there is no such part, it is of another group, or another use has built it for another fit.
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
        """Refuse parts that no part of the model refers to.

        Raises:
            ConfigError: listing them.
        """
        unused = [name for name in self.configs if name not in self]
        if unused:
            raise ConfigError([f"shared.{name}: nothing uses it. Name it where it belongs, as {{shared: {name}}}, or "
                               "remove it." for name in unused])

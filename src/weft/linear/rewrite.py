"""`rewrites:` of a model's configuration: a list of parts that are applied to its linear maps once it is built, in
order, so that every checkpoint says what its maps are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import ClassVar, TypeAlias, TypeVar

from pydantic import Field
from torch import nn

from weft.core.errors import ConfigError, nearest
from weft.core.model import Model
from weft.core.part_config import PartConfig
from weft.linear.law import require_same, runs
from weft.linear.linear import HoldsMatrix, Rewritten, Use, allowed, opens
from weft.linear.replacing import Replaced, Site, as_ours, replaced, sites
from weft.linear.untouched import untouched

M = TypeVar("M", bound=nn.Module)
Rewriter: TypeAlias = Callable[[nn.Module], nn.Module]
"""From a map to what takes its place; where the map's matrix is shared, all that share it go through one rewriter."""

WORDS: dict[Use, str] = {"fuse": "fused", "lay_out": "laid out", "widen": "widened", "quantise": "quantised",
                         "adapt": "adapted"}


class RewriteConfig(PartConfig):
    """Base of rewrites.

    ``maps``: which linear maps, as patterns of the shell (``*``, ``?``, ``[0-3]``) for the dotted name of a map, of a
    module that holds maps, or of the end of such a name: ``qkv``, ``stack.layers.0``, ``experts.*.down``. Left out: all
    that allow it but those that a readout holds.
    """

    group: ClassVar[str] = "rewrite"
    use: ClassVar[Use]
    """What is done with a map, for which it must allow it."""
    keeps_weight: ClassVar[bool] = True
    """Whether a map's matrix is the same parameter afterwards. Where it is not, everything that shares the matrix,
    token embeddings among it, is rewritten with it and shares what comes."""

    maps: list[str] | None = Field(default=None, min_length=1)

    @abstractmethod
    def rewriter(self) -> Rewriter:
        """What rewrites the maps of one model: a `Linear` or a `Rewritten`, or, unless the rewrite `keeps_weight`, an
        `nn.Embedding` whose table a map shares."""

    def settle(self, model: nn.Module, made: Sequence[nn.Module]) -> Iterator[str]:
        """Called once the maps are rewritten, ``made`` by this rewrite: what else it does to the model. Gives the
        problems, each with the field that it is about."""
        return iter(())


def rewritten(model: M, rewrites: Sequence[PartConfig]) -> M:
    """The model with its maps rewritten in place, for the end of building or once other weights have been read; each
    plain `torch.nn.Linear` becomes ours first.

    Raises:
        ConfigError: a rewrite or a pattern reaches nothing that it may rewrite, or something that shares a matrix
            cannot go with it.
        LawError: what was rewritten is not what it was.
    """
    model = replaced(model, lambda path, module: as_ours(module)).model
    for index, rewrite in enumerate(rewrites):
        assert isinstance(rewrite, RewriteConfig), "the field of models holds rewrites"
        place, ran = f"rewrites.{index}", runs(model)
        found = apply(model, rewrite, place)
        model = found.model
        require_same(model, found.replacements, where=place, runs=partial(bool, ran))
    return model


def drawn_by_rewrites(model: nn.Module) -> set[str]:
    """Names of the parameters that rewrites have drawn at random, beside what stood there before."""
    return {f"{path}.{name}" if path else name for path, module in model.named_modules()
            if isinstance(module, Rewritten) for name in module.draws()}


def require_rewritten(model: Model) -> None:
    """Refuse a model that has not done what its configuration's ``rewrites`` say, as one of a plugin may not.

    Raises:
        ConfigError: it has none of them.
    """
    if model.config.rewrites and not any(isinstance(module, Rewritten) for module in model.modules()):
        raise ConfigError([f"rewrites: a model of kind {model.config.kind!r} does not apply them. Let its build() end "
                           "in weft.linear.rewrite.rewritten(model, self.rewrites), or leave them out."])


def apply(model: M, rewrite: RewriteConfig, place: str = "rewrites.0") -> Replaced[M]:
    """One rewrite of a model's maps, in place, with the maps that it has rewritten.

    Args:
        model: of our maps.
        rewrite: what to do.
        place: of the rewrite in the configuration, for errors.

    Raises:
        ConfigError: as `rewritten`.
    """
    chosen = _chosen(model, rewrite, place)
    if not rewrite.keeps_weight:
        chosen |= _sharing(model, chosen, rewrite, place)
    rewriter = rewrite.rewriter()

    def form_of(path: str, module: nn.Module) -> nn.Module:
        if path in chosen:
            return rewriter(module)
        held = (f"{path}.map" if path else "map") in chosen and opens(module)
        return module.opened() if held and isinstance(module, HoldsMatrix) else module

    found = replaced(model, form_of)
    made = tuple(each for each in found.replacements if each.path in chosen)
    problems = [f"{place}.{problem}" for problem in rewrite.settle(found.model, [each.after for each in made])]
    if problems:
        raise ConfigError(problems)
    return Replaced(found.model, made)


def _chosen(model: nn.Module, rewrite: RewriteConfig, place: str) -> set[str]:
    """The paths of the maps that a rewrite is for."""
    every, word = list(sites(model)), WORDS[rewrite.use]
    able = [site for site in every if rewrite.use in allowed(site.map())]
    if rewrite.maps is None:
        found = {site.path for site in able if not site.own}
        if not found:
            raise ConfigError([f"{place}: this model has no linear map that may be {word}"
                               f"{' but those of readouts' if able else ''}. "
                               f"{'Name those under `maps`.' if able else 'Remove the rewrite.'}"])
        return found
    problems = []
    for index, pattern in enumerate(rewrite.maps):
        at = f"{place}.maps.{index}"
        if not any(matches(site.path, pattern) for site in every):
            problems.append(f"{at}: {pattern!r} matches no linear map of this model. {_hint(pattern, every)}")
        elif not any(matches(site.path, pattern) for site in able):
            problems.append(f"{at}: {pattern!r} matches only maps that may not be {word}, or that an earlier rewrite "
                            "has taken. Leave it out.")
    if problems:
        raise ConfigError(problems)
    return {site.path for site in able if any(matches(site.path, pattern) for pattern in rewrite.maps)}


def matches(path: str, pattern: str) -> bool:
    """Whether a pattern is of this path, of one above it, or of an end of either."""
    names = path.split(".")
    return any(fnmatchcase(above, pattern) or fnmatchcase(above, f"*.{pattern}")
               for above in (".".join(names[:end]) for end in range(1, len(names) + 1)))


def _hint(pattern: str, every: Sequence[Site]) -> str:
    return nearest_end(pattern, [site.path.removesuffix(".map") for site in every])


def nearest_end(pattern: str, names: Sequence[str]) -> str:
    """`nearest` among the ends of dotted names, which are as deep as the pattern or one name."""
    depth, split = pattern.count(".") + 1, [name.split(".") for name in names]
    ends = {".".join(each[-depth:]) for each in split if len(each) >= depth}
    close = nearest(pattern, ends) if ends else ""
    return close if close.startswith("Did") else nearest(pattern, {each[-1] for each in split})


def _sharing(model: nn.Module, chosen: set[str], rewrite: RewriteConfig, place: str) -> set[str]:
    """The paths of what shares a matrix with a chosen map and so must go with it."""
    weights = {id(site.map().get_parameter("weight")): site.path for site in sites(model) if site.path in chosen
               and "weight" in dict(site.map().named_parameters(recurse=False))}
    paths = {site.path: site for site in sites(model)}
    found, problems = set[str](), []
    for path, module in model.named_modules():
        own = module.get_parameter("weight") if "weight" in dict(module.named_parameters(recurse=False)) else None
        if own is None or id(own) not in weights:
            continue
        site = next((each for each in (path, f"{path}.map" if path else "map") if each in paths), None)
        if site is not None and rewrite.use in allowed(paths[site].map()):
            found.add(site)
        elif untouched(module, nn.Embedding):
            found.add(path)
        else:
            problems.append(f"{place}.maps: {weights[id(own)]!r} shares its matrix with {path!r}, which may not be "
                            f"{WORDS[rewrite.use]}. Leave it out of the patterns, or untie the two.")
    if problems:
        raise ConfigError(problems)
    return found


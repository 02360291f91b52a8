"""`rewrites:` of a model's configuration: a list of parts that are applied in order to the linear maps of the built
model. They stand in the configuration, so every checkpoint records what its maps are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import ClassVar, TypeAlias, TypeVar

from pydantic import Field
from torch import nn

from weft.core.errors import ConfigError, nearest
from weft.core.layer import label_modules
from weft.core.model import Model
from weft.core.part_config import PartConfig
from weft.linear.law import require_same, runs
from weft.linear.linear import HoldsMatrix, Linear, Rewritten, Use, allowed, child_of, opens, unadapted
from weft.linear.replacing import Replaced, Site, as_ours, replaced, sites

M = TypeVar("M", bound=nn.Module)
Rewriter: TypeAlias = Callable[[nn.Module], nn.Module]
"""From a map to its replacement; all modules that share a matrix are rewritten by the same rewriter."""

WORDS: dict[Use, str] = {"fuse": "fused", "widen": "widened", "quantise": "quantised", "adapt": "adapted"}


class RewriteConfig(PartConfig):
    """Base of rewrites.

    ``maps``: which linear maps, as shell patterns (``*``, ``?``, ``[0-3]``) for the dotted name of a map, of a module
    that contains maps, or of the end of such a name: ``qkv``, ``stack.layers.0``, ``experts.*.down``. ``kinds``: only
    those of parts of these kinds, as shell patterns for the headings under which ``weft plan`` lists parts:
    ``attention*``, ``feed-forward``. With both left out: all maps that allow it except matrices that belong to a part
    itself: those of readouts, ``recurrent`` ones and the kernels of gated convolutions (``convolution``).

    Attributes:
        maps: patterns of the dotted names of linear maps that are rewritten; None: every map that allows it.
        kinds: patterns of the headings under which ``weft plan`` lists the maps' parts; None: any.
    """

    group: ClassVar[str] = "rewrite"
    use: ClassVar[Use]
    """The use of a map, which the map must allow."""
    keeps_weight: ClassVar[bool] = True
    """Whether a map's matrix is the same parameter afterwards. Where it is not, everything that shares the matrix, such
    as a tied token embedding, is rewritten with it and shares the new one."""

    names_outputs: ClassVar[bool] = False
    """Whether its patterns may name some of the outputs of a map (`Linear.outputs`): ``qkv.v``."""

    maps: list[str] | None = Field(default=None, min_length=1)
    kinds: list[str] | None = Field(default=None, min_length=1)

    @abstractmethod
    def rewriter(self) -> Rewriter:
        """Returns the function that rewrites the maps of one model. It gets a `Linear`, a `Rewritten` or, unless the
        rewrite `keeps_weight`, an `nn.Embedding` whose table a map shares."""

    def applied(self, path: str, module: nn.Module, rewriter: Rewriter) -> nn.Module:
        """The replacement of the map at this path; overridden where it depends on the path."""
        return rewriter(module)

    def fits(self, module: nn.Module) -> bool:
        """Whether a map is rewritten that no pattern names."""
        return True

    def settle(self, model: nn.Module, made: Sequence[nn.Module]) -> Iterator[str]:
        """Further changes to the model, after the maps have been rewritten; ``made`` are the new modules. Yields
        problems, each beginning with the field concerned."""
        return iter(())


def rewritten(model: M, rewrites: Sequence[PartConfig]) -> M:
    """Rewrite the maps of a model in place, at the end of building or after other weights have been read; each plain
    `torch.nn.Linear` becomes a `Linear` of ours first.

    Raises:
        ConfigError: a rewrite or a pattern matches no map that it may rewrite, or a module that shares a matrix cannot
            be rewritten with it.
        LawError: a rewritten map does not compute what it did.
    """
    model = replaced(model, lambda path, module: as_ours(module)).model
    for index, rewrite in enumerate(rewrites):
        assert isinstance(rewrite, RewriteConfig), "the field of models holds rewrites"
        place, ran = f"rewrites.{index}", runs(model)
        result = apply(model, rewrite, place)
        model = result.model
        require_same(model, result.replacements, where=place, runs=partial(bool, ran))
    return model


def drawn_by_rewrites(model: nn.Module) -> set[str]:
    """Names of the parameters that rewrites have added with random initial values."""
    return {f"{path}.{name}" if path else name for path, module in model.named_modules()
            if isinstance(module, Rewritten) for name in module.draws()}


def require_rewritten(model: Model) -> None:
    """Refuse a model that ignores its configuration's ``rewrites``, as a plugin's model may. Raises `ConfigError`: the
    configuration has rewrites, and the model has no rewritten map."""
    if model.config.rewrites and not any(isinstance(module, Rewritten) for module in model.modules()):
        raise ConfigError([f"rewrites: a model of kind {model.config.kind!r} does not apply them. Let its build() end "
                           "in weft.linear.rewrite.rewritten(model, self.rewrites), or leave them out."])


def apply(model: M, rewrite: RewriteConfig, place: str = "rewrites.0") -> Replaced[M]:
    """Apply one rewrite to a model's maps in place.

    Args:
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
            return rewrite.applied(path, module, rewriter)
        return module.opened() if isinstance(module, HoldsMatrix) and opens(module) and child_of(
            path, module) in chosen else module

    result = replaced(model, form_of)
    made = tuple(each for each in result.replacements if each.path in chosen)
    problems = [f"{place}.{problem}" for problem in rewrite.settle(result.model, [each.after for each in made])]
    if problems:
        raise ConfigError(problems)
    return Replaced(result.model, made)


def _chosen(model: nn.Module, rewrite: RewriteConfig, place: str) -> set[str]:
    """The paths of the maps that a rewrite applies to."""
    every, word = list(sites(model)), WORDS[rewrite.use]
    every = every if rewrite.kinds is None else _of_kinds(model, every, rewrite.kinds, place)
    able = [site for site in every if rewrite.use in allowed(site.map())]
    if rewrite.maps is None:
        paths = {site.path for site in able if (rewrite.kinds or not site.own) and rewrite.fits(site.map())}
        if not paths and any(not rewrite.fits(site.map()) for site in able):
            raise ConfigError([f"{place}.rank: no linear map of this model has so many inputs and outputs. Lower it."])
        if not paths:
            taken = any(isinstance(site.map(), Rewritten) for site in every)
            but, remedy = ((" but those that belong to a part itself", "Name those under `maps`.") if able else
                           (" but those that an earlier rewrite has taken", "Put it before that one, or remove it.")
                           if taken else ("", "Remove the rewrite."))
            raise ConfigError([f"{place}: this model has no linear map that may be {word}{but}. {remedy}"])
        return paths
    problems = []
    for index, pattern in enumerate(rewrite.maps):
        at = f"{place}.maps.{index}"
        if not any(_named(site, pattern, rewrite) for site in every):
            among = "" if rewrite.kinds is None else " of these kinds"
            near = nearest_end(pattern, [site.path.removesuffix(".map") for site in every])
            problems.append(f"{at}: {pattern!r} matches no linear map{among} of this model. {near}")
        elif not any(_named(site, pattern, rewrite) for site in able):
            problems.append(f"{at}: {pattern!r} matches only maps that may not be {word}, or that an earlier rewrite "
                            "has taken. Leave it out.")
    if problems:
        raise ConfigError(problems)
    return {site.path for site in able if any(_named(site, pattern, rewrite) for pattern in rewrite.maps)}


def _named(site: Site, pattern: str, rewrite: RewriteConfig) -> bool:
    """Return whether a pattern matches the path of a map, or the name of some of its rows."""
    named = rows_named(site.map()) if rewrite.names_outputs else ()
    return any(matches(path, pattern) for path in (site.path, *(f"{site.path}.{name}" for name in named)))


def rows_named(module: nn.Module) -> tuple[str, ...]:
    """The names of the outputs of a map (`Linear.outputs`)."""
    return tuple(module.outputs) if isinstance(module, Linear | Rewritten) else ()


def _of_kinds(model: nn.Module, every: Sequence[Site], kinds: Sequence[str], place: str) -> list[Site]:
    """The maps of parts of these kinds."""
    labels = label_modules(model)
    found = {site.path: labels.get(site.path, labels.get(site.path.rpartition(".")[0], "")) for site in every}
    problems = [f"{place}.kinds.{index}: {kind!r} is no kind of part with linear maps in this model. "
                f"{nearest(kind, set(found.values()))}" for index, kind in enumerate(kinds)
                if not any(fnmatchcase(label, kind) for label in found.values())]
    if problems:
        raise ConfigError(problems)
    return [site for site in every if any(fnmatchcase(found[site.path], kind) for kind in kinds)]


def matches(path: str, pattern: str) -> bool:
    """Whether a pattern matches this path, a parent of it, or the end of either."""
    names = path.split(".")
    return any(fnmatchcase(above, pattern) or fnmatchcase(above, f"*.{pattern}")
               for above in (".".join(names[:end]) for end in range(1, len(names) + 1)))


def nearest_end(pattern: str, names: Sequence[str]) -> str:
    """`nearest` among the ends of dotted names: those of as many names as the pattern has, then the last names."""
    depth, split = pattern.count(".") + 1, [name.split(".") for name in names]
    ends = {".".join(each[-depth:]) for each in split if len(each) >= depth}
    close = nearest(pattern, ends) if ends else ""
    return close if close.startswith("Did") else nearest(pattern, {each[-1] for each in split})


def _sharing(model: nn.Module, chosen: set[str], rewrite: RewriteConfig, place: str) -> set[str]:
    """The paths of modules that share a matrix with a chosen map and so must be rewritten with it."""
    weights = {id(site.map().get_parameter("weight")): site.path for site in sites(model) if site.path in chosen
               and "weight" in dict(site.map().named_parameters(recurse=False))}
    paths = {site.path: site for site in sites(model)}
    sharing, problems = set[str](), []
    for path, module in model.named_modules():
        own = module.get_parameter("weight") if "weight" in dict(module.named_parameters(recurse=False)) else None
        if own is None or id(own) not in weights:
            continue
        named = (path, child_of(path, module)) if isinstance(module, HoldsMatrix) else (path,)
        site = next((each for each in named if each in paths), None)
        if site is not None and rewrite.use in allowed(paths[site].map()):
            sharing.add(site)
        elif unadapted(module, nn.Embedding):
            sharing.add(path)
        else:
            problems.append(f"{place}.maps: {weights[id(own)]!r} shares its matrix with {path!r}, which may not be "
                            f"{WORDS[rewrite.use]}. Leave it out of the patterns, or untie the two.")
    if problems:
        raise ConfigError(problems)
    return sharing


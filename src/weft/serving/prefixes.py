"""States of earlier rows in a tree of their tokens, so that a prompt that begins like one of them is not read again.

A state whose tensors are all stored by order of tokens, as in attention to all earlier ones, can be cut: it serves
every beginning of its tokens. Any other state (recurrent, rolling, hybrid) serves the tokens that it has read and no
fewer, so it is kept where it will be asked for: at the end of prompts and of answers, and where a prompt diverges from
an earlier one. States that have not been used for longest are dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

from weft.core.model import ModelState
from weft.core.rows import cut_out
from weft.core.state import walk
from weft.decoding.prompts import PromptState
from weft.serving.requests import Reuse

GHOSTS = 32
"""Ends of rows whose states were dropped that stay in the tree, so that the reason of a miss can be told."""


class KeptPrefix(NamedTuple):
    """The result of a search.

    Attributes:
        begun: a copy of the state after the longest beginning that there is; None if there is none.
        reuse: why it is as long as it is.
        shared: number of first tokens that an earlier row shares, at which a state would have served; 0 if it would
            not be worth it, or has been found.
    """

    begun: PromptState | None
    reuse: Reuse
    shared: int


@final
@dataclass(eq=False)
class _Node:
    """The end of a row, or a point at which rows diverge.

    Attributes:
        edge: the tokens from the parent to here.
        depth: number of tokens from the root.
        state: after these; None: not kept.
        dropped: whether a state was kept here and dropped.
    """

    edge: tuple[int, ...] = ()
    depth: int = 0
    parent: _Node | None = None
    children: dict[int, _Node] = field(default_factory=dict)
    state: ModelState | None = None
    nbytes: int = 0
    dropped: bool = False


@final
class Prefixes:
    """Kept states, by adapter and tokens.

    Args:
        most_bytes: maximum number of bytes of all of them.
        least: the fewest tokens that are worth it.
        cuttable: whether states of the model serve every beginning of their tokens (`is_cuttable`).

    Attributes:
        nbytes: bytes of all states that are kept now.
    """

    def __init__(self, most_bytes: int, least: int, *, cuttable: bool) -> None:
        self._most, self._least, self.cuttable = most_bytes, max(1, least), cuttable
        self._roots = dict[str | None, _Node]()
        self._kept, self._ghosts = OrderedDict[_Node, None](), OrderedDict[_Node, None]()  # the oldest first
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def worth(self, tokens: int) -> bool:
        """Whether a state after so many tokens is kept."""
        return self._most > 0 and tokens >= self._least

    def find(self, adapter: str | None, tokens: tuple[int, ...]) -> KeptPrefix:
        """The state after the longest beginning of a prompt that leaves at least its last token to be read."""
        if not self.worth(len(tokens) - 1):
            return KeptPrefix(None, "too short", 0)
        _, shared, below = _walk(self._roots.setdefault(adapter, _Node()), tokens)
        shared = min(shared, len(tokens) - 1)
        if shared < self._least:
            return KeptPrefix(None, "nothing alike", 0)
        dropped, at = False, below
        while min(at.depth, shared) >= self._least and at.parent is not None:
            length, donor = min(at.depth, shared), _first_kept(at) if self.cuttable else at
            if donor is not None and donor.state is not None and (self.cuttable or at.depth <= shared):
                self._kept.move_to_end(donor)
                state = cut_out(donor.state, 0, length) if self.cuttable else donor.state.clone()
                return KeptPrefix(PromptState(tokens[:length], state), "reused",
                                  shared if shared - length >= self._least else 0)
            dropped, at = dropped or at.dropped, at.parent
        return KeptPrefix(None, "dropped" if dropped else "no snapshot", shared)

    def keep(self, adapter: str | None, begun: PromptState) -> None:
        """Keep a state, of one row without spare slots, which nothing else uses afterwards."""
        state = begun.state
        if not self.worth(len(begun.tokens)) or (size := state.nbytes()) > self._most:
            return
        node = _planted(self._roots.setdefault(adapter, _Node()), begun.tokens)
        self._forget(node)
        node.state, node.nbytes, node.dropped = state, size, False
        self._kept[node] = None
        self._ghosts.pop(node, None)
        self.nbytes += size
        if self.cuttable:  # it serves what states before it on the way would serve
            while (node := node.parent or _Node()).parent is not None:
                self._forget(node)
        while self.nbytes > self._most:
            oldest = next(iter(self._kept))
            self._forget(oldest)
            oldest.dropped = True
            self._ghosts[oldest] = None
        while len(self._ghosts) > GHOSTS:
            _prune(self._ghosts.popitem(last=False)[0])

    def _forget(self, node: _Node) -> None:
        if node.state is not None:
            del self._kept[node]
            self.nbytes -= node.nbytes
            node.state, node.nbytes = None, 0


def is_cuttable(state: ModelState) -> bool:
    """Whether a state after any tokens contains those after each of their beginnings: all of its tensors are stored by
    order of tokens, or count them, or are the same at each of them."""
    return all((spec.grows is not None and spec.along == "tokens") or spec.restarts or path == "adapter"
               or path.endswith("clock.horizon") for path, _, spec in walk(state))


def _walk(root: _Node, tokens: Sequence[int]) -> tuple[_Node, int, _Node]:
    """Follow the tokens as far as the tree has them: the last node passed, the number of tokens followed, and the node
    on the edge to which the last of them lie."""
    node, depth = root, 0
    while depth < len(tokens) and (child := node.children.get(tokens[depth])) is not None:
        shared = _alike(child.edge, tokens[depth:depth + len(child.edge)])
        depth += shared
        if shared < len(child.edge):
            return node, depth, child
        node = child
    return node, depth, node


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """The number of first tokens that two rows share."""
    if one == other:
        return len(one)
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)))


def _planted(root: _Node, tokens: tuple[int, ...]) -> _Node:
    """The node after exactly these tokens, made if there is none; an edge that ends later is divided."""
    node, depth, below = _walk(root, tokens)
    if below is not node:
        middle = _Node(below.edge[:depth - node.depth], depth, node, dropped=below.dropped)
        below.edge, below.parent = below.edge[depth - node.depth:], middle
        middle.children[below.edge[0]] = below
        node.children[middle.edge[0]] = middle
        node = middle
    if depth < len(tokens):
        leaf = _Node(tokens[depth:], len(tokens), node)
        node.children[tokens[depth]] = leaf
        node = leaf
    return node


def _first_kept(node: _Node) -> _Node | None:
    """A node with a state at or below a node."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.state is not None:
            return node
        waiting += node.children.values()
    return None


def _prune(node: _Node) -> None:
    """Remove a node that leads nowhere, and those above it that lead nowhere without it, unless it was removed before
    with one below it."""
    while (parent := node.parent) is not None and not node.children and node.state is None:
        if parent.children.get(node.edge[0]) is not node:
            return
        del parent.children[node.edge[0]]
        node = parent

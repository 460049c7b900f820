"""Monte-Carlo tree search over chains: a node is a chain up to one of its answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from vpo_lightning.errors import ConfigError
from vpo_lightning.searching.archive import Chain, Proposal, Reply
from vpo_lightning.searching.beam import Vectors, check_chains
from vpo_lightning.searching.problem import Problem
from vpo_lightning.searching.quality import Solved
from vpo_lightning.searching.search import RoundSearch, Searcher


@dataclass(frozen=True, kw_only=True)
class MCTS(RoundSearch):
    """UCT (Kocsis and Szepesvari, 2006) with progressive widening over answer-level nodes.

    From the root, a node that has fewer than ``widening * visits ** 0.5`` children gets a new one
    (one answer is sampled); else the search goes to the child with the highest ``value +
    exploration * sqrt(ln(visits of the node) / visits of the child)``. A node's value is the mean,
    over the answers sampled in its subtree, of what the set of the chain's answers is worth by the
    guide; it is in [0, 1] because rewards are. Chains end after m answers.

    Attributes:
        exploration: Weight of what is little visited.
        widening: Children of a node that has been visited once.
        leaves: New nodes of a round, chosen one after the other as if those before were already
            visited with the value of their parent.

    Raises:
        ConfigError: A setting that is not positive.
    """

    exploration: float = 0.3
    widening: float = 2.0
    leaves: int = 2

    def __post_init__(self) -> None:
        """Checks the settings."""
        for name in ("exploration", "widening", "leaves"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"search.{name}={getattr(self, name)}: it must be positive")

    @override
    def check(self, problem: Problem) -> None:
        super().check(problem)
        check_chains("mcts", problem)

    @override
    def begin(self, problem: Problem, solved: Solved) -> Searcher:
        del solved
        return _Tree(self, problem)


@dataclass(eq=False)
class _Node:
    chain: Chain
    vectors: Vectors
    parent: _Node | None
    children: list[_Node] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0
    pending: int = 0

    @property
    def value(self) -> float:
        return self.total / self.visits if self.visits else 0.0

    def is_exhausted(self) -> bool:
        """Whether nothing can be sampled below."""
        return not self.chain.is_open


class _Tree:
    def __init__(self, settings: MCTS, problem: Problem) -> None:
        self._settings = settings
        self._problem = problem
        self._root = _Node(Chain(), (), None)
        self._asked: list[_Node] = []

    def propose(self) -> Sequence[Proposal]:
        self._asked = [self._leaf() for _ in range(self._settings.leaves)]
        for node in _paths(self._asked):
            node.pending = 0
        return [self._problem.next_answer(node.chain) for node in self._asked]

    def learn(self, replies: Sequence[Reply]) -> None:
        for node, reply in zip(self._asked, replies, strict=False):
            vectors = (*node.vectors, *(answer.rewards for answer in reply.answers))
            child = next((c for c in node.children if c.chain.ids == reply.chain.ids), None)
            if child is None:
                child = _Node(reply.chain, vectors, node)
                node.children.append(child)
            value = self._settings.guide.set_value(vectors)
            for above in _paths([child]):
                above.visits += 1
                above.total += value

    def _leaf(self) -> _Node:
        """The node that gets a new child; marks its path as visited once more."""
        node = self._root
        while True:
            node.pending += 1
            visits = node.visits + node.pending
            inner = [child for child in node.children if not child.is_exhausted()]
            room = math.ceil(self._settings.widening * math.sqrt(visits))
            if len(node.children) < room or not inner:
                return node
            node = max(inner, key=lambda child: self._bound(child, visits))

    def _bound(self, child: _Node, parent_visits: int) -> float:
        visits = child.visits + child.pending
        assert child.parent is not None
        total = child.total + child.pending * child.parent.value
        spread = math.sqrt(math.log(max(parent_visits, 1)) / visits)
        return total / visits + self._settings.exploration * spread


def _paths(nodes: Sequence[_Node]) -> list[_Node]:
    """The nodes and all above them."""
    found: list[_Node] = []
    for start in nodes:
        node: _Node | None = start
        while node is not None:
            found.append(node)
            node = node.parent
    return found

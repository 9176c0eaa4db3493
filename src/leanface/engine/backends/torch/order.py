"""In which order a graph's nodes run, which of them run as one, and when a tensor is of no use any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from leanface.engine.backends.torch.onnx_file import Node

_GROWTH = 8
"""How many times larger than all it takes a result must be for its making to wait."""
_CHAIN = 16
"""How many nodes may wait for one another."""


def late(nodes: Sequence[Node], sizes: Mapping[str, int], outputs: frozenset[str]) -> list[Node]:
    """The nodes in an order that does not make early what is large, made of little, and used late.

    A node waits for the first that takes its result if this is over ``_GROWTH`` times as large as all that is
    held for it meanwhile. Everything else stays in the order of the file: bands of rows depend on it.

    Args:
        nodes: in an order in which they can run.
        sizes: bytes of each tensor that a node makes and of each input; weights, held anyway, are not in it.
        outputs: of the graph.
    """
    # By result, with what is held for it and how many before it wait.
    waiting: dict[str, tuple[Node, frozenset[str], int]] = {}
    order: list[Node] = []

    def run(node: Node) -> None:
        for name in node.inputs:
            if name in waiting:
                before = waiting[name][0]
                for made in before.outputs:
                    waiting.pop(made, None)
                run(before)
        order.append(node)

    for node in nodes:
        held = frozenset(name for name in node.inputs if name in sizes and name not in waiting)
        held = held.union(*(waiting[name][1] for name in node.inputs if name in waiting))
        chain = 1 + max((waiting[name][2] for name in node.inputs if name in waiting), default=0)
        made = sum(sizes.get(name, 0) for name in node.outputs)
        grows = made > _GROWTH * sum(sizes[name] for name in held)
        if grows and chain <= _CHAIN and outputs.isdisjoint(node.outputs):
            waiting |= dict.fromkeys(node.outputs, (node, held, chain))
        else:
            run(node)
    return order


def fused(nodes: Sequence[Node], outputs: Collection[str]) -> list[Node]:
    """The nodes with two pairs made one each, which ``Operators`` runs in pieces.

    A convolution whose result is only added to something becomes ``ConvAdd``, a weight that is widened for
    one product ``CastMatMul``. Neither the result of the one nor the wide weight is then ever whole.
    """
    takers = Counter(name for node in nodes for name in node.inputs)
    takers.update(outputs)
    makers = {name: i for i, node in enumerate(nodes) for name in node.outputs}
    merged: list[Node | None] = list(nodes)
    for i, node in enumerate(nodes):
        wanted = {"Add": "Conv", "MatMul": "Cast"}.get(node.operator)
        places = (0, 1) if wanted == "Conv" else (0,)
        found = [
            (makers[name], place)
            for place, name in ((place, node.inputs[place]) for place in places if wanted)
            if takers[name] == 1 and name in makers and merged[makers[name]] is nodes[makers[name]]
        ]
        found = [(j, place) for j, place in found if nodes[j].operator == wanted]
        if found:
            j, place = max(found)
            other, part = node.inputs[1 - place], nodes[j]
            inputs = (other, *part.inputs) if wanted == "Conv" else (*part.inputs, other)
            merged[i] = Node(f"{wanted}{node.operator}", inputs, node.outputs, part.attributes)
            merged[j] = None
    return [node for node in merged if node is not None]


def last_uses(nodes: Sequence[Node], kept: Collection[str]) -> list[tuple[str, ...]]:
    """For each node the tensors that nothing takes after it, its own results among them, but those kept."""
    seen = set(kept) | {""}
    uses: list[tuple[str, ...]] = []
    for node in reversed(nodes):
        dying = tuple(dict.fromkeys(name for name in (*node.inputs, *node.outputs) if name not in seen))
        seen.update(dying)
        uses.append(dying)
    return uses[::-1]

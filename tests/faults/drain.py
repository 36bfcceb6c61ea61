"""Gives notice to a node of a Ray cluster. Comes in: its address, and which of its nodes that have processors, in the
order in which ftppo makes slots of them; goes out: the node's id, printed. What `ray drain-node` does, by place.
"""

import sys

from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # type: ignore[attr-defined]

from ftppo.plan.topology import Place, order_places


def drain(address: str, place: int) -> str:
    """Tell the head that the node at this place is about to be taken away; no time is set."""
    head = GcsClient(address=address)
    nodes = [node.hex() for node, info in head.get_all_node_info().items() if info.resources_total.get("CPU")]
    chosen = order_places([Place("", node, 0) for node in nodes])[place].node
    accepted, why_not = head.drain_node(chosen, DrainNodeReason.DRAIN_NODE_REASON_PREEMPTION, "a test", 0)
    assert accepted, why_not
    return chosen


if __name__ == "__main__":
    print(drain(sys.argv[1], int(sys.argv[2])))

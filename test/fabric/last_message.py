#!/usr/bin/env python3
"""last_message.py server|client ADDRESS: the client sends a message and disconnects at once, without waiting for the message's completion. A
device has sent it by then."""
import sys

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.qp import QPCap, QPInitAttr

role, address = sys.argv[1:]
attributes = QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_send_wr=4, max_recv_wr=4))
if role == "server":
    listener = CMID(creator=AddrInfo(src=address, src_service="7777", port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE), qp_init_attr=attributes)
    listener.listen()
    peer = listener.get_request()
    memory = peer.reg_msgs(64)
    peer.post_recv(memory)
    peer.accept()
    assert peer.get_recv_comp().status == e.IBV_WC_SUCCESS
    assert memory.read(10, 0) == b"last words"
else:
    peer = CMID(creator=AddrInfo(dst=address, dst_service="7777", port_space=ce.RDMA_PS_TCP), qp_init_attr=attributes)
    memory = peer.reg_msgs(64)
    peer.connect()
    memory.write("last words" + 54 * " ", 64)
    peer.post_send(memory)
    peer.disconnect()

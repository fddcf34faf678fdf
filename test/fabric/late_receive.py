#!/usr/bin/env python3
"""late_receive.py SELF OTHER GID: two of these, with the files of their queue pairs' numbers exchanged, and the address of the peer. The one whose
SELF is "sender" sends before the other one is connected, and before it has a receive: the message arrives all the same."""
import os
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

own, other, gid = sys.argv[1:]
ctx = Context(name="fab0")
pd, cq = PD(ctx), CQ(ctx, 16)
mr = MR(pd, 4096, e.IBV_ACCESS_LOCAL_WRITE)
qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=4, max_recv_wr=4)))
with open(own + ".new", "w") as f:
    f.write(str(qp.qp_num))
os.rename(own + ".new", own)
while not os.path.exists(other):
    time.sleep(0.01)
t = QPAttr()
t.path_mtu = e.IBV_MTU_1024
t.min_rnr_timer, t.timeout, t.retry_cnt, t.rnr_retry = 22, 14, 7, 7  # 20 ms until the next try
t.port_num, t.dest_qp_num = 1, int(open(other).read())
t.ah_attr = AHAttr(gr=GlobalRoute(dgid=GID(gid), sgid_index=0), is_global=1, port_num=1)
if own == "sender":
    qp.to_rts(t)
    mr.write("hello" + 59 * " ", 64)
    qp.post_send(SendWR(sg=[SGE(mr.buf, 64, mr.lkey)], num_sge=1, opcode=e.IBV_WR_SEND))
    open("sent", "w").close()
else:
    while not os.path.exists("sent"):
        time.sleep(0.01)
    time.sleep(0.05)  # what has arrived until now is not answered
    qp.to_rts(t)
    time.sleep(0.3)  # and until now with "receiver not ready"
    qp.post_recv(RecvWR(sg=[SGE(mr.buf, 4096, mr.lkey)], num_sge=1))
end = time.time() + 20
while True:
    count, done = cq.poll(1)
    if count:
        break
    assert time.time() < end, "nothing completes"
    time.sleep(0.001)
assert done[0].status == e.IBV_WC_SUCCESS, done[0]
assert own == "sender" or mr.read(5, 0) == b"hello"

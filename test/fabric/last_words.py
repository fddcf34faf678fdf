#!/usr/bin/env python3
"""last_words.py acknowledged|acknowledges program|peer [DIRECTORY]: a program with a queue pair on node 1, and a peer that is its other end, and no
member of the network. acknowledged: the peer acknowledges, and ends before it has read all; the acknowledgement arrives. acknowledges: the program ends
while its peer does not read; what the program had received is acknowledged all the same. The peer exits with 1 if not."""
import os
import select
import signal
import socket
import sys
import time

from frames import ACKNOWLEDGE, SEND, frames, gid, hello, packet, take_slot

case, role = sys.argv[1:3]
PEER_QP = 0x010011


def await_file(name):
    while not os.path.exists(name):
        time.sleep(0.01)
    with open(name) as f:
        return f.read()


def write_file(name, text=""):
    with open(name + ".new", "w") as f:
        f.write(text)
    os.rename(name + ".new", name)


def program():
    import pyverbs.enums as e
    from pyverbs.addr import GID, AHAttr, GlobalRoute
    from pyverbs.cq import CQ
    from pyverbs.device import Context
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
    from pyverbs.wr import SGE, RecvWR, SendWR

    ctx = Context(name="fab0")
    pd, cq = PD(ctx), CQ(ctx, 256)
    mr = MR(pd, 8192, e.IBV_ACCESS_LOCAL_WRITE)
    qp = QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(max_send_wr=128, max_recv_wr=4)))
    t = QPAttr()
    t.path_mtu = e.IBV_MTU_4096
    t.min_rnr_timer, t.timeout, t.retry_cnt, t.rnr_retry = 12, 18, 7, 7
    t.port_num, t.dest_qp_num = 1, PEER_QP
    t.ah_attr = AHAttr(gr=GlobalRoute(dgid=GID(gid(7).hex(":", 2)), sgid_index=0), is_global=1, port_num=1)
    qp.to_rts(t)
    qp.post_recv(RecvWR(sg=[SGE(mr.buf, 4096, mr.lkey)], num_sge=1))
    write_file("number", f"{os.getpid()} {qp.qp_num}")
    await_file("connected")
    # More than a socket takes for a process that does not read.
    for _ in range(1 if case == "acknowledged" else 100):
        qp.post_send(SendWR(sg=[SGE(mr.buf + 4096, 4096, mr.lkey)], num_sge=1, opcode=e.IBV_WR_SEND))
    write_file("sent")
    while True:
        count, done = cq.poll(1)
        if count:
            break
        time.sleep(0.001)
    expected = e.IBV_WC_SEND if case == "acknowledged" else e.IBV_WC_RECV
    assert (done[0].status, done[0].opcode) == (e.IBV_WC_SUCCESS, expected), done[0]
    write_file("done")


def peer(directory):
    held = take_slot(directory, 7)  # noqa: F841
    pid, number = map(int, await_file("number").split())
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(directory + "/1.1")
    s.send(hello(7, 1))
    write_file("connected")
    await_file("sent")
    select.select([s], [], [])
    if case == "acknowledged":
        os.kill(pid, signal.SIGSTOP)
        while ") T " not in open(f"/proc/{pid}/stat").read():
            time.sleep(0.01)
        s.send(packet(ACKNOWLEDGE, PEER_QP, number, 0))
        s.close()
        os.kill(pid, signal.SIGCONT)
        return True
    s.send(packet(SEND, PEER_QP, number, 0, b"hello"))
    await_file("done")
    time.sleep(0.1)  # until the program would have ended
    while data := s.recv(65536):
        if any(kind == 2 and body[0] == ACKNOWLEDGE for kind, body in frames(data)):
            return True
    print("the message was not acknowledged")
    return False


if role == "program":
    program()
else:
    sys.exit(0 if peer(sys.argv[3]) else 1)

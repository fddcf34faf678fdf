#!/usr/bin/env python3
"""Reliable connections by pyverbs, out of band and through the connection manager: send, write, read, atomics, a shared receive queue, a
memory window. Exits with 1 and a traceback at the first difference."""
import os
import sys

import pyverbs.cm_enums as ce
import pyverbs.enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.cq import CQ
from pyverbs.device import Context, get_device_list
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

ALL = (e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
       | e.IBV_ACCESS_MW_BIND)


def out_of_band():
    assert [x.name for x in get_device_list()] == [b"fab0"]
    ctx = Context(name="fab0")
    assert ctx.query_port(1).state == e.IBV_PORT_ACTIVE
    pd = PD(ctx)
    cq = CQ(ctx, 64)
    srq = SRQ(pd, SrqInitAttr(SrqAttr(max_wr=16)))
    mr = MR(pd, 8192, ALL)

    def make(shared=None):
        return QP(pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, srq=shared, cap=QPCap(max_send_wr=16, max_recv_wr=16)))

    def towards(peer):
        t = QPAttr()
        t.path_mtu = e.IBV_MTU_1024
        t.max_rd_atomic = t.max_dest_rd_atomic = 4
        t.qp_access_flags = ALL
        t.min_rnr_timer, t.timeout, t.retry_cnt, t.rnr_retry = 12, 14, 7, 7
        t.port_num, t.dest_qp_num = 1, peer.qp_num
        t.ah_attr = AHAttr(gr=GlobalRoute(dgid=ctx.query_gid(1, 0), sgid_index=0), is_global=1, port_num=1)
        return t

    a, b = make(), make(srq)
    a.to_rts(towards(b))
    b.to_rts(towards(a))

    def completions(count, status=e.IBV_WC_SUCCESS):
        got = []
        while len(got) < count:
            got += cq.poll(count - len(got))[1]
        assert all(wc.status == status for wc in got), got
        return got

    def run(opcode, local, size, remote=None, rkey=None, atomic=None, status=e.IBV_WC_SUCCESS):
        wr = SendWR(wr_id=opcode, sg=[SGE(mr.buf + local, size, mr.lkey)], num_sge=1, opcode=opcode)
        if atomic is not None:
            wr.set_wr_atomic(rkey, mr.buf + remote, *atomic)
        elif remote is not None:
            wr.set_wr_rdma(rkey, mr.buf + remote)
        a.post_send(wr)
        return completions(2 if opcode == e.IBV_WR_SEND else 1, status)

    mr.write("hello", 5)
    srq.post_recv(RecvWR(wr_id=7, sg=[SGE(mr.buf + 4096, 100, mr.lkey)], num_sge=1))
    assert {wc.opcode for wc in run(e.IBV_WR_SEND, 0, 5)} == {e.IBV_WC_SEND, e.IBV_WC_RECV}
    assert mr.read(5, 4096) == b"hello"
    run(e.IBV_WR_RDMA_WRITE, 0, 5, 5000, mr.rkey)
    run(e.IBV_WR_RDMA_READ, 6000, 5, 5000, mr.rkey)
    assert mr.read(5, 6000) == b"hello"
    run(e.IBV_WR_ATOMIC_FETCH_AND_ADD, 7000, 8, 7008, mr.rkey, (5,))
    run(e.IBV_WR_ATOMIC_CMP_AND_SWP, 7000, 8, 7008, mr.rkey, (5, 9))
    assert int.from_bytes(mr.read(8, 7000), "little") == 5
    assert int.from_bytes(mr.read(8, 7008), "little") == 9

    # A window opens 16 bytes to the peer; the region's own key opens all of them.
    mw = MW(pd, e.IBV_MW_TYPE_2)
    wr = SendWR(wr_id=9, opcode=e.IBV_WR_BIND_MW)
    wr.set_bind_wr(mw, MWBindInfo(mr, mr.buf + 5000, 16, e.IBV_ACCESS_REMOTE_WRITE))
    b.post_send(wr)
    completions(1)
    key = mw.rkey + 1  # as set_bind_wr() has chosen it
    run(e.IBV_WR_RDMA_WRITE, 0, 5, 5010, key)
    assert mr.read(5, 5010) == b"hello"
    run(e.IBV_WR_RDMA_WRITE, 0, 5, 5012, key, status=e.IBV_WC_REM_ACCESS_ERR)
    for x in (a, b, srq, mw, mr, cq, pd, ctx):
        x.close()


def through_the_connection_manager():
    cap = QPCap(max_send_wr=4, max_recv_wr=4)
    address = os.environ["RCVERBS_FABRIC_ADDRESS"]
    served, serving = os.pipe()
    child = os.fork()
    if child == 0:
        listener = CMID(creator=AddrInfo(src=address, src_service="7473", port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE),
                        qp_init_attr=QPInitAttr(cap=cap))
        listener.listen()
        os.write(serving, b"x")
        peer = listener.get_request()
        mr = peer.reg_msgs(64)
        peer.post_recv(mr)
        peer.accept()
        wc = peer.get_recv_comp()
        assert wc.status == e.IBV_WC_SUCCESS and mr.read(wc.byte_len, 0) == b"question", wc
        mr.write("answer", 6)
        peer.post_send(mr, e.IBV_SEND_SIGNALED, 6)
        assert peer.get_send_comp().status == e.IBV_WC_SUCCESS
        os._exit(0)
    os.read(served, 1)
    client = CMID(creator=AddrInfo(dst=address, dst_service="7473", port_space=ce.RDMA_PS_TCP), qp_init_attr=QPInitAttr(cap=cap))
    mr = client.reg_msgs(64)
    client.post_recv(mr)
    client.connect()
    mr.write("question", 8)
    client.post_send(mr, e.IBV_SEND_SIGNALED, 8)
    assert client.get_send_comp().status == e.IBV_WC_SUCCESS
    wc = client.get_recv_comp()
    assert wc.status == e.IBV_WC_SUCCESS and mr.read(wc.byte_len, 0) == b"answer", wc
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.close()


out_of_band()
through_the_connection_manager()
sys.exit(0)

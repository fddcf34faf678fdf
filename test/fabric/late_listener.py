#!/usr/bin/env python3
"""late_listener.py ADDRESS: connects to a port of this process which is bound and not listening yet, then listens: the request arrives."""
import ctypes
import select
import socket
import struct
import sys

cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = ctypes.POINTER(ctypes.c_int)
TCP, PORT = 0x0106, 7777
ADDR_RESOLVED, ROUTE_RESOLVED, CONNECT_REQUEST = 0, 2, 4
address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", PORT) + socket.inet_aton(sys.argv[1]) + bytes(8)


def must(result):
    assert result == 0, ctypes.get_errno()


def new_id():
    channel, made = cm.rdma_create_event_channel(), ctypes.c_void_p()
    must(cm.rdma_create_id(channel, ctypes.byref(made), None, TCP))
    return channel, made


def next_event(channel):
    assert select.select([channel[0]], [], [], 20)[0], "no event"
    event = ctypes.POINTER(ctypes.c_uint32)()
    must(cm.rdma_get_cm_event(channel, ctypes.byref(event)))
    kind = event[4]
    must(cm.rdma_ack_cm_event(event))
    return kind


here, listener = new_id()
must(cm.rdma_bind_addr(listener, address))
there, client = new_id()
must(cm.rdma_resolve_addr(client, None, address, 2000))
assert next_event(there) == ADDR_RESOLVED
must(cm.rdma_resolve_route(client, 2000))
assert next_event(there) == ROUTE_RESOLVED
parameters = struct.pack("=QBBBBBBBBI4x", 0, 0, 1, 1, 0, 7, 7, 0, 0, 4711)
must(cm.rdma_connect(client, parameters))
# Long enough that the request has arrived.
assert not select.select([there[0]], [], [], 0.02)[0], "answered already"
must(cm.rdma_listen(listener, 4))
assert next_event(here) == CONNECT_REQUEST

"""What processes of a network of the fabric say to each other, for peers that are no members (lib/fabric/src/frame.hpp)."""
import fcntl
import os
import struct

MAGIC = 0x76637231
SEND, WRITE, READ_REQUEST, ATOMIC, ACKNOWLEDGE = range(5)
FIRST, LAST, WANTS_ACKNOWLEDGE = 1, 2, 4
IBV_WR_SEND = 2


def frame(kind, body):
    return struct.pack("<IB", len(body) + 1, kind) + body


def hello(node, slot, magic=MAGIC):
    return frame(1, struct.pack("<III", magic, node, slot))


def gid(node):
    return bytes(10) + b"\xff\xff\x0a\x4d\x00" + bytes([node])


def packet(kind, source, target, number, payload=b"", opcode=IBV_WR_SEND):
    """A message of one packet, or its acknowledgement, from node 7 to node 1."""
    head = struct.pack("<BBBBB", kind, opcode, FIRST | LAST | WANTS_ACKNOWLEDGE, 0, 0)
    places = struct.pack("<IIQQQQQIIQQ", source, target, number, number + 1, len(payload), 0, 0, 0, 0, 0, 0)
    return frame(2, head + gid(7) + gid(1) + places + payload)


def frames(datagram):
    """Kind and body of each frame of a datagram: a process sends together what it has for another one."""
    at = 0
    while at < len(datagram):
        size, kind = struct.unpack_from("<IB", datagram, at)
        yield kind, datagram[at + 5:at + 4 + size]
        at += 4 + size


def take_slot(directory, node):
    """The first slot of a node, as any process of the user can have it."""
    lock = os.open(f"{directory}/{node}.1.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.fcntl(lock, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_SETLK
    os.write(lock, b"%d \n" % os.getpid())
    return lock

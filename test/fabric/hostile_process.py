#!/usr/bin/env python3
"""hostile_process.py DIRECTORY: a process that is no member of the network in DIRECTORY, and sends its server (node 1, slot 1) what
it likes. Exits with 1 if the server believes a lie about who speaks, or stops listening."""
import os
import random
import socket
import struct
import sys

from frames import MAGIC, frame, gid, hello, take_slot

target = sys.argv[1] + "/1.1"
random.seed(11)


def connect():
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.settimeout(5)
    s.connect(target)
    return s


def packet(node, number, **wrong):
    kind = wrong.get("kind", random.randrange(8))
    opcode = {0: 2, 1: 0, 2: 4, 3: 6}.get(kind, 2)
    payload = bytes(wrong.get("size", random.choice([0, 1, 4096])))
    big = random.choice([0, 1, 1 << 31, (1 << 64) - 1])
    return frame(
        2,
        struct.pack("<BBBBB", kind, opcode, random.randrange(16), random.randrange(5), random.randrange(32))
        + gid(node) + gid(1)
        + struct.pack("<IIQQQQQIIQQ", node << 16 | 0x11, 0x010000 + random.randrange(0x20), number, big, big, big, big, random.getrandbits(32), 0, 0, 0)
        + payload,
    )


def message(node, kind):
    address = lambda n, port: struct.pack("<BH", 4, port) + gid(n)
    return frame(
        3,
        bytes([kind]) + address(node, 40000) + address(1, random.choice([7174, 0, 65535]))
        + struct.pack("<QQHIBBBBBB", random.choice([0, 1 << 32 | 1, (1 << 64) - 1]), random.choice([0, 1 << 32 | 1, 1 << 32 | 2]), 28,
                      random.getrandbits(24), 255, 255, 7, 7, 0, 5)
        + bytes(random.choice([0, 56, 256])),
    )


def is_refused(*datagrams):
    """True if the server closes the connection."""
    with connect() as s:
        try:
            for d in datagrams:
                s.send(d)
            return s.recv(100) == b""
        except (BrokenPipeError, ConnectionResetError):
            return True
        except socket.timeout:
            return False


wrong = [
    ("a hello of the server itself", (hello(1, 1),)),
    ("a hello of nobody", (hello(9, 9),)),
    ("a hello of another version", (hello(2, 1, MAGIC + 1),)),
    ("a packet without a hello", (packet(2, 0),)),
    ("a message without a hello", (message(2, 0),)),
    ("bytes", (os.urandom(200),)),
    ("a length beyond the datagram", (struct.pack("<IB", 5000, 2),)),
    ("the longest datagram", (bytes(65536),)),
    ("half a packet", (packet(2, 0)[:60],)),
]
failed = [what for what, datagrams in wrong if not is_refused(*datagrams)]

# As a member: its own slot, with its own lock, as any process of the user can have.
lock = take_slot(sys.argv[1], 7)
if not is_refused(hello(7, 1), packet(2, 0)):
    failed.append("a packet of another node")
if not is_refused(hello(7, 1), message(2, 0)):
    failed.append("a message of another node")
if not is_refused(hello(7, 1), hello(7, 1)):
    failed.append("a second hello")
for _ in range(200):
    with connect() as s:
        try:
            s.send(hello(7, 1))
            for number in range(20):
                s.send(random.choice([packet(7, random.choice([0, number, 1 << 63])), message(7, random.randrange(6))]))
        except (BrokenPipeError, ConnectionResetError):
            pass
for what in failed:
    print("not refused:", what)
sys.exit(1 if failed else 0)

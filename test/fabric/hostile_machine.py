# hostile_machine.py PORT VERSION — a peer of a bridge (apps/rcverbs-fabric/bridge.hpp) that lies: each time it must be disconnected, or ignored,
# and the bridge must go on. VERSION is what rcverbs-fabric --version prints.
import os, re, socket, struct, sys, time

port, version = int(sys.argv[1]), re.search(r"rcverbs ([^)]+)", sys.argv[2]).group(1)
HELLO, STATE, WANT_NODE, NODE, OPEN, DATA, TAKEN, CLOSE = range(1, 9)


def message(kind, *numbers, content=b""):
    body = bytes([kind]) + b"".join(struct.pack("<I", n) for n in numbers) + content
    return struct.pack("<I", len(body)) + body


def hello():
    return message(HELLO, content=b"rcverbs-fabric " + version.encode())


def frame(node, slot):
    body = b"\x01" + struct.pack("<III", 0x76637231, node, slot)
    return struct.pack("<I", len(body)) + body


class peer:
    def __init__(self, greets=True):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        if greets:
            self.send(hello())

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # it has been disconnected

    def read(self):
        """The next message; None at the end."""
        try:
            head = self.exactly(5)
            size, kind = struct.unpack("<IB", head)
            return kind, self.exactly(size - 1)
        except TimeoutError:
            raise AssertionError("it was not disconnected")
        except (OSError, EOFError):
            return None

    def exactly(self, size):
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def await_end(self, what):
        while (m := self.read()) is not None:
            pass
        print("disconnected:", what)

    def await_kind(self, kind):
        while (m := self.read()) is not None:
            if m[0] == kind:
                return m[1]
        raise AssertionError("it was disconnected")


def refused(what, *messages, greets=True):
    p = peer(greets)
    for m in messages:
        p.send(m)
    p.await_end(what)


def own_node():
    p = peer()
    p.send(message(WANT_NODE, 7))
    token, node = struct.unpack("<II", p.await_kind(NODE))
    assert token == 7 and node > 1, (token, node)
    return p, node


refused("no hello", message(STATE, content=b"9\n"), greets=False)
refused("another program", b"GET / HTTP/1.1\r\n\r\n" + bytes(64), greets=False)
refused("another version", message(HELLO, content=b"rcverbs-fabric 99.9"), greets=False)
refused("a second hello", hello())
refused("a length of zero", struct.pack("<I", 0) + bytes(8))
refused("a length of 4 GiB", struct.pack("<I", 0xFFFFFFFF) + bytes(8))
refused("an unknown message", message(99, 1))
refused("a message that is too short", message(OPEN, 1))
refused("a node that it has not asked for", message(NODE, 1, 3))
for text in (b"0\n", b"255\n", b"5", b"x\n", b"5.1\n", b"5\n5.0\n", b"5\n5.256\n", b"5\n5:0 1\n", b"5\n5:70000 1\n", b"5\n5:80\n", b"5\n5-1\n", b"5 \n"):
    refused("the state %r" % text, message(STATE, content=text))
refused("the node of the other side", message(STATE, content=b"1\n1.1\n"))
refused("a channel of the other side's numbers", message(OPEN, 2, 1, 1))
refused("a channel twice", message(OPEN, 1, 1, 1), message(OPEN, 1, 1, 1))

# Channels whose process does not say who it is, or lies.
for first in (b"", b"\x00" * 64, frame(1, 1), frame(9, 1), struct.pack("<I", 10) + b"\x04link down"):
    p, node = own_node()
    p.send(message(STATE, content=b"%d\n%d.1\n" % (node, node)))
    p.send(message(OPEN, 1, 1, 1) + message(DATA, 1, content=first))
    assert struct.unpack("<I", p.await_kind(CLOSE)) == (1,)
    p.socket.close()

# A process that is what it says, and sends garbage behind it: its channel is closed by the process that it is connected to.
p, node = own_node()
p.send(message(STATE, content=b"%d\n%d.1\n" % (node, node)))
time.sleep(0.2)
p.send(message(OPEN, 1, 1, 1) + message(DATA, 1, content=frame(node, 1) + os.urandom(500)))
assert struct.unpack("<I", p.await_kind(CLOSE)) == (1,)
# More than the window at once, on a channel to a process that is stopped by nothing: refused or taken, but bounded.
p.send(message(OPEN, 3, 1, 1) + message(TAKEN, 3, 1))
p.await_end("bytes taken that were not sent")
refused("a datagram that is too long", message(OPEN, 1, 1, 1), message(DATA, 1, content=bytes(65 * 1024)))

# Many nodes and channels, all at once, and then none.
p = peer()
for i in range(300):
    p.send(message(WANT_NODE, i))
given = [struct.unpack("<II", p.await_kind(NODE))[1] for _ in range(300)]
assert 0 < sum(node > 0 for node in given) < 254 and given[-1] == 0, given
p.socket.close()
p = peer()
for i in range(2000):
    p.send(message(OPEN, 2 * i + 1, 1, 1))
p.await_end("more channels than there may be")
# Others that say nothing hold up nobody.
silent = [peer(False) for _ in range(50)]
p, node = own_node()
print("node", node)
# As many as there may be: those that say nothing are disconnected, and then there is room again.
silent += [peer(False) for _ in range(100)]
silent[0].await_end("it said nothing")
p, node = own_node()
print("node", node)

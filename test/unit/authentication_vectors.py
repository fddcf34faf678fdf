#!/usr/bin/env python3
"""authentication_vectors.py [--write]: computes the vectors of docs/reference/authentication-format.md with
Python's own hashes and compares them with authentication_vectors.inc. AES-256-GCM is computed here, too."""
import hashlib
import hmac
import pathlib
import struct
import sys


def run(size, first):
    return bytes((first + i) & 0xFF for i in range(size))


def mac(key, text):
    return hmac.new(key, text, hashlib.sha256).digest()


def derive(key, salt, label):
    """HKDF (RFC 5869) of 32 bytes: one block."""
    return mac(mac(salt, key), label + b"\x01")


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


# --- AES-256-GCM, slow and plain: FIPS 197 and NIST SP 800-38D ---

def rotate(byte, by):
    return (byte << by | byte >> (8 - by)) & 0xFF


def s_box():
    box, p, q = [0] * 256, 1, 1
    while True:
        p = p ^ (p << 1) & 0xFF ^ (0x1B if p & 0x80 else 0)
        for shift in (1, 2, 4):
            q ^= q << shift & 0xFF
        if q & 0x80:
            q ^= 0x09
        box[p] = q ^ rotate(q, 1) ^ rotate(q, 2) ^ rotate(q, 3) ^ rotate(q, 4) ^ 0x63
        if p == 1:
            break
    box[0] = 0x63
    return box


BOX = s_box()


def round_keys(key):
    words = [list(key[i:i + 4]) for i in range(0, 32, 4)]
    constant = 1
    while len(words) < 60:
        word = list(words[-1])
        if len(words) % 8 == 0:
            word = [BOX[b] for b in word[1:] + word[:1]]
            word[0] ^= constant
            constant <<= 1
        elif len(words) % 8 == 4:
            word = [BOX[b] for b in word]
        words.append([a ^ b for a, b in zip(words[-8], word)])
    return [sum(words[i:i + 4], []) for i in range(0, 60, 4)]


def twice(byte):
    return byte << 1 & 0xFF ^ (0x1B if byte & 0x80 else 0)


def encrypt(keys, block):
    state = [a ^ b for a, b in zip(block, keys[0])]
    for number, key in enumerate(keys[1:], 1):
        state = [BOX[state[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if number < 14:
            mixed = []
            for column in range(0, 16, 4):
                a = state[column:column + 4]
                for i in range(4):
                    mixed.append(twice(a[i]) ^ twice(a[(i + 1) % 4]) ^ a[(i + 1) % 4] ^ a[(i + 2) % 4] ^ a[(i + 3) % 4])
            state = mixed
        state = [a ^ b for a, b in zip(state, key)]
    return bytes(state)


def times(x, y):
    z = 0
    for i in range(127, -1, -1):
        if x >> i & 1:
            z ^= y
        y = y >> 1 ^ (0xE1 << 120 if y & 1 else 0)
    return z


def seal(key, number, text):
    keys = round_keys(key)
    nonce = bytes(4) + struct.pack(">Q", number)

    def block(counter):
        return encrypt(keys, nonce + struct.pack(">I", counter))

    out = b"".join(
        bytes(a ^ b for a, b in zip(text[i:i + 16], block(i // 16 + 2))) for i in range(0, len(text), 16)
    )
    h = int.from_bytes(encrypt(keys, bytes(16)), "big")
    sum_ = 0
    padded = out + bytes(-len(out) % 16) + struct.pack(">QQ", 0, 8 * len(out))
    for i in range(0, len(padded), 16):
        sum_ = times(sum_ ^ int.from_bytes(padded[i:i + 16], "big"), h)
    return out + (sum_ ^ int.from_bytes(block(1), "big")).to_bytes(16, "big")


def exchange(keys, encrypts, verdict):
    """What is said, and the keys for messages; the connecting side has the first key."""
    nonce, other = run(16, 0x70), run(16, 0x90)
    connecting, accepting = run(18, 0x10), run(18, 0x40)
    hello, answer = b"hello of the client", b"hello of the server"
    head = struct.pack(">HBB", 0xCA5E, 1, encrypts)
    request = head + nonce + bytes([5]) + b"alice"
    salt = nonce + other
    said = sha256(b"rcverbs authentication 1 request", request, connecting, accepting, other)
    proofs = [mac(derive(k, salt, b"rcverbs authentication 1 accepting proof"), said) for k in keys]
    proofs += [run(32, 0xC0)] * (2 - len(keys))
    key = keys[0]
    said = sha256(b"rcverbs authentication 1 hello", said, hello)
    proof = mac(derive(key, salt, b"rcverbs authentication 1 connecting proof"), said)
    number = struct.pack(">H", verdict)
    said = sha256(b"rcverbs authentication 1 result", said, number, answer)
    result = mac(derive(key, salt, b"rcverbs authentication 1 accepting proof"), said)
    return {
        "request": request,
        "acceptance": head + other + b"".join(proofs),
        "proof": proof + struct.pack(">H", len(hello)) + hello,
        "result": result + number + struct.pack(">H", len(answer)) + answer,
        "connecting-key": derive(key, salt, b"rcverbs authentication 1 connecting messages" + said),
        "accepting-key": derive(key, salt, b"rcverbs authentication 1 accepting messages" + said),
    }


vectors = exchange([run(32, 1), run(32, 2)], 1, 0)
for number in range(2):
    vectors[f"message-{number}"] = seal(vectors["connecting-key"], number, b"a message")
vectors["refusal"] = exchange([run(32, 1)], 0, 1)["result"]
text = "".join(f'{{"{name}", "{value.hex()}"}},\n' for name, value in vectors.items())
file = pathlib.Path(__file__).with_name("authentication_vectors.inc")
if "--write" in sys.argv:
    file.write_text(text)
if file.read_text() != text:
    sys.exit("the vectors differ:\n" + text)
print(f"{len(vectors)} vectors are as computed here")

#!/usr/bin/env python3
"""block_client: prints the size and the first bytes of what a block_server serves, through the C interface of the shared library.

    block_client.py ADDRESS PORT
"""
import ctypes
import struct
import sys


class Error(ctypes.Structure):
    _fields_ = [('conditions', ctypes.c_uint32), ('value', ctypes.c_int32), ('category', ctypes.c_char * 40), ('message', ctypes.c_char * 464)]


class Request(ctypes.Structure):
    _fields_ = [
        ('operation', ctypes.c_uint32), ('may_repeat', ctypes.c_uint32), ('head', ctypes.c_char_p), ('head_bytes', ctypes.c_size_t),
        ('body', ctypes.c_char_p), ('body_bytes', ctypes.c_size_t), ('timeout_ms', ctypes.c_int64)]


class Reply(ctypes.Structure):
    _fields_ = [
        ('status', ctypes.c_uint32), ('head_bytes', ctypes.c_uint32), ('head', ctypes.c_ubyte * 64), ('body', ctypes.c_void_p),
        ('body_bytes', ctypes.c_size_t), ('connection_number', ctypes.c_uint64)]


class Client:
    def __init__(self, address, port):
        self.library = ctypes.CDLL('librcverbs.so.0.1')
        self.library.rcverbs_client_free.argtypes = [ctypes.c_void_p]
        self.client = ctypes.c_void_p()
        self.check(self.library.rcverbs_client_open, address.encode(), ctypes.c_uint16(port), None, ctypes.byref(self.client))

    def check(self, function, *arguments):
        error = Error()
        if function(*arguments, ctypes.byref(error)) != 0:
            raise OSError(error.message.decode())

    def request(self, operation, head=b''):
        what = Request(operation, 1, head, len(head), None, 0, 10000)
        reply = Reply()
        # Other threads of Python run meanwhile.
        self.check(self.library.rcverbs_client_request, self.client, ctypes.byref(what), ctypes.byref(reply))
        body = ctypes.string_at(reply.body, reply.body_bytes)
        self.library.rcverbs_reply_free(ctypes.byref(reply))
        if reply.status != 0:
            raise OSError(reply.status, 'the server refuses it')
        return body

    def close(self):
        self.library.rcverbs_client_free(self.client)


client = Client(sys.argv[1], int(sys.argv[2]))
(size,) = struct.unpack('>Q', client.request(1))
start = client.request(2, struct.pack('>QI', 0, min(size, 16)))
print(f'{size} bytes: {start.hex()}')
client.close()

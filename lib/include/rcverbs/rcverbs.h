/* rcverbs.h - blocking calls for C, and for languages that call C: requests, messages, and reads, writes and atomics
 * in the memory of a peer. Experimental: it may change.
 *
 *     rcverbs_error why;
 *     rcverbs_client *c;
 *     rcverbs_reply r;
 *     rcverbs_request ask = {.operation = 1, .body = key, .body_bytes = strlen(key)};
 *     if (rcverbs_client_open("192.168.0.1", 7471, NULL, &c, &why) != 0 || rcverbs_client_request(c, &ask, &r, &why) != 0)
 *         fprintf(stderr, "%s\n", why.message);
 *
 * Functions return 0, or -1 and say why in *error, which may be NULL. Nothing is thrown. Addresses are those of RDMA
 * devices, as text. Timeouts are in milliseconds; a negative one is none. What a timeout of a read, write or atomic
 * leaves is a connection that has ended.
 *
 * Threads: any number of threads may call functions of one object, except that nobody uses it while it is closed or
 * freed; a thread that waits meanwhile is woken by rcverbs_..._stop(). One thread of the library's serves all objects.
 * It starts with the first one; so a program forks into the background first. In the child of a fork the functions
 * of its parent's objects fail, and freeing them does nothing.
 *
 * The library is C++: link with -lrcverbs. See experimental/calls.hpp for the same in C++. */
#ifndef RCVERBS_RCVERBS_H
#define RCVERBS_RCVERBS_H

#include <stddef.h>
#include <stdint.h>

#include <rcverbs/export.hpp>

#ifdef __cplusplus
extern "C" {
#endif

/* What an error means for going on; bits of rcverbs_error.conditions. As rcverbs::condition in error.hpp. */
enum {
    RCVERBS_TIMED_OUT = 1,          /* a deadline passed, or the peer did not answer */
    RCVERBS_PROTOCOL_VIOLATION = 2, /* the peer has violated a protocol */
    RCVERBS_ENDED_BY_PEER = 4,      /* the peer has disconnected, or its process ended */
    RCVERBS_REFUSED = 8,            /* there is no connection: the peer or its host has refused it */
    RCVERBS_TRANSIENT = 16,         /* another attempt may succeed */
    RCVERBS_OPERATION_ONLY = 32     /* only this call has failed */
};

typedef struct rcverbs_error {
    uint32_t conditions;
    int32_t value;      /* of the category: see docs/reference/errors.md */
    char category[40];  /* such as "rcverbs" */
    char message[464];  /* cause and remedy; both texts end with 0 */
} rcverbs_error;

/* The library's version, such as "0.1.0". */
RCVERBS_EXPORT const char *rcverbs_version(void);

/* --- who may connect --------------------------------------------------------------------------------------------- */

/* Keys that both sides have, of a file whose lines are an identity and a key: see docs/guides/security.md. */
typedef struct rcverbs_keys rcverbs_keys;

/* `identity` is who this side is, where it connects; NULL if the file has one identity only. */
RCVERBS_EXPORT int rcverbs_keys_load(
    const char *path, const char *identity, rcverbs_keys **keys, rcverbs_error *error);
/* Reads the file again, for connections that are made from now on. After an error the keys are as before. */
RCVERBS_EXPORT int rcverbs_keys_reload(rcverbs_keys *keys, rcverbs_error *error);
/* Objects that were given the keys still have them. Also of NULL. */
RCVERBS_EXPORT void rcverbs_keys_free(rcverbs_keys *keys);

/* Where a function takes options, NULL is all zeros. */
typedef struct rcverbs_options {
    const rcverbs_keys *keys;   /* NULL: anybody, without authentication; the same on both sides */
    uint32_t encrypts_messages; /* not 0: messages are encrypted, which needs keys, and large ones refused; the same */
    uint32_t slot_bytes;        /* of a channel's receive: message_channel_options::slot_bytes; 0: its default */
} rcverbs_options;

/* --- requests to a server, which is connected again after failures --------------------------------------------- */

typedef struct rcverbs_client rcverbs_client;

typedef struct rcverbs_request {
    uint32_t operation;
    uint32_t may_repeat;    /* not 0: may be executed twice, when the connection fails in between */
    const void *head;       /* 0 to 64 bytes before the body */
    size_t head_bytes;
    const void *body;       /* 0 to 4 GiB */
    size_t body_bytes;
    int64_t timeout_ms;     /* 0: 30 seconds */
} rcverbs_request;

typedef struct rcverbs_reply {
    uint32_t status;            /* the server's number */
    uint32_t head_bytes;
    unsigned char head[64];     /* what the server has put before the body */
    void *body;                 /* up to 64 MiB */
    size_t body_bytes;
    uint64_t connection_number; /* changes when the client was connected again */
} rcverbs_reply;

/* The first request connects. */
RCVERBS_EXPORT int rcverbs_client_open(
    const char *address, uint16_t port, const rcverbs_options *options, rcverbs_client **client, rcverbs_error *error);
/* After 0 the reply must be freed. */
RCVERBS_EXPORT int rcverbs_client_request(
    rcverbs_client *client, const rcverbs_request *what, rcverbs_reply *reply, rcverbs_error *error);
RCVERBS_EXPORT void rcverbs_reply_free(rcverbs_reply *reply);
/* Fails the calls that wait, and all later ones. */
RCVERBS_EXPORT void rcverbs_client_stop(rcverbs_client *client);
/* Also of NULL. */
RCVERBS_EXPORT void rcverbs_client_free(rcverbs_client *client);

/* --- the requests of all clients ------------------------------------------------------------------------------- */

typedef struct rcverbs_server rcverbs_server;
typedef struct rcverbs_incoming rcverbs_incoming;

/* Port 0: any; rcverbs_server_port() says which. */
RCVERBS_EXPORT int rcverbs_server_open(
    const char *address, uint16_t port, const rcverbs_options *options, rcverbs_server **server, rcverbs_error *error);
RCVERBS_EXPORT uint16_t rcverbs_server_port(rcverbs_server *server);
/* Waits for a request, which must be freed; *request is NULL if the server was stopped. */
RCVERBS_EXPORT int rcverbs_server_next(
    rcverbs_server *server, int64_t timeout_ms, rcverbs_incoming **request, rcverbs_error *error);
RCVERBS_EXPORT uint32_t rcverbs_incoming_operation(const rcverbs_incoming *request);
/* Not 0: the client no longer waits for the answer. */
RCVERBS_EXPORT int rcverbs_incoming_is_cancelled(const rcverbs_incoming *request);
/* The identity that the client has proved; "" without keys. Valid until the request is freed. */
RCVERBS_EXPORT const char *rcverbs_incoming_peer_identity(const rcverbs_incoming *request);
/* Valid until the request is answered or freed. */
RCVERBS_EXPORT int rcverbs_incoming_head(
    const rcverbs_incoming *request, const void **bytes, size_t *size, rcverbs_error *error);
RCVERBS_EXPORT int rcverbs_incoming_body(
    const rcverbs_incoming *request, const void **bytes, size_t *size, rcverbs_error *error);
RCVERBS_EXPORT int rcverbs_incoming_answer(
    rcverbs_incoming *request, uint32_t status, const void *head, size_t head_bytes, const void *body,
    size_t body_bytes, rcverbs_error *error);
/* A request that was not answered is refused. Also of NULL. */
RCVERBS_EXPORT void rcverbs_incoming_free(rcverbs_incoming *request);
RCVERBS_EXPORT void rcverbs_server_stop(rcverbs_server *server);
/* Also of NULL. */
RCVERBS_EXPORT void rcverbs_server_free(rcverbs_server *server);

/* --- messages -------------------------------------------------------------------------------------------------- */

typedef struct rcverbs_channel rcverbs_channel;

typedef struct rcverbs_message {
    uint64_t tag;
    void *bytes;
    size_t size;
} rcverbs_message;

RCVERBS_EXPORT int rcverbs_channel_connect(
    const char *address, uint16_t port, const rcverbs_options *options, int64_t timeout_ms, rcverbs_channel **channel,
    rcverbs_error *error);
/* The identity that the connecting side has proved to this one; else "". Valid until the channel is freed. */
RCVERBS_EXPORT const char *rcverbs_channel_peer_identity(const rcverbs_channel *channel);
/* Up to 4 GiB. Returns when the peer's device has the message; of a large one, when the peer has fetched it. */
RCVERBS_EXPORT int rcverbs_channel_send(
    rcverbs_channel *channel, const void *bytes, size_t size, uint64_t tag, int64_t timeout_ms,
    rcverbs_error *error);
/* Up to 64 MiB. After 0 the message must be freed. */
RCVERBS_EXPORT int rcverbs_channel_receive(
    rcverbs_channel *channel, int64_t timeout_ms, rcverbs_message *message, rcverbs_error *error);
RCVERBS_EXPORT void rcverbs_message_free(rcverbs_message *message);
/* Waits until the peer has received everything, and has finished, too. */
RCVERBS_EXPORT int rcverbs_channel_finish(rcverbs_channel *channel, int64_t timeout_ms, rcverbs_error *error);
RCVERBS_EXPORT void rcverbs_channel_stop(rcverbs_channel *channel);
/* Also of NULL. */
RCVERBS_EXPORT void rcverbs_channel_free(rcverbs_channel *channel);

/* --- memory of a peer ------------------------------------------------------------------------------------------ */

typedef struct rcverbs_session rcverbs_session;
typedef struct rcverbs_buffer rcverbs_buffer;

/* Rights of rcverbs_buffer_allocate(), as rcverbs::access_flags. */
enum {
    RCVERBS_LOCAL_READ = 0,
    RCVERBS_LOCAL_WRITE = 1,
    RCVERBS_REMOTE_WRITE = 2,
    RCVERBS_REMOTE_READ = 4,
    RCVERBS_REMOTE_ATOMIC = 8
};

/* Memory that a peer may use. */
typedef struct rcverbs_region {
    char name[32]; /* up to 24 bytes, and 0 */
    uint64_t address;
    uint64_t size;
    uint32_t key;
    uint32_t rights;
} rcverbs_region;

RCVERBS_EXPORT int rcverbs_session_connect(
    const char *address, uint16_t port, const rcverbs_options *options, int64_t timeout_ms, rcverbs_session **session,
    rcverbs_error *error);
/* As of channels. */
RCVERBS_EXPORT const char *rcverbs_session_peer_identity(const rcverbs_session *session);
/* Gives the peer these regions, and waits for its own: once. *count is the room in `theirs`, and then how many the peer
 * has; those beyond the room are not stored. */
RCVERBS_EXPORT int rcverbs_session_exchange(
    rcverbs_session *session, const rcverbs_region *mine, size_t mine_count, rcverbs_region *theirs, size_t *count,
    int64_t timeout_ms, rcverbs_error *error);
/* Memory for reads and writes on this session, and of its peer: page-aligned and zero. */
RCVERBS_EXPORT int rcverbs_buffer_allocate(
    rcverbs_session *session, size_t size, uint32_t rights, rcverbs_buffer **buffer, rcverbs_error *error);
RCVERBS_EXPORT void *rcverbs_buffer_bytes(rcverbs_buffer *buffer);
/* For rcverbs_session_exchange(). A name that is too long is cut. */
RCVERBS_EXPORT void rcverbs_buffer_describe(rcverbs_buffer *buffer, const char *name, rcverbs_region *region);
/* When no call uses it any more, and no peer. Also of NULL. */
RCVERBS_EXPORT void rcverbs_buffer_free(rcverbs_buffer *buffer);
RCVERBS_EXPORT int rcverbs_session_write(
    rcverbs_session *session, rcverbs_buffer *from, size_t from_offset, const rcverbs_region *to, uint64_t to_offset,
    size_t size, int64_t timeout_ms, rcverbs_error *error);
RCVERBS_EXPORT int rcverbs_session_read(
    rcverbs_session *session, const rcverbs_region *from, uint64_t from_offset, rcverbs_buffer *to, size_t to_offset,
    size_t size, int64_t timeout_ms, rcverbs_error *error);
/* *before is what was in the 8 bytes at the offset, a multiple of 8. */
RCVERBS_EXPORT int rcverbs_session_fetch_add(
    rcverbs_session *session, const rcverbs_region *in, uint64_t offset, uint64_t add, uint64_t *before,
    int64_t timeout_ms, rcverbs_error *error);
RCVERBS_EXPORT int rcverbs_session_compare_swap(
    rcverbs_session *session, const rcverbs_region *in, uint64_t offset, uint64_t expected, uint64_t desired,
    uint64_t *before, int64_t timeout_ms, rcverbs_error *error);
/* Waits until the peer has finished, too. */
RCVERBS_EXPORT int rcverbs_session_finish(rcverbs_session *session, int64_t timeout_ms, rcverbs_error *error);
RCVERBS_EXPORT void rcverbs_session_stop(rcverbs_session *session);
/* Before the session's buffers or after them. Also of NULL. */
RCVERBS_EXPORT void rcverbs_session_free(rcverbs_session *session);

/* --- accepting channels and sessions --------------------------------------------------------------------------- */

typedef struct rcverbs_listener rcverbs_listener;

RCVERBS_EXPORT int rcverbs_listener_open(
    const char *address, uint16_t port, rcverbs_listener **listener, rcverbs_error *error);
RCVERBS_EXPORT uint16_t rcverbs_listener_port(rcverbs_listener *listener);
RCVERBS_EXPORT int rcverbs_listener_accept_channel(
    rcverbs_listener *listener, const rcverbs_options *options, int64_t timeout_ms, rcverbs_channel **channel,
    rcverbs_error *error);
RCVERBS_EXPORT int rcverbs_listener_accept_session(
    rcverbs_listener *listener, const rcverbs_options *options, int64_t timeout_ms, rcverbs_session **session,
    rcverbs_error *error);
RCVERBS_EXPORT void rcverbs_listener_stop(rcverbs_listener *listener);
/* Also of NULL. */
RCVERBS_EXPORT void rcverbs_listener_free(rcverbs_listener *listener);

#ifdef __cplusplus
}
#endif

#endif

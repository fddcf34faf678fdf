#include <rcverbs/rcverbs.h>

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <rcverbs/access_flags.hpp>
#include <rcverbs/authentication.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/experimental/calls.hpp>
#include <rcverbs/experimental/request_client.hpp>
#include <rcverbs/experimental/request_server.hpp>
#include <rcverbs/failure.hpp>
#include <rcverbs/message_channel.hpp>
#include <rcverbs/registered_buffer.hpp>
#include <rcverbs/session.hpp>

namespace calls = rcverbs::calls;

struct rcverbs_keys {
    rcverbs::pre_shared_keys it;
};
struct rcverbs_client {
    calls::client it;
};
struct rcverbs_server {
    calls::server it;
};
struct rcverbs_incoming {
    calls::request it;
    std::string peer_identity = it.peer_identity();
};
struct rcverbs_channel {
    calls::channel it;
    std::string peer_identity = it.peer_identity();
};
struct rcverbs_session {
    calls::session it;
    std::string peer_identity = it.peer_identity();
};
struct rcverbs_listener {
    calls::listener it;
};
struct rcverbs_buffer {
    rcverbs::registered_buffer it;
    pid_t process = ::getpid();
};

namespace {

template <std::size_t Size>
void copy_text(char (&to)[Size], char const* from) noexcept {
    std::size_t const size = std::min(std::strlen(from), Size - 1);
    std::memcpy(to, from, size);
    std::memset(to + size, 0, Size - size);
}

void describe(rcverbs_error* to, boost::system::error_code ec, char const* text) noexcept {
    if (to == nullptr) return;
    using rcverbs::condition;
    *to = {};
    for (auto const& [is, bit] :
         {std::pair{condition::timed_out, RCVERBS_TIMED_OUT},
          std::pair{condition::protocol_violation, RCVERBS_PROTOCOL_VIOLATION},
          std::pair{condition::ended_by_peer, RCVERBS_ENDED_BY_PEER},
          std::pair{condition::refused, RCVERBS_REFUSED},
          std::pair{condition::transient, RCVERBS_TRANSIENT},
          std::pair{condition::operation_only, RCVERBS_OPERATION_ONLY}})
        if (ec == is) to->conditions |= static_cast<std::uint32_t>(bit);
    to->value = ec.value();
    copy_text(to->category, ec.category().name());
    copy_text(to->message, text);
}

// Calls a function; what it throws goes to `error`.
template <class Function>
int guarded(rcverbs_error* error, Function f) noexcept {
    try {
        f();
        return 0;
    } catch (boost::system::system_error const& e) {
        try {
            // Boost's text of the code names a category, and may name a source file.
            std::string text = e.what();
            std::string const of_code = e.code().what();
            if (auto const at = text.find(of_code); at != text.npos)
                text.replace(at, of_code.size(), e.code().message());
            describe(error, e.code(), text.c_str());
        } catch (...) {
            describe(error, e.code(), "");
        }
    } catch (std::system_error const& e) {
        describe(error, {e.code().value(), boost::system::system_category()}, e.what());
    } catch (std::bad_alloc const&) {
        describe(
            error, make_error_code(boost::system::errc::not_enough_memory), "not enough memory"
        );
    } catch (std::exception const& e) {
        describe(error, make_error_code(boost::system::errc::io_error), e.what());
    } catch (...) {
        describe(error, make_error_code(boost::system::errc::io_error), "unknown exception");
    }
    return -1;
}

// Makes an object of what a function gives.
template <class Object, class Function>
int make(Object** to, rcverbs_error* error, Function f) noexcept {
    *to = nullptr;
    return guarded(error, [&] { *to = std::make_unique<Object>(Object{f()}).release(); });
}

// Text may be missing; then it is no address.
rcverbs::endpoint endpoint_of(char const* address, std::uint16_t port) {
    return {std::string_view{address != nullptr ? address : ""}, port};
}

rcverbs::session_options session_options_of(rcverbs_options const* from) {
    rcverbs::session_options to;
    if (from == nullptr) return to;
    if (from->keys != nullptr) to.authentication.keys = from->keys->it;
    to.authentication.encrypts_messages = from->encrypts_messages != 0;
    return to;
}

// Of channels.
template <class Options>
Options options_of(rcverbs_options const* from) {
    Options to;
    if constexpr (requires { to.messages; }) {
        to.messages = options_of<rcverbs::message_channel_options>(from);
    } else {
        to.authentication = session_options_of(from).authentication;
        if (from != nullptr && from->slot_bytes != 0) to.slot_bytes = from->slot_bytes;
    }
    return to;
}

std::chrono::nanoseconds limit_of(std::int64_t milliseconds) noexcept {
    constexpr std::int64_t most = std::int64_t{1000} * 3600 * 24 * 365;
    if (milliseconds < 0 || milliseconds > most) return calls::no_limit;
    return std::chrono::milliseconds{milliseconds};
}

std::span<std::byte const> bytes_of(void const* bytes, std::size_t size) noexcept {
    return {static_cast<std::byte const*>(bytes), size};
}

// A copy that free(3) frees.
void* copy_of(std::span<std::byte const> bytes) {
    void* const copy = std::malloc(std::max<std::size_t>(bytes.size(), 1));
    if (copy == nullptr) throw std::bad_alloc{};
    if (!bytes.empty()) std::memcpy(copy, bytes.data(), bytes.size());
    return copy;
}

void describe(rcverbs_region& to, char const* name, rcverbs::remote_region const& memory) noexcept {
    to = {};
    std::memcpy(to.name, name, std::min<std::size_t>(std::strlen(name), 24));
    to.address = memory.address();
    to.size = memory.size();
    to.key = memory.key().value;
    to.rights = static_cast<std::uint32_t>(memory.rights());
}

rcverbs::remote_region memory_of(rcverbs_region const& region) noexcept {
    return {
        region.address,
        region.size,
        rcverbs::remote_key{region.key},
        static_cast<rcverbs::access_flags>(region.rights)};
}

}  // namespace

char const* rcverbs_version() { return RCVERBS_VERSION; }

int rcverbs_keys_load(
    char const* path, char const* identity, rcverbs_keys** keys, rcverbs_error* error
) {
    return make(keys, error, [&] {
        auto const all = rcverbs::pre_shared_keys::load(path != nullptr ? path : "");
        return identity != nullptr ? all.as(identity) : all;
    });
}
int rcverbs_keys_reload(rcverbs_keys* keys, rcverbs_error* error) {
    return guarded(error, [&] { keys->it.reload(); });
}
void rcverbs_keys_free(rcverbs_keys* keys) { delete keys; }

int rcverbs_client_open(
    char const* address,
    std::uint16_t port,
    rcverbs_options const* options,
    rcverbs_client** client,
    rcverbs_error* error
) {
    return make(client, error, [&] {
        rcverbs::request_client_options with;
        with.channel = options_of<rcverbs::request_channel_options>(options);
        return calls::client{endpoint_of(address, port), with};
    });
}
int rcverbs_client_request(
    rcverbs_client* client, rcverbs_request const* what, rcverbs_reply* reply, rcverbs_error* error
) {
    *reply = {};
    return guarded(error, [&] {
        rcverbs::ask ask{what->operation};
        ask.head(bytes_of(what->head, what->head_bytes))
            .body(bytes_of(what->body, what->body_bytes))
            .may_repeat(what->may_repeat != 0);
        if (what->timeout_ms != 0) ask.within(std::chrono::milliseconds{what->timeout_ms});
        calls::reply const r = client->it.request(ask);
        reply->body = copy_of(r.bytes);
        reply->body_bytes = r.bytes.size();
        reply->status = r.status;
        reply->head_bytes = static_cast<std::uint32_t>(std::min(r.head.size(), sizeof reply->head));
        std::copy_n(r.head.begin(), reply->head_bytes, reinterpret_cast<std::byte*>(reply->head));
        reply->connection_number = r.connection_number;
    });
}
void rcverbs_reply_free(rcverbs_reply* reply) {
    std::free(reply->body);
    *reply = {};
}
void rcverbs_client_stop(rcverbs_client* client) { client->it.close(); }
void rcverbs_client_free(rcverbs_client* client) { delete client; }

int rcverbs_server_open(
    char const* address,
    std::uint16_t port,
    rcverbs_options const* options,
    rcverbs_server** server,
    rcverbs_error* error
) {
    return make(server, error, [&] {
        rcverbs::request_server_options with;
        with.channel = options_of<rcverbs::request_channel_options>(options);
        return calls::server{endpoint_of(address, port), with};
    });
}
std::uint16_t rcverbs_server_port(rcverbs_server* server) {
    std::uint16_t port = 0;
    guarded(nullptr, [&] { port = server->it.local_endpoint().port(); });
    return port;
}
int rcverbs_server_next(
    rcverbs_server* server,
    std::int64_t timeout_ms,
    rcverbs_incoming** request,
    rcverbs_error* error
) {
    *request = nullptr;
    return guarded(error, [&] {
        calls::request next = server->it.next(limit_of(timeout_ms));
        if (next.is_valid()) *request = new rcverbs_incoming{std::move(next)};
    });
}
std::uint32_t rcverbs_incoming_operation(rcverbs_incoming const* request) {
    std::uint32_t operation = 0;
    guarded(nullptr, [&] { operation = request->it.operation(); });
    return operation;
}
int rcverbs_incoming_is_cancelled(rcverbs_incoming const* request) {
    int is_cancelled = 1;
    guarded(nullptr, [&] { is_cancelled = request->it.is_cancelled() ? 1 : 0; });
    return is_cancelled;
}
char const* rcverbs_incoming_peer_identity(rcverbs_incoming const* request) {
    return request->peer_identity.c_str();
}
int rcverbs_incoming_head(
    rcverbs_incoming const* request, void const** bytes, std::size_t* size, rcverbs_error* error
) {
    return guarded(error, [&] {
        auto const head = request->it.head();
        *bytes = head.data();
        *size = head.size();
    });
}
int rcverbs_incoming_body(
    rcverbs_incoming const* request, void const** bytes, std::size_t* size, rcverbs_error* error
) {
    return guarded(error, [&] {
        auto const body = request->it.bytes();
        *bytes = body.data();
        *size = body.size();
    });
}
int rcverbs_incoming_answer(
    rcverbs_incoming* request,
    std::uint32_t status,
    void const* head,
    std::size_t head_bytes,
    void const* body,
    std::size_t body_bytes,
    rcverbs_error* error
) {
    return guarded(error, [&] {
        rcverbs::answer answer{status};
        answer.head(bytes_of(head, head_bytes)).body(bytes_of(body, body_bytes));
        request->it.answer(answer);
    });
}
void rcverbs_incoming_free(rcverbs_incoming* request) { delete request; }
void rcverbs_server_stop(rcverbs_server* server) { server->it.close(); }
void rcverbs_server_free(rcverbs_server* server) { delete server; }

int rcverbs_channel_connect(
    char const* address,
    std::uint16_t port,
    rcverbs_options const* options,
    std::int64_t timeout_ms,
    rcverbs_channel** channel,
    rcverbs_error* error
) {
    return make(channel, error, [&] {
        return calls::channel{
            endpoint_of(address, port),
            options_of<rcverbs::message_channel_options>(options),
            limit_of(timeout_ms)};
    });
}
char const* rcverbs_channel_peer_identity(rcverbs_channel const* channel) {
    return channel->peer_identity.c_str();
}
int rcverbs_channel_send(
    rcverbs_channel* channel,
    void const* bytes,
    std::size_t size,
    std::uint64_t tag,
    std::int64_t timeout_ms,
    rcverbs_error* error
) {
    return guarded(error, [&] {
        channel->it.send(bytes_of(bytes, size), tag, limit_of(timeout_ms));
    });
}
int rcverbs_channel_receive(
    rcverbs_channel* channel,
    std::int64_t timeout_ms,
    rcverbs_message* message,
    rcverbs_error* error
) {
    *message = {};
    return guarded(error, [&] {
        calls::message const m = channel->it.receive(limit_of(timeout_ms));
        message->bytes = copy_of(m.bytes);
        message->size = m.bytes.size();
        message->tag = m.tag;
    });
}
void rcverbs_message_free(rcverbs_message* message) {
    std::free(message->bytes);
    *message = {};
}
int rcverbs_channel_finish(
    rcverbs_channel* channel, std::int64_t timeout_ms, rcverbs_error* error
) {
    return guarded(error, [&] { channel->it.finish(limit_of(timeout_ms)); });
}
void rcverbs_channel_stop(rcverbs_channel* channel) { channel->it.close(); }
void rcverbs_channel_free(rcverbs_channel* channel) { delete channel; }

int rcverbs_session_connect(
    char const* address,
    std::uint16_t port,
    rcverbs_options const* options,
    std::int64_t timeout_ms,
    rcverbs_session** session,
    rcverbs_error* error
) {
    return make(session, error, [&] {
        return calls::session{
            endpoint_of(address, port), session_options_of(options), limit_of(timeout_ms)};
    });
}
char const* rcverbs_session_peer_identity(rcverbs_session const* session) {
    return session->peer_identity.c_str();
}
int rcverbs_session_exchange(
    rcverbs_session* session,
    rcverbs_region const* mine,
    std::size_t mine_count,
    rcverbs_region* theirs,
    std::size_t* count,
    std::int64_t timeout_ms,
    rcverbs_error* error
) {
    return guarded(error, [&] {
        std::vector<calls::region> given;
        for (rcverbs_region const& each : std::span{mine, mine_count})
            given.push_back(
                {std::string{each.name, ::strnlen(each.name, sizeof each.name)}, memory_of(each)}
            );
        auto const all = session->it.exchange(given, limit_of(timeout_ms));
        for (std::size_t i = 0; i < std::min(all.size(), *count); ++i)
            describe(theirs[i], all[i].name.c_str(), all[i].memory);
        *count = all.size();
    });
}
int rcverbs_buffer_allocate(
    rcverbs_session* session,
    std::size_t size,
    std::uint32_t rights,
    rcverbs_buffer** buffer,
    rcverbs_error* error
) {
    return make(buffer, error, [&] {
        return rcverbs::registered_buffer{
            session->it.domain(), size, static_cast<rcverbs::access_flags>(rights)};
    });
}
void* rcverbs_buffer_bytes(rcverbs_buffer* buffer) { return buffer->it.bytes().data(); }
void rcverbs_buffer_describe(rcverbs_buffer* buffer, char const* name, rcverbs_region* region) {
    describe(*region, name, buffer->it.remote());
}
void rcverbs_buffer_free(rcverbs_buffer* buffer) {
    // The child of a fork has the memory, but the registration is its parent's.
    if (buffer != nullptr && buffer->process == ::getpid()) delete buffer;
}
int rcverbs_session_write(
    rcverbs_session* session,
    rcverbs_buffer* from,
    std::size_t from_offset,
    rcverbs_region const* to,
    std::uint64_t to_offset,
    std::size_t size,
    std::int64_t timeout_ms,
    rcverbs_error* error
) {
    return guarded(error, [&] {
        session->it.write(
            from->it.slice(from_offset, size),
            memory_of(*to).slice(to_offset, size),
            limit_of(timeout_ms)
        );
    });
}
int rcverbs_session_read(
    rcverbs_session* session,
    rcverbs_region const* from,
    std::uint64_t from_offset,
    rcverbs_buffer* to,
    std::size_t to_offset,
    std::size_t size,
    std::int64_t timeout_ms,
    rcverbs_error* error
) {
    return guarded(error, [&] {
        session->it.read(
            memory_of(*from).slice(from_offset, size),
            to->it.slice(to_offset, size),
            limit_of(timeout_ms)
        );
    });
}
int rcverbs_session_fetch_add(
    rcverbs_session* session,
    rcverbs_region const* in,
    std::uint64_t offset,
    std::uint64_t add,
    std::uint64_t* before,
    std::int64_t timeout_ms,
    rcverbs_error* error
) {
    return guarded(error, [&] {
        *before = session->it.fetch_add(memory_of(*in).word(offset), add, limit_of(timeout_ms));
    });
}
int rcverbs_session_compare_swap(
    rcverbs_session* session,
    rcverbs_region const* in,
    std::uint64_t offset,
    std::uint64_t expected,
    std::uint64_t desired,
    std::uint64_t* before,
    std::int64_t timeout_ms,
    rcverbs_error* error
) {
    return guarded(error, [&] {
        *before = session->it.compare_swap(
            memory_of(*in).word(offset), expected, desired, limit_of(timeout_ms)
        );
    });
}
int rcverbs_session_finish(
    rcverbs_session* session, std::int64_t timeout_ms, rcverbs_error* error
) {
    return guarded(error, [&] { session->it.finish(limit_of(timeout_ms)); });
}
void rcverbs_session_stop(rcverbs_session* session) { session->it.close(); }
void rcverbs_session_free(rcverbs_session* session) { delete session; }

int rcverbs_listener_open(
    char const* address, std::uint16_t port, rcverbs_listener** listener, rcverbs_error* error
) {
    return make(listener, error, [&] { return calls::listener{endpoint_of(address, port)}; });
}
std::uint16_t rcverbs_listener_port(rcverbs_listener* listener) {
    std::uint16_t port = 0;
    guarded(nullptr, [&] { port = listener->it.local_endpoint().port(); });
    return port;
}
int rcverbs_listener_accept_channel(
    rcverbs_listener* listener,
    rcverbs_options const* options,
    std::int64_t timeout_ms,
    rcverbs_channel** channel,
    rcverbs_error* error
) {
    return make(channel, error, [&] {
        return listener->it.accept_channel(
            options_of<rcverbs::message_channel_options>(options), limit_of(timeout_ms)
        );
    });
}
int rcverbs_listener_accept_session(
    rcverbs_listener* listener,
    rcverbs_options const* options,
    std::int64_t timeout_ms,
    rcverbs_session** session,
    rcverbs_error* error
) {
    return make(session, error, [&] {
        return listener->it.accept_session(session_options_of(options), limit_of(timeout_ms));
    });
}
void rcverbs_listener_stop(rcverbs_listener* listener) { listener->it.close(); }
void rcverbs_listener_free(rcverbs_listener* listener) { delete listener; }

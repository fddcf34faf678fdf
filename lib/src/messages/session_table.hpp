// session_table.hpp — the channels of each client of a server: a new one is accepted when nothing of the older ones can be executed any more.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <mutex>

#include <rcverbs/client_sessions.hpp>
#include <rcverbs/error.hpp>
#include <rcverbs/request_channel.hpp>

namespace rcverbs::detail {

class request_core;

/// Any thread. Calls channels without its lock.
class session_table {
public:
    static session_table& of(client_sessions const& handle) noexcept { return *handle.table_; }

    /// A channel of the client waits to be accepted: ends the older ones, and calls its admit() once: when nothing of them is
    /// left, or with client_reconnected when a newer one waits. Throws std::bad_alloc; then nothing has changed.
    void enter(client_identity const& client, std::shared_ptr<request_core> const& channel);
    /// Nothing of the channel can be executed any more, or it is being destroyed. Without effect if it did not enter.
    void leave(client_identity const& client, request_core const& channel) noexcept;

private:
    struct entry {
        request_core const* which;
        std::weak_ptr<request_core> channel;
        bool is_waiting;
    };
    using entries = std::list<entry>;

    std::mutex mutex_;
    std::map<client_identity, entries> clients_;  // none of them empty
};

}  // namespace rcverbs::detail

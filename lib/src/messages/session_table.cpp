#include "messages/session_table.hpp"

#include <utility>

#include "messages/request_core.hpp"

namespace rcverbs {

client_sessions::client_sessions() : table_{std::make_shared<detail::session_table>()} {}

namespace detail {

void session_table::enter(
    client_identity const& client, std::shared_ptr<request_core> const& channel
) {
    entries mine;
    mine.push_back({channel.get(), channel, true});
    entries before;
    bool is_alone = false;
    {
        std::lock_guard const lock{mutex_};
        if (auto const found = clients_.find(client); found != clients_.end())
            before = found->second;
        entries& all = clients_[client];
        std::erase_if(all, [](entry const& e) { return e.is_waiting; });
        is_alone = all.empty();
        mine.front().is_waiting = !is_alone;
        all.splice(all.end(), mine);
    }
    for (entry const& each : before) {
        auto const alive = each.channel.lock();
        if (alive == nullptr) continue;
        if (each.is_waiting) alive->admit(channel_errc::client_reconnected);
        else alive->end_for_newer();
    }
    if (is_alone) channel->admit({});
}

void session_table::leave(client_identity const& client, request_core const& channel) noexcept {
    std::shared_ptr<request_core> next;
    {
        std::lock_guard const lock{mutex_};
        auto const found = clients_.find(client);
        if (found == clients_.end()) return;
        entries& all = found->second;
        std::erase_if(all, [&](entry const& e) { return e.which == &channel; });
        if (all.empty()) {
            clients_.erase(found);
        } else if (all.size() == 1 && all.front().is_waiting) {
            all.front().is_waiting = false;
            next = all.front().channel.lock();
        }
    }
    if (next != nullptr) next->admit({});
}

}  // namespace detail

}  // namespace rcverbs

// region_finds.hpp — what this side of a region channel has of the peer's memory: finds, weak pointers to
// the memory that handles refer to, and withdrawals that wait for operations. Used inside the channel.
//
// A count of finds, which DROPPED subtracts, tells a find that crosses a DROPPED from an old one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/region_channel.hpp>

#include "machines/early_numbers.hpp"
#include "remote/recycled_map.hpp"
#include "wire/region_message.hpp"

namespace rcverbs::detail {

class memory_core;
class region_core;

class region_finds {
public:
    explicit region_finds(region_core& channel);

    // For the program.
    void find(
        std::string name,
        std::chrono::milliseconds wait,
        protocol::waiter<error_code, remote_memory> who
    );
    /// The peer offers this name.
    void on_offered(std::string const& name);

    // For memory of the peer.
    using keys_handler = std::function<void(error_code, std::span<wire::piece_key const>)>;
    void request_keys(wire::region_keys const& which, keys_handler then);
    /// Numbers for operations that ask for keys ahead; false once one was cancelled.
    std::uint64_t add_prepare(protocol::waiter<error_code> who) {
        return prepares_.add(std::move(who));
    }
    bool is_preparing(std::uint64_t number) const noexcept { return prepares_.contains(number); }
    void end_prepare(std::uint64_t number, error_code ec) { prepares_.complete(number, ec); }
    /// No handle refers to it any more.
    void give_back(std::uint64_t number, std::uint32_t founds);
    /// It was withdrawn, and no operation is under way any more.
    void on_unused(std::uint64_t number);

    // For memory that this side has allocated.
    /// A question whose answer may give memory begins; its number.
    std::uint64_t open_question() { return early_.open(); }
    void close_question(std::uint64_t question) noexcept { early_.close(question); }
    /// Empty if it was withdrawn meanwhile.
    remote_memory take(wire::region_found const& found, std::uint64_t question, error_code& ec);
    void drop(std::uint64_t number) noexcept;
    /// Calls on_unused() when no operation is under way any more.
    void drain(std::uint64_t number) { draining_.insert(number); }
    /// What was found before the owner hears that this side frees it is gone, too.
    void forget(std::uint64_t number) { early_.add_own(number); }
    /// The error of an answer that is not `found`.
    error_code refusal_of(reply const& r);

    void on_withdraw(request r);
    void end(error_code why);
    void abandon() noexcept;

    // Any thread.
    std::size_t held() const noexcept { return held_count_; }
    std::optional<region_refusal> refusal() const { return refusal_.get(); }

private:
    struct finding {
        explicit finding(region_core& channel);

        std::string name;
        protocol::deadline limit;
        bool waits = false;
        bool is_asking = false;
        bool is_offered = false;  // since it was asked
    };

    // Withdrawals that may overtake the answer to a find.
    static constexpr std::size_t early_max = 1024;
    // Notices of what this side has dropped that a peer may leave unread.
    static constexpr std::size_t notices_max = 4096;

    void ask(std::uint64_t find, finding& f);
    void on_answer(std::uint64_t find, std::uint64_t question, error_code ec, reply const& r);
    void end_find(std::uint64_t find, error_code ec, remote_memory found = {});
    void notify_dropped(std::uint64_t number, std::uint32_t founds);

    region_core& channel_;
    std::map<std::uint64_t, finding> findings_;
    protocol::wait_list<error_code, remote_memory> waits_;
    protocol::wait_list<error_code> prepares_;
    // Withdrawn regions, while there are questions whose answers may still give them.
    machines::early_numbers early_;
    recycled_map<std::weak_ptr<memory_core>> held_;
    // Withdrawals that are confirmed when the operations under way have completed.
    std::multimap<std::uint64_t, request> releasing_;
    // Regions that this side does not use any more as soon as they have.
    std::set<std::uint64_t> draining_;
    std::size_t notices_ = 0;  // of what was dropped, under way
    // Any thread.
    std::atomic<std::size_t> held_count_{0};
    protocol::published<std::optional<region_refusal>> refusal_;
};

}  // namespace rcverbs::detail

// region_core.hpp — the state of a region channel: what its peer has of this side's regions, and what
// this side has of the peer's.
//
// A layer above a request channel, whose connection's order it shares: everything here runs in that
// order, except where it says otherwise. Both sides keep only what they need to end well: the owner a
// grant for each offer that the peer has, the finder a weak pointer to each memory that handles refer
// to. A count of finds, which DROPPED subtracts, tells a find that crosses a DROPPED from an old one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/region_channel.hpp>
#include <rcverbs/experimental/remote_allocator.hpp>
#include <rcverbs/memory_region.hpp>
#include <rcverbs/experimental/window.hpp>

#include "machines/early_numbers.hpp"
#include "machines/piece_map.hpp"
#include "machines/unsent_changes.hpp"
#include "remote/offers_core.hpp"
#include "remote/pool_core.hpp"
#include "wire/region_message.hpp"

namespace rcverbs::detail {

class memory_core;

/// The first option out of its range; empty if there is none.
std::string problem_of(region_offers_options const& options);
std::string problem_of(region_channel_options const& options);

class region_core final : public protocol::driver {
public:
    region_core(request_channel over, region_offers offers, std::uint32_t changes_max);
    ~region_core() override;
    /// For an open channel: starts.
    void begin();

    // Any thread.
    request_channel& channel() noexcept { return channel_; }
    boost::asio::any_io_executor own_executor() const noexcept { return channel_.get_executor(); }
    connection& below() noexcept { return lower(); }
    failure last_failure() const;
    region_channel_statistics statistics() const noexcept;
    std::optional<region_refusal> peer_refusal() const;
    std::optional<region_refusal> own_refusal() const;
    using actor::deliver;
    using actor::enter;
    using actor::in_order;
    using driver::held;
    void connect(endpoint const& peer, protocol::waiter<error_code> who);
    void accept(protocol::waiter<error_code> who);
    void finish(protocol::waiter<error_code> who);

    // In the order.
    void find(
        std::string name,
        std::chrono::milliseconds wait,
        protocol::waiter<error_code, remote_memory> who
    );
    void next(protocol::waiter<error_code, request> who);
    void next_change(protocol::waiter<error_code, region_change> who);

    // Memory of the peer's pool, in the order.
    using allocation_waiter = protocol::waiter<error_code, remote_allocation>;
    void allocate(std::uint64_t bytes, allocate_options const& options, allocation_waiter who);
    void resume(resume_token const& key, allocation_waiter who);
    void free(std::shared_ptr<memory_core> const& what, protocol::waiter<error_code> who);
    void share(
        std::shared_ptr<memory_core> const& what,
        std::string const& name,
        protocol::waiter<error_code> who
    );

    // From the list of offers, in the order.
    void on_offered(std::string const& name);
    /// @param name  Empty if it has none.
    void withdraw(offer_ptr const& what, std::string const& name);
    /// Withdraws a block that another channel has now; `until` is kept until the peer has no key.
    void take_away(offer_ptr const& what, std::shared_ptr<void> until);

    // From memory of the peer.
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

private:
    // A window that is bound to an offer. The others are destroyed after its key is dead.
    struct opening {
        offer_ptr what;
        std::vector<std::shared_ptr<void>> taken_away;
        rcverbs::window window;
    };
    // A KEYS that waits for pieces that are being registered: those from `first` on.
    struct key_request {
        request asked;
        std::uint32_t first = 0;
        std::uint32_t count = 0;
    };
    // A piece that register_on registers. Its thread may run longer than the channel, and must not keep
    // anything of the channel's: what is here goes when the channel ends.
    struct registration {
        registration(std::uint64_t of_offer, std::uint32_t of_piece) noexcept
            : number{of_offer},
              piece{of_piece} {}

        std::uint64_t const number;
        std::uint32_t const piece;
        // Nobody waits for it any more.
        std::atomic<bool> is_cancelled{false};
        std::mutex mutex;  // held while it is registered
        bool is_over = false;  // the channel has ended
        boost::asio::any_io_executor io;
        protection_domain domain;
        offer_ptr what;
        memory_region region;
        error_code ec;
        registration_limit limit;

        /// Deregisters it, and lets the memory go. With the mutex.
        void drop() noexcept {
            region = {};
            what.reset();
        }
    };
    using registration_ptr = std::shared_ptr<registration>;
    // An offer that the peer has.
    struct grant {
        // First, so that it is destroyed last: the memory belongs to the program again after that.
        offer_ptr what;
        // Those that have the memory now hear of it when these are destroyed, so all keys are dead before.
        std::vector<std::shared_ptr<void>> taken_away;
        machines::piece_map map;
        // Keys by regions, or one key by a window.
        std::vector<memory_region> pieces;
        std::map<std::uint32_t, registration_ptr> registering;
        std::deque<key_request> waiting;
        std::shared_ptr<opening> window;
        std::uint32_t founds = 0;
    };
    // A find of this side's.
    struct finding {
        explicit finding(region_core& owner) : limit{owner} {}

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
    // Notices of changes that are under way at a time.
    static constexpr std::size_t changes_under_way_max = 16;

    void open();
    void on_end(failure const& why) override;
    void on_abandoned() noexcept override;
    void violated();
    void fail_with(error_code why, close_reason reason);

    // The peer's requests.
    void pump();
    void take(request r);
    void take_own(request r);
    void take_program(request r);
    void answer_find(request r);
    void answer_keys(request r);
    void on_withdraw(request r);
    void on_dropped(request const& r);
    void answer(request r, wire::region_status status, std::vector<std::byte> body = {});
    void answer_allocate(request r);
    void answer_resume(request r);
    void answer_free(request r);
    void answer_share(request r);
    void answer_resumed(request r, pool_core::allocated const& a);
    void answer_allocated(request r, pool_core::allocated const& a, bool is_new);
    void on_freed(std::uint64_t number);
    /// Null if this side has no pool.
    pool_core* pool();
    /// Why not, or 0 with what the peer is told of the region; then it has found it once more.
    wire::region_refused grant_once(
        offer_ptr const& what, std::size_t head_bytes, wire::region_found& found
    );
    void refuse(request r, wire::region_refused const& why);
    grant* grant_of(offer_ptr const& what);
    bool is_withdrawing(std::uint64_t number) const noexcept {
        return withdrawing_.contains(number);
    }
    bool has_window_key(offered_region const& what);
    std::vector<wire::piece_key> open_window(grant& g, error_code& ec);
    std::vector<wire::piece_key> register_pieces(
        grant& g, std::uint32_t first, std::uint32_t count, wire::region_refused& why
    );
    std::vector<wire::piece_key> known_keys(grant& g, std::uint32_t first, std::uint32_t count);
    static memory_region registered(
        protection_domain const& domain,
        offered_region const& what,
        machines::piece_map::part const& at,
        error_code& ec
    );
    void add_piece(grant& g, std::uint32_t piece, memory_region region);
    bool has_helpers() const noexcept;
    void answer_waiting(grant& g);
    void start_registrations(grant& g);
    void start_registration(grant& g, std::uint32_t piece);
    static void register_piece(registration& job, machines::piece_map::part const& at);
    void on_registered(registration_ptr const& job);
    static void cancel(registration& job) noexcept;
    void end_registrations() noexcept;
    void refuse_keys(grant& g);
    void on_released(std::uint64_t number, error_code ec, reply const& r);
    void end_grant(std::map<std::uint64_t, grant>::iterator which);

    // This side's.
    void ask(std::uint64_t find, finding& f);
    void on_answer(std::uint64_t find, std::uint64_t question, error_code ec, reply const& r);
    remote_memory take_found(
        wire::region_found const& found, std::uint64_t question, error_code& ec
    );
    template <class Body>
    void ask_for_memory(
        wire::region_operation what, Body const& body, channel_errc none, allocation_waiter who
    );
    remote_allocation take_allocated(
        reply const& r, std::uint64_t question, channel_errc none, error_code& ec
    );
    void drop_held(std::uint64_t number) noexcept;
    error_code usable() const noexcept;
    /// The error of an answer that is not `found`.
    error_code refusal_of(reply const& r);
    void ask_to_free(std::uint64_t number);
    // Sends a request; `then(error_code, reply const&)` runs in the order.
    template <class Body, class Then>
    void ask_peer(
        wire::region_operation what,
        Body body,
        Then then,
        std::optional<std::chrono::milliseconds> timeout = {}
    ) {
        auto const kept = std::make_shared<Body const>(std::move(body));
        rcverbs::ask wanted{static_cast<std::uint32_t>(what)};
        wanted.body(*kept);
        if (timeout) wanted.within(*timeout);
        channel_.async_request(
            wanted, ordered([kept, t = std::move(then)](error_code ec, reply const& r) mutable {
                t(ec, r);
            })
        );
    }
    void end_find(std::uint64_t find, error_code ec, remote_memory found = {});
    template <class Then>
    void notify(wire::region_operation what, std::span<std::byte const> body, Then then);
    void notify_dropped(std::uint64_t number, std::uint32_t founds);
    void on_notified(error_code ec);
    void notify_changes();
    void on_change(region_change::kind what, request const& r);
    void give_requests();
    void note_missed();
    void give_changes();
    template <class Value>
    struct numbered {
        std::uint64_t number;
        Value value;
    };
    template <class Value>
    static void put_back(std::deque<numbered<Value>>& all, std::uint64_t number, Value value) {
        auto const behind =
            std::ranges::upper_bound(all, number, std::ranges::less{}, &numbered<Value>::number);
        all.insert(behind, {number, std::move(value)});
    }
    template <class Value>
    static numbered<Value> take_first(std::deque<numbered<Value>>& all) {
        numbered<Value> first = std::move(all.front());
        all.pop_front();
        return first;
    }

    request_channel channel_;
    region_offers const offers_;
    std::uint32_t const changes_max_;
    bool is_pumping_ = false;
    bool has_ended_ = false;
    std::size_t notices_ = 0;  // of what was dropped, under way
    machines::unsent_changes unsent_changes_;
    std::size_t changes_under_way_ = 0;
    // What follows the requests that have arrived; empty while there may be more.
    error_code end_;

    std::shared_ptr<pool_core> pool_;
    // Destroyed after the grants: what it gives back, no peer can access.
    std::unique_ptr<pool_core::lease> lease_;
    std::map<std::uint64_t, grant> grants_;
    // The peer was asked to stop, and has not answered: it gets no key of these numbers, also if it has
    // dropped them meanwhile.
    std::set<std::uint64_t> withdrawing_;
    // Those that register_on has, cancelled ones included.
    std::set<registration_ptr> registrations_under_way_;
    // Whose turn it is when one more may be registered: those behind this number first.
    std::uint64_t served_last_ = 0;
    mutable std::mutex refusals_mutex_;
    std::optional<region_refusal> peer_refusal_;
    std::optional<region_refusal> own_refusal_;
    // The peer's, which are answered when the memory is free.
    std::map<std::uint64_t, request> to_be_freed_;

    std::map<std::uint64_t, finding> findings_;
    // Withdrawn regions, while there are questions whose answers may still give them.
    machines::early_numbers early_;
    std::map<std::uint64_t, std::weak_ptr<memory_core>> held_;
    // Withdrawals that are confirmed when the operations under way have completed.
    std::multimap<std::uint64_t, request> releasing_;
    // Regions that this side does not use any more as soon as the operations under way have completed.
    std::set<std::uint64_t> draining_;
    // Memory of the peer's pool that is freed when they have.
    std::map<std::uint64_t, protocol::waiter<error_code>> freeing_;

    // The program's, in the order of arrival; those that a cancelled wait has left, too.
    std::uint64_t numbers_ = 0;
    std::deque<numbered<request>> arrived_;
    std::deque<numbered<region_change>> changes_;
    bool has_missed_ = false;

    std::atomic<bool> has_failed_{false};
    std::atomic<std::size_t> held_count_{0};
    std::atomic<std::size_t> granted_count_{0};
    std::atomic<std::size_t> registrations_{0};
    std::atomic<std::size_t> windows_{0};
    std::atomic<std::uint64_t> registered_bytes_{0};

    protocol::wait_list<error_code, remote_memory> finds_{
        *this, [this] {
            std::erase_if(findings_, [this](auto const& f) { return !finds_.contains(f.first); });
        }};
    // Finished, and waiting for the connection's end.
    std::vector<protocol::waiter<error_code>> finishing_;
    protocol::wait_list<error_code> prepares_{*this};
    protocol::wait_list<error_code, request> nexts_{
        *this, [this](std::uint64_t number, error_code const&, request r) {
            put_back(arrived_, number, std::move(r));
            give_requests();
        }};
    protocol::wait_list<error_code, region_change> change_waits_{
        *this, [this](std::uint64_t number, error_code const&, region_change change) {
            put_back(changes_, number, std::move(change));
            give_changes();
        }};
};

}  // namespace rcverbs::detail

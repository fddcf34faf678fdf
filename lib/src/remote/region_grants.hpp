// region_grants.hpp — what the peer of a region channel has of this side's regions, and of blocks of its
// pool. Used inside the channel.
//
// There is a grant for each offer that the peer has; it ends when the peer has dropped as many finds as it
// has made, when it has confirmed a withdrawal, or with the connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <rcverbs/experimental/protocol.hpp>
#include <rcverbs/experimental/region_channel.hpp>
#include <rcverbs/experimental/window.hpp>
#include <rcverbs/memory_region.hpp>

#include "machines/piece_map.hpp"
#include "remote/offers_core.hpp"
#include "remote/recycled_map.hpp"
#include "remote/registrations.hpp"
#include "wire/region_message.hpp"

namespace rcverbs::detail {

class pool_core;
class region_core;

class region_grants {
public:
    region_grants(region_core& channel, region_offers offers)
        : channel_{channel},
          offers_{std::move(offers)} {}
    ~region_grants() { registrations_.end(); }

    /// From now on the list of offers tells of changes.
    void join();
    std::shared_ptr<pool_core> pool() const;

    // The peer's requests.
    void on_find(request r);
    void on_keys(request r);
    void on_dropped(request const& r);
    /// Why not, or 0 with what the peer is told of the region; then it has found it once more.
    wire::region_refused grant_once(
        offer_ptr const& what, std::size_t head_bytes, wire::region_found& found
    );
    void refuse(request r, wire::region_refused const& why);

    // From the list of offers.
    /// @param name  Empty if it has none.
    void withdraw(offer_ptr const& what, std::string const& name);
    /// Withdraws a block that another channel has now; `until` is kept until the peer has no key.
    void take_away(offer_ptr const& what, std::shared_ptr<void> until);

    /// Ends the grant of this number, if there is one.
    void end(std::uint64_t number);
    void end_registrations() noexcept { registrations_.end(); }
    void end_all();

    /// Any thread; the other counters are not changed.
    void count(region_channel_statistics& s) const noexcept;
    std::optional<region_refusal> refusal() const { return refusal_.get(); }

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
    struct grant {
        // First, so that it is destroyed last: the memory belongs to the program again after that.
        offer_ptr what;
        // Those that have the memory now hear of it when these are destroyed, so all keys are dead before.
        std::vector<std::shared_ptr<void>> taken_away;
        machines::piece_map map;
        // Keys by regions, or one key by a window.
        std::vector<memory_region> pieces;
        std::map<std::uint32_t, registrations::job_ptr> registering;
        std::vector<key_request> waiting;
        std::shared_ptr<opening> window;
        std::uint32_t founds = 0;
    };
    using grant_map = recycled_map<grant>;

    region_offers_options const& options() const noexcept;
    grant* grant_of(offer_ptr const& what);
    bool has_window_key(offered_region const& what) const;
    wire::piece_keys open_window(grant& g, error_code& ec);
    wire::piece_keys register_pieces(
        grant& g, std::uint32_t first, std::uint32_t count, wire::region_refused& why
    );
    static wire::piece_keys known_keys(grant const& g, std::uint32_t first, std::uint32_t count);
    void add_piece(grant& g, std::uint32_t piece, memory_region region);
    bool has_helpers() const noexcept { return static_cast<bool>(options().register_on); }
    void answer_waiting(grant& g);
    bool may_register() const noexcept;
    void start_registrations(grant& g);
    void on_registered(registrations::job_ptr const& job);
    void refuse_keys(grant& g);
    void on_released(std::uint64_t number, error_code ec, reply const& r);
    void end(grant_map::iterator which);

    region_core& channel_;
    region_offers const offers_;
    grant_map grants_;
    // The peer was asked to stop, and has not answered: it gets no key of these numbers, also if it has
    // dropped them meanwhile.
    std::set<std::uint64_t> withdrawing_;
    registrations registrations_;
    // Whose turn it is when one more may be registered: those behind this number first.
    std::uint64_t served_last_ = 0;
    // Any thread.
    struct {
        std::atomic<std::size_t> granted{0}, registrations{0}, windows{0};
        std::atomic<std::uint64_t> registered_bytes{0};
    } counted_;
    protocol::published<std::optional<region_refusal>> refusal_;
};

}  // namespace rcverbs::detail

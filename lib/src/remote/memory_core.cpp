#include "remote/memory_core.hpp"

#include <algorithm>
#include <utility>

#include "remote/region_core.hpp"
#include "remote/start_in_order.hpp"

namespace rcverbs::detail {

namespace {

// Takes slices of the given lengths from a list, one behind the other.
template <class Slice>
class slice_cursor {
public:
    explicit slice_cursor(slice_list list) noexcept : list_{std::move(list)} {}

    std::vector<Slice> take(std::uint64_t size) {
        std::vector<Slice> taken;
        while (size > 0) {
            plain_slice const& from = list_[index_];
            auto const part =
                static_cast<std::size_t>(std::min<std::uint64_t>(size, from.size - at_));
            if (part > 0) taken.push_back(slice_of<Slice>(from).slice(at_, part));
            size -= part;
            at_ += part;
            if (at_ == from.size) {
                ++index_;
                at_ = 0;
            }
        }
        return taken;
    }

private:
    slice_list const list_;
    std::size_t index_ = 0;
    std::size_t at_ = 0;
};

template <class Slices>
struct direction;
template <>
struct direction<mutable_slices> {
    using slice = mutable_slice;
    template <class Handler>
    static void start(
        connection& on, remote_region const& region, mutable_slices const& local, Handler handler
    ) {
        on.async_read(region, local, std::move(handler));
    }
};
template <>
struct direction<const_slices> {
    using slice = const_slice;
    template <class Handler>
    static void start(
        connection& on, remote_region const& region, const_slices const& local, Handler handler
    ) {
        on.async_write(local, region, std::move(handler));
    }
};

}  // namespace

// An operation of several parts. In the channel's order.
template <class Slices>
struct memory_core::transfer {
    transfer(std::uint64_t begin, Slices const& local, size_waiter w)
        : who{std::move(w)},
          offset{begin},
          left{local.size()},
          size_bytes{local.size()},
          cursor{access::list_of(local)} {}

    size_waiter who;
    std::uint64_t offset;
    std::uint64_t left;
    std::size_t const size_bytes;
    slice_cursor<typename direction<Slices>::slice> cursor;
    std::uint32_t under_way = 0;
    bool is_waiting_for_key = false;
    error_code failed;
};

memory_core::memory_core(
    std::shared_ptr<region_core> channel,
    std::uint64_t number,
    access_flags rights,
    machines::piece_map const& map
)
    : channel_{std::move(channel)},
      number_{number},
      rights_{rights},
      map_{map},
      keys_(map.pieces()),
      is_known_(map.pieces()),
      unknown_{map.pieces()} {}

memory_core::~memory_core() {
    if ((state_.load() & withdrawn) != 0) return;
    try {
        channel_->in_order([channel = channel_, number = number_, founds = founds_] {
            channel->finds().give_back(number, founds);
        });
    } catch (...) {
        // Without memory the owner would not hear of it.
        channel_->close();
    }
}

// The end of the connection takes all memory.
error_code memory_core::withdrawn_error() const noexcept {
    if (channel_->below().is_open()) return channel_errc::region_withdrawn;
    return errc::not_connected;
}

bool memory_core::is_withdrawn() const noexcept {
    return (state_.load() & withdrawn) != 0 || !channel_->below().is_open();
}

// --- keys ----------------------------------------------------------------------------------------

void memory_core::add_keys(std::uint32_t first, std::span<wire::piece_key const> keys) {
    for (wire::piece_key const& k : keys) {
        if (!is_known_[first]) {
            keys_[first] = k;
            is_known_[first] = true;
            --unknown_;
            ready_bytes_ += map_.in_range(first).size;
        }
        ++first;
    }
    if (unknown_ == 0) all_known_.store(true, std::memory_order_release);
}

// Of those from `piece` on, up to `last`, that are unknown: at least the first.
void memory_core::request_key(
    std::uint32_t piece, std::uint32_t last, std::function<void(error_code)> then
) {
    std::uint32_t count = 1;
    while (count < wire::region_keys_max && piece + count <= last && !knows(piece + count)) ++count;
    channel_->finds().request_keys(
        {number_, piece, count},
        [self = shared_from_this(),
         piece,
         then = std::move(then)](error_code ec, std::span<wire::piece_key const> keys) {
            if (!ec) self->add_keys(piece, keys);
            then(ec);
        }
    );
}

void memory_core::prepare(
    std::uint64_t offset, std::uint64_t size, protocol::waiter<error_code> who
) {
    if (!map_.contains(offset, size)) return channel_->deliver(std::move(who), errc::out_of_range);
    if (is_withdrawn()) return channel_->deliver(std::move(who), withdrawn_error());
    if (size == 0) return channel_->deliver(std::move(who), {});
    std::uint32_t const first = map_.first_part(offset, 1).piece;
    std::uint32_t const last = map_.first_part(offset + size - 1, 1).piece;
    prepare_next(first, last, channel_->finds().add_prepare(std::move(who)));
}

void memory_core::prepare_next(std::uint32_t piece, std::uint32_t last, std::uint64_t number) {
    // A cancelled one asks for nothing more.
    if (!channel_->finds().is_preparing(number)) return;
    while (piece <= last && knows(piece)) ++piece;
    if (piece > last) return channel_->finds().end_prepare(number, {});
    request_key(piece, last, [self = shared_from_this(), piece, last, number](error_code ec) {
        if (ec) return self->channel_->finds().end_prepare(number, ec);
        self->prepare_next(piece, last, number);
    });
}

remote_region memory_core::region_of(machines::piece_map::part const& p) const noexcept {
    wire::piece_key const& k = keys_[p.piece];
    return {k.address + p.offset, p.size, k.key, rights_};
}

// --- operations ----------------------------------------------------------------------------------

// Counts an operation, unless it is refused.
template <class Waiter>
bool memory_core::enter(std::uint64_t offset, std::uint64_t size, access_flags right, Waiter& who) {
    error_code refused;
    if (!map_.contains(offset, size)) refused = errc::out_of_range;
    else if (!allows(rights_, right)) refused = errc::access_denied;
    else if ((state_.fetch_add(1) & withdrawn) != 0) {
        leave();
        refused = withdrawn_error();
    }
    if (!refused) return true;
    channel_->enter(
        [channel = channel_.get(), refused](Waiter& w) {
            channel->deliver(std::move(w), refused, {});
        },
        std::move(who)
    );
    return false;
}

void memory_core::leave() noexcept {
    if (state_.fetch_sub(1) != (withdrawn | 1)) return;
    try {
        channel_->in_order([channel = channel_, number = number_] {
            channel->finds().on_unused(number);
        });
    } catch (...) {
        channel_->close();
    }
}

bool memory_core::withdraw() noexcept { return (state_.fetch_or(withdrawn) & ~withdrawn) == 0; }

template <class Slices>
void memory_core::start(
    std::uint64_t offset, Slices const& local, access_flags right, size_waiter who
) {
    if (!enter(offset, local.size(), right, who)) return;
    if (local.size() > 0 && all_known_.load(std::memory_order_acquire)) {
        auto const part = map_.first_part(offset, local.size());
        if (part.size == local.size()) {
            auto done = [self = shared_from_this(),
                         w = std::move(who)](error_code ec, std::size_t bytes) mutable {
                self->leave();
                w.call_on_io(error_code{ec}, std::size_t{bytes});
            };
            try {
                return direction<Slices>::start(
                    channel_->below(), region_of(part), local, std::move(done)
                );
            } catch (...) {
                // Without memory nothing was started.
                leave();
                throw;
            }
        }
    }
    auto const t = std::make_shared<transfer<Slices>>(offset, local, std::move(who));
    channel_->in_order([self = shared_from_this(), t] { self->advance(t); });
}

template <class Slices>
void memory_core::advance(std::shared_ptr<transfer<Slices>> const& t) {
    while (!t->failed && t->left > 0 && t->under_way < parts_max && !t->is_waiting_for_key) {
        auto const part = map_.first_part(t->offset, t->left);
        if (!knows(part.piece)) {
            t->is_waiting_for_key = true;
            std::uint32_t const last = map_.first_part(t->offset + t->left - 1, 1).piece;
            return request_key(part.piece, last, [self = shared_from_this(), t](error_code ec) {
                t->is_waiting_for_key = false;
                if (ec && !t->failed) t->failed = ec;
                self->advance(t);
            });
        }
        t->offset += part.size;
        t->left -= part.size;
        ++t->under_way;
        direction<Slices>::start(
            channel_->below(),
            region_of(part),
            t->cursor.take(part.size),
            channel_->held([self = shared_from_this(), t](error_code ec, std::size_t) {
                --t->under_way;
                if (ec && !t->failed) t->failed = ec;
                self->advance(t);
            })
        );
    }
    bool const is_over = t->under_way == 0 && !t->is_waiting_for_key && (t->failed || t->left == 0);
    if (!is_over || !t->who) return;
    leave();
    channel_->deliver(std::move(t->who), t->failed, t->failed ? 0 : t->size_bytes);
}

void memory_core::read(std::uint64_t offset, mutable_slices const& into, size_waiter who) {
    start(offset, into, access_flags::remote_read, std::move(who));
}

void memory_core::write(std::uint64_t offset, const_slices const& from, size_waiter who) {
    start(offset, from, access_flags::remote_write, std::move(who));
}

template <class Start>
void memory_core::start_atomic(std::uint64_t offset, word_waiter who, Start begin) {
    constexpr std::uint64_t size = sizeof(std::uint64_t);
    if (!enter(offset, size, access_flags::remote_atomic, who)) return;
    auto const part = map_.first_part(offset, size);
    auto go = [self = shared_from_this(), part, begin](word_waiter w) {
        begin(
            self->channel_->below(),
            self->region_of(part).word(0),
            [self, v = std::move(w)](error_code ec, std::uint64_t before) mutable {
                self->leave();
                v.call_on_io(error_code{ec}, std::uint64_t{before});
            }
        );
    };
    if (part.size == size && all_known_.load(std::memory_order_acquire)) return go(std::move(who));
    channel_->in_order([self = shared_from_this(), part, go, w = std::move(who)]() mutable {
        auto refuse = [self](word_waiter& v, error_code ec) {
            self->leave();
            self->channel_->deliver(std::move(v), ec, 0);
        };
        // A cell that lies across a border has no address that is a multiple of 8.
        if (part.size < size) return refuse(w, errc::misaligned);
        if (self->knows(part.piece)) return go(std::move(w));
        auto const kept = std::make_shared<word_waiter>(std::move(w));
        self->request_key(part.piece, part.piece, [go, refuse, kept](error_code ec) {
            if (ec) return refuse(*kept, ec);
            go(std::move(*kept));
        });
    });
}

void memory_core::fetch_add(std::uint64_t offset, std::uint64_t add, word_waiter who) {
    start_atomic(offset, std::move(who), [add](connection& on, remote_atomic cell, auto handler) {
        on.async_fetch_add(cell, add, std::move(handler));
    });
}

void memory_core::compare_swap(
    std::uint64_t offset, std::uint64_t expected, std::uint64_t desired, word_waiter who
) {
    start_atomic(
        offset,
        std::move(who),
        [expected, desired](connection& on, remote_atomic cell, auto handler) {
            on.async_compare_swap(cell, expected, desired, std::move(handler));
        }
    );
}

}  // namespace rcverbs::detail

namespace rcverbs {

namespace {

// A handler that waits for an operation on the channel; null if the context is gone.
template <class... Arguments>
protocol::waiter<Arguments...> waiting(
    detail::memory_core const& core, detail::erased_handler<Arguments...> handler
) {
    auto const io = core.channel().executor();
    return io ? protocol::waiter<Arguments...>{std::move(handler), io}
              : protocol::waiter<Arguments...>{};
}

}  // namespace

remote_memory::remote_memory() noexcept = default;
remote_memory::remote_memory(core_ptr core) noexcept : core_{std::move(core)} {}
remote_memory::remote_memory(remote_memory const& other) noexcept = default;
remote_memory::remote_memory(remote_memory&& other) noexcept = default;
remote_memory& remote_memory::operator=(remote_memory const& other) noexcept = default;
remote_memory& remote_memory::operator=(remote_memory&& other) noexcept = default;
remote_memory::~remote_memory() = default;

std::uint64_t remote_memory::size() const noexcept { return core_->map().size(); }
access_flags remote_memory::rights() const noexcept { return core_->rights(); }
bool remote_memory::is_withdrawn() const noexcept { return core_->is_withdrawn(); }
remote_memory::executor_type remote_memory::get_executor() const noexcept {
    return core_->channel().own_executor();
}

std::uint64_t remote_memory::ready_bytes() const noexcept {
    return core_->is_withdrawn() ? 0 : core_->ready_bytes();
}

void remote_memory::start_prepare(
    core_ptr const& core, std::uint64_t offset, std::uint64_t size, detail::control_handler handler
) {
    detail::start_in_order(
        core->channel_ptr(),
        std::move(handler),
        [core, offset, size](detail::region_core&, auto who) {
            core->prepare(offset, size, std::move(who));
        }
    );
}
void remote_memory::start_read(
    core_ptr const& core, std::uint64_t offset, mutable_slices const& into, size_handler handler
) {
    if (auto who = waiting(*core, std::move(handler))) core->read(offset, into, std::move(who));
}
void remote_memory::start_write(
    core_ptr const& core, std::uint64_t offset, const_slices const& from, size_handler handler
) {
    if (auto who = waiting(*core, std::move(handler))) core->write(offset, from, std::move(who));
}
void remote_memory::start_fetch_add(
    core_ptr const& core, std::uint64_t offset, std::uint64_t add, word_handler handler
) {
    if (auto who = waiting(*core, std::move(handler))) core->fetch_add(offset, add, std::move(who));
}
void remote_memory::start_compare_swap(
    core_ptr const& core,
    std::uint64_t offset,
    std::uint64_t expected,
    std::uint64_t desired,
    word_handler handler
) {
    if (auto who = waiting(*core, std::move(handler)))
        core->compare_swap(offset, expected, desired, std::move(who));
}

}  // namespace rcverbs

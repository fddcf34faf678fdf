#include "remote/memory_core.hpp"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "remote/region_core.hpp"
#include "remote/start_in_order.hpp"

namespace rcverbs::detail {

namespace {

// Takes slices of the given lengths from a list, one behind the other.
class slice_cursor {
public:
    explicit slice_cursor(slice_list list) noexcept : list_{std::move(list)} {}

    slice_list take(std::uint64_t size) {
        std::vector<const_slice> taken;
        while (size > 0) {
            plain_slice const& from = list_[index_];
            auto const part =
                static_cast<std::size_t>(std::min<std::uint64_t>(size, from.size - at_));
            if (part > 0) taken.push_back(slice_of<const_slice>(from).slice(at_, part));
            size -= part;
            at_ += part;
            if (at_ == from.size) {
                ++index_;
                at_ = 0;
            }
        }
        return {std::type_identity<const_slice>{}, taken};
    }

private:
    slice_list const list_;
    std::size_t index_ = 0;
    std::size_t at_ = 0;
};

constexpr bool is_atomic(work_request const& what) noexcept {
    return what.kind == operation_kind::fetch_add || what.kind == operation_kind::compare_swap;
}

std::uint64_t size_of(work_request const& what) noexcept {
    return is_atomic(what) ? sizeof(std::uint64_t) : what.local.size();
}

constexpr access_flags right_of(work_request const& what) noexcept {
    if (is_atomic(what)) return access_flags::remote_atomic;
    return what.kind == operation_kind::read ? access_flags::remote_read
                                             : access_flags::remote_write;
}

// The handler of an operation that was posted as a whole.
struct counted_waiter {
    std::shared_ptr<memory_core> self;
    memory_core::waiter who;

    void operator()(error_code ec, std::uint64_t result) {
        self->leave();
        who.call_on_io(error_code{ec}, std::uint64_t{result});
    }
};

void post(connection const& on, work_request const& what, handler_source source) {
    auto const& core = access::core_of(on);
    errc const refused = start_operation(core, {&what, 1}, turn::wait, source);
    if (refused != errc{}) post_refusal(*core, source, refused);
}

}  // namespace

// A read or write of several parts. In the channel's order.
struct memory_core::transfer {
    transfer(std::uint64_t begin, work_request const& what, waiter w)
        : who{std::move(w)},
          kind{what.kind},
          offset{begin},
          left{what.local.size()},
          size_bytes{what.local.size()},
          cursor{what.local} {}

    waiter who;
    operation_kind const kind;
    std::uint64_t offset;
    std::uint64_t left;
    std::size_t const size_bytes;
    slice_cursor cursor;
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
    // Publishes the map, which does not change any more, to start_now() on any thread.
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

// REQUIRES: the key of the part is known.
void memory_core::aim(work_request& what, machines::piece_map::part const& at) const noexcept {
    wire::piece_key const& k = keys_[at.piece];
    what.remote_address = k.address + at.offset;
    what.remote = k.key;
    if (is_atomic(what) && what.remote_address % sizeof(std::uint64_t) != 0)
        what.problem = errc::misaligned;
}

// --- operations ----------------------------------------------------------------------------------

// Counts an operation, unless it is refused.
bool memory_core::enter(std::uint64_t offset, work_request const& what, waiter& who) {
    error_code refused;
    if (!map_.contains(offset, size_of(what))) refused = errc::out_of_range;
    else if (!allows(rights_, right_of(what))) refused = errc::access_denied;
    else if (!count()) refused = withdrawn_error();
    if (!refused) return true;
    channel_->enter(
        [channel = channel_.get(), refused](waiter& w) {
            channel->deliver(std::move(w), refused, {});
        },
        std::move(who)
    );
    return false;
}

bool memory_core::count() noexcept {
    if ((state_.fetch_add(1) & withdrawn) == 0) return true;
    leave();
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

bool memory_core::start_now(std::uint64_t offset, work_request& what, handler_source source) {
    std::uint64_t const size = size_of(what);
    bool const is_possible = size > 0 && all_known_.load(std::memory_order_acquire) &&
                             map_.contains(offset, size) && allows(rights_, right_of(what));
    if (!is_possible) return false;
    auto const part = map_.first_part(offset, size);
    if (part.size != size || !count()) return false;
    aim(what, part);
    try {
        post(channel_->below(), what, source);
    } catch (...) {
        // Without memory nothing was started.
        leave();
        throw;
    }
    return true;
}

void memory_core::start(std::uint64_t offset, work_request& what, waiter who) {
    counted_waiter done{shared_from_this(), std::move(who)};
    auto const source = is_atomic(what) ? offer<word_result>(std::move(done))
                                        : offer<bytes_result>(std::move(done));
    // An operation that is not started does not move it.
    // NOLINTNEXTLINE(bugprone-use-after-move)
    if (!start_now(offset, what, source)) start_later(offset, what, std::move(done.who));
}

// By requests for keys, or in several parts.
void memory_core::start_later(std::uint64_t offset, work_request const& what, waiter who) {
    if (!enter(offset, what, who)) return;
    if (is_atomic(what)) return start_atomic(offset, what, std::move(who));
    auto const t = std::make_shared<transfer>(offset, what, std::move(who));
    channel_->in_order([self = shared_from_this(), t] { self->advance(t); });
}

void memory_core::advance(std::shared_ptr<transfer> const& t) {
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
        work_request what{t->kind, t->cursor.take(part.size)};
        aim(what, part);
        auto done = channel_->held([self = shared_from_this(), t](error_code ec, std::size_t) {
            --t->under_way;
            if (ec && !t->failed) t->failed = ec;
            self->advance(t);
        });
        post(channel_->below(), what, offer<bytes_result>(std::move(done)));
    }
    bool const is_over = t->under_way == 0 && !t->is_waiting_for_key && (t->failed || t->left == 0);
    if (!is_over || !t->who) return;
    leave();
    channel_->deliver(std::move(t->who), t->failed, t->failed ? 0 : t->size_bytes);
}

// An atomic whose key is not known, or whose cell lies across a border.
void memory_core::start_atomic(std::uint64_t offset, work_request const& what, waiter who) {
    channel_->in_order([self = shared_from_this(), offset, wanted = what, w = std::move(who)](
                       ) mutable {
        auto const part = self->map_.first_part(offset, sizeof(std::uint64_t));
        auto const refuse = [self](waiter& v, error_code ec) {
            self->leave();
            self->channel_->deliver(std::move(v), ec, 0);
        };
        // A cell that lies across a border has no address that is a multiple of 8.
        if (part.size < sizeof(std::uint64_t)) return refuse(w, errc::misaligned);
        auto go = [self, aimed = wanted, part](waiter& v) mutable {
            self->aim(aimed, part);
            counted_waiter done{self, std::move(v)};
            post(self->channel_->below(), aimed, offer<word_result>(std::move(done)));
        };
        if (self->knows(part.piece)) return go(w);
        auto const kept = std::make_shared<waiter>(std::move(w));
        self->request_key(part.piece, part.piece, [go, refuse, kept](error_code ec) mutable {
            if (ec) return refuse(*kept, ec);
            go(*kept);
        });
    });
}

}  // namespace rcverbs::detail

namespace rcverbs {

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
detail::connection_core const* remote_memory::connection_of(core_ptr const& core) noexcept {
    return detail::access::core_of(core->channel().below()).get();
}
void remote_memory::leave(core_ptr const& core) noexcept { core->leave(); }
bool remote_memory::start_now(
    core_ptr const& core,
    std::uint64_t offset,
    detail::work_request& what,
    detail::handler_source source
) {
    return core->start_now(offset, what, source);
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
void remote_memory::start(
    core_ptr const& core, std::uint64_t offset, detail::work_request& what, data_handler handler
) {
    auto const io = core->channel().executor();
    // Without it, the handler goes with the context.
    if (io) core->start(offset, what, {std::move(handler), io});
}

}  // namespace rcverbs

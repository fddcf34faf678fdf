// Memory of a pool: what the peer of a region channel asks for, and what this side asks the peer for.
#include <cerrno>
#include <new>
#include <utility>

#include "remote/memory_core.hpp"
#include "remote/region_bodies.hpp"
#include "remote/region_core.hpp"

namespace rcverbs::detail {

using wire::region_operation;
using wire::region_status;

// --- the side with the pool ----------------------------------------------------------------------

pool_core* region_core::pool() {
    if (pool_ == nullptr && offers_.is_valid()) pool_ = offers_.core_->pool();
    if (pool_ != nullptr && lease_ == nullptr)
        lease_ = pool_->open(std::static_pointer_cast<region_core>(shared_from_this()));
    return pool_.get();
}

void region_core::answer_allocate(request r) {
    error_code ec;
    auto const asked = wire::decode_allocate(r.bytes(), ec);
    if (ec) return violated();
    if (asked.version != wire::region_version)
        return answer(std::move(r), region_status::other_version);
    int why = 0;
    pool_core::allocated a;
    try {
        if (pool_core* const p = pool(); p == nullptr) a = {};
        else if (!p->is_possible(asked.alignment)) why = EINVAL;
        else a = p->allocate(*lease_, asked.bytes, asked.alignment, asked.is_kept);
    } catch (std::bad_alloc const&) {
        why = ENOMEM;
    } catch (boost::system::system_error const& e) {
        why = errno_of(e.code());
    }
    if (why != 0) return refuse(std::move(r), {why, {}});
    answer_allocated(std::move(r), a, true);
}

void region_core::answer_resume(request r) {
    error_code ec;
    auto const asked = wire::decode_resume(r.bytes(), ec);
    if (ec) return violated();
    if (asked.version != wire::region_version)
        return answer(std::move(r), region_status::other_version);
    pool_core* const p = pool();
    if (p == nullptr) return answer(std::move(r), region_status::none);
    // It is answered when those who had the memory before cannot access it any more.
    struct resumption {
        request asked;
        pool_core::allocated what;
    };
    auto const self = std::static_pointer_cast<region_core>(shared_from_this());
    auto const resumed = std::make_shared<resumption>();
    auto then = [self, resumed]() noexcept {
        try {
            self->in_order([self, resumed] {
                self->answer_resumed(std::move(resumed->asked), resumed->what);
            });
        } catch (...) {
            self->close();  // without memory the peer would wait for ever
        }
    };
    // In the order, so that `then` does its work later.
    resumed->what = p->resume(*lease_, asked.token, then);
    if (resumed->what.what != pool_core::outcome::done)
        return answer_allocated(std::move(r), resumed->what, false);
    resumed->asked = std::move(r);
}

void region_core::answer_resumed(request r, pool_core::allocated const& a) {
    if (has_ended_) return;
    // Another connection may have taken it meanwhile.
    if (!pool_->holds(*lease_, a.block->number)) return answer(std::move(r), region_status::none);
    answer_allocated(std::move(r), a, false);
}

void region_core::answer_allocated(request r, pool_core::allocated const& a, bool is_new) {
    switch (a.what) {
    case pool_core::outcome::unknown: return answer(std::move(r), region_status::none);
    case pool_core::outcome::over_quota:
    case pool_core::outcome::exhausted:
        return answer(
            std::move(r),
            a.what == pool_core::outcome::exhausted ? region_status::exhausted
                                                    : region_status::over_quota,
            as_vector(wire::encode(wire::region_left{a.bytes_left, a.largest_bytes}))
        );
    case pool_core::outcome::done: break;
    }
    wire::region_allocated message{a.bytes_left, a.key, {}};
    auto const refused = grant_once(a.block, wire::allocated_head_bytes, message.memory);
    if (refused.why == 0) return answer(std::move(r), region_status::found, wire::encode(message));
    if (is_new) static_cast<void>(pool_->free(*lease_, a.block->number, {}));
    refuse(std::move(r), refused);
}

void region_core::answer_free(request r) {
    error_code ec;
    std::uint64_t const number = wire::decode_number(r.bytes(), ec);
    if (ec) return violated();
    pool_core* const p = pool();
    auto then = [weak = weak_from_this(), number] {
        auto const self = std::static_pointer_cast<region_core>(weak.lock());
        if (self != nullptr) self->in_order([self, number] { self->on_freed(number); });
    };
    if (p == nullptr || !p->free(*lease_, number, then))
        return answer(std::move(r), region_status::none);
    to_be_freed_.emplace(number, std::move(r));
    // Whatever it has found of this number, it does not use any more.
    if (auto const known = grants_.find(number); known != grants_.end()) end_grant(known);
}

void region_core::on_freed(std::uint64_t number) {
    auto const found = to_be_freed_.find(number);
    if (found == to_be_freed_.end()) return;
    request r = std::move(found->second);
    to_be_freed_.erase(found);
    answer(std::move(r), region_status::found);
}

void region_core::answer_share(request r) {
    error_code ec;
    auto const asked = wire::decode_share(r.bytes(), ec);
    std::string const name = std::string{remote_allocator::shared_prefix}.append(asked.name);
    if (ec || !wire::is_region_name(name)) return violated();
    pool_core* const p = pool();
    switch (p != nullptr ? p->share(*lease_, asked.number, name) : pool_core::outcome::unknown) {
    case pool_core::outcome::done: return answer(std::move(r), region_status::found);
    case pool_core::outcome::unknown: return answer(std::move(r), region_status::none);
    case pool_core::outcome::over_quota:
    case pool_core::outcome::exhausted: break;
    }
    refuse(std::move(r), {EEXIST, {}});
}

// --- the side that allocates ---------------------------------------------------------------------

void region_core::allocate(
    std::uint64_t bytes, allocate_options const& options, allocation_waiter who
) {
    if (bytes == 0 || !std::has_single_bit(options.alignment))
        return deliver(std::move(who), errc::invalid_option, {});
    ask_for_memory(
        region_operation::allocate,
        wire::encode(wire::region_allocate{
            wire::region_version, options.is_kept, bytes, options.alignment}),
        channel_errc::no_pool,
        std::move(who)
    );
}

void region_core::resume(resume_token const& key, allocation_waiter who) {
    ask_for_memory(
        region_operation::resume,
        wire::encode(wire::region_resume{wire::region_version, key.bytes}),
        channel_errc::no_such_allocation,
        std::move(who)
    );
}

template <class Body>
void region_core::ask_for_memory(
    region_operation what, Body const& body, channel_errc none, allocation_waiter who
) {
    if (auto const ec = usable()) return deliver(std::move(who), ec, {});
    ask_peer(
        what,
        body,
        [this, none, question = early_.open(), w = std::move(who)](
            error_code ec, reply const& r
        ) mutable {
            remote_allocation taken;
            if (!ec) taken = take_allocated(r, question, none, ec);
            early_.close(question);
            if (ec == channel_errc::malformed_message) violated();
            deliver(std::move(w), ec, std::move(taken));
        }
    );
}

remote_allocation region_core::take_allocated(
    reply const& r, std::uint64_t question, channel_errc none, error_code& ec
) {
    remote_allocation taken;
    switch (static_cast<region_status>(r.status())) {
    case region_status::found: {
        auto const message = wire::decode_allocated(r.bytes(), ec);
        if (!ec) taken.memory = take_found(message.memory, question, ec);
        if (ec) return {};
        if (!taken.memory.is_valid()) {
            ec = channel_errc::region_withdrawn;
            return {};
        }
        memory_core::core_of(taken.memory)->mark_allocated();
        taken.token.bytes = message.token;
        taken.bytes_left = message.bytes_left;
        return taken;
    }
    case region_status::over_quota:
    case region_status::exhausted: {
        auto const left = wire::decode_left(r.bytes(), ec);
        if (ec) return {};
        ec = static_cast<region_status>(r.status()) == region_status::exhausted
                 ? channel_errc::pool_exhausted
                 : channel_errc::quota_exceeded;
        taken.bytes_left = left.bytes_left;
        taken.largest_free_bytes = left.largest_bytes;
        return taken;
    }
    default:
        ec = refusal_of(r);
        if (ec == channel_errc::no_such_region) ec = none;
        return {};
    }
}

void region_core::free(std::shared_ptr<memory_core> const& what, protocol::waiter<error_code> who) {
    if (auto const ec = usable()) return deliver(std::move(who), ec);
    bool const is_own = what != nullptr && &what->channel() == this && what->is_allocated();
    if (!is_own || what->is_withdrawn())
        return deliver(std::move(who), channel_errc::no_such_allocation);
    std::uint64_t const number = what->number();
    if (freeing_.contains(number)) return deliver(std::move(who), channel_errc::no_such_allocation);
    drop_held(number);
    freeing_.emplace(number, std::move(who));
    if (what->withdraw()) ask_to_free(number);
    else draining_.insert(number);
}

// What was found before the owner hears of it is gone, too.
void region_core::ask_to_free(std::uint64_t number) {
    early_.add_own(number);
    ask_peer(
        region_operation::free,
        wire::encode_number(number),
        [this, number](error_code ec, reply const& r) {
            if (!ec && r.status() != static_cast<std::uint32_t>(region_status::found))
                ec = refusal_of(r);
            if (ec == channel_errc::no_such_region) ec = channel_errc::no_such_allocation;
            if (ec == channel_errc::malformed_message) violated();
            auto who = freeing_.extract(number);
            if (!who.empty()) deliver(std::move(who.mapped()), ec);
        }
    );
}

void region_core::share(
    std::shared_ptr<memory_core> const& what,
    std::string const& name,
    protocol::waiter<error_code> who
) {
    bool const is_name =
        wire::is_region_name(std::string{remote_allocator::shared_prefix}.append(name));
    if (name.empty() || !is_name) return deliver(std::move(who), errc::invalid_option);
    if (auto const ec = usable()) return deliver(std::move(who), ec);
    bool const is_own = what != nullptr && &what->channel() == this && what->is_allocated();
    if (!is_own) return deliver(std::move(who), channel_errc::no_such_allocation);
    ask_peer(
        region_operation::share,
        wire::encode(wire::region_share{what->number(), name}),
        [this, w = std::move(who)](error_code ec, reply const& r) mutable {
            if (!ec && r.status() != static_cast<std::uint32_t>(region_status::found))
                ec = refusal_of(r);
            if (ec == channel_errc::no_such_region) ec = channel_errc::no_such_allocation;
            if (ec == channel_errc::malformed_message) violated();
            deliver(std::move(w), ec);
        }
    );
}

}  // namespace rcverbs::detail
